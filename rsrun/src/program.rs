//! Whether a program can be served. The dynamic linker preloads nothing into static programs, nor
//! into those that get privileges by being executed, nor across architectures. Go makes its system
//! calls itself. There the library would silently do nothing, so rsrun says so and refuses.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use object::elf::{self, FileHeader64};
use object::read::elf::{ElfFile64, FileHeader, ProgramHeader};
use object::{Endianness, Object};

/// A program that can be served.
#[derive(Debug)]
pub struct Program {
    /// What is executed.
    pub path: PathBuf,
    /// What runs it, if it is a script.
    pub interpreter: Option<PathBuf>,
    /// A sanitizer's library that it is linked with, which must be first in `LD_PRELOAD`.
    pub runtime: Option<OsString>,
}

/// Why a program is not run. The text is for people.
#[derive(Debug)]
pub enum Trouble {
    /// There is no such program.
    Missing(String),
    /// The library would do nothing in it.
    NotServed(String),
}

/// Scripts that are run by scripts, at most so many deep, as the kernel has it.
const DEEPEST: usize = 4;

/// Finds a program as execvp(3) does and looks whether `library` can serve it.
///
/// # Errors
/// If there is no such program, or the library would do nothing in it.
pub fn look(name: &OsStr, library: &Path) -> Result<Program, Trouble> {
    let search = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let path = find(name, &search)
        .ok_or_else(|| Trouble::Missing(format!("{}: not found", name.display())))?;
    let mut now = path.clone();
    let mut depth = 0;
    while let Some(next) = script(&now).map_err(|e| unreadable(&now, &e))? {
        let by_env = next.file_name() == Some(OsStr::new("env"));
        privileges(&now)?;
        now = next;
        depth += 1;
        if by_env || depth == DEEPEST {
            break;
        }
    }
    privileges(&now)?;
    let runtime = binary(&now, library).map_err(|why| {
        Trouble::NotServed(format!("{} {why}: it would run without rsockets", now.display()))
    })?;
    let interpreter = (depth > 0).then_some(now);
    Ok(Program { path, interpreter, runtime })
}

fn unreadable(path: &Path, e: &std::io::Error) -> Trouble {
    Trouble::NotServed(format!("{}: cannot be looked at: {e}", path.display()))
}

fn find(name: &OsStr, search: &OsStr) -> Option<PathBuf> {
    let runs = |p: &PathBuf| {
        fs::metadata(p).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(runs);
    }
    std::env::split_paths(search).map(|d| d.join(name)).find(runs)
}

/// The interpreter that a script names in its first line.
fn script(path: &Path) -> std::io::Result<Option<PathBuf>> {
    let mut first = [0; 256];
    let n = File::open(path)?.read(&mut first)?;
    let Some(line) = first[..n].strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|b| *b == b'\n').next().unwrap_or(line).trim_ascii();
    let word = line.split(|b| matches!(b, b' ' | b'\t')).next().unwrap_or(line);
    Ok((!word.is_empty()).then(|| OsString::from_vec(word.to_vec()).into()))
}

/// Executing it must not change who the process is, or `LD_PRELOAD` is ignored.
fn privileges(path: &Path) -> Result<(), Trouble> {
    let meta = fs::metadata(path).map_err(|e| unreadable(path, &e))?;
    let (mode, uid, gid) =
        (meta.permissions().mode(), rustix::process::geteuid(), rustix::process::getegid());
    let refused = |what: &str| {
        Err(Trouble::NotServed(format!(
            "{} {what}: the dynamic linker preloads nothing into it",
            path.display()
        )))
    };
    if mode & 0o4000 != 0 && meta.uid() != uid.as_raw() {
        return refused("is setuid");
    }
    if mode & 0o2010 == 0o2010 && meta.gid() != gid.as_raw() {
        return refused("is setgid");
    }
    let mut value = [0; 64];
    let capable = rustix::fs::getxattr(path, "security.capability", &mut value).is_ok();
    if capable && !uid.is_root() {
        return refused("has file capabilities");
    }
    Ok(())
}

/// Why the library would do nothing in this file; or the sanitizer's library that it needs first.
fn binary(path: &Path, library: &Path) -> Result<Option<OsString>, String> {
    let data = fs::read(path).map_err(|e| format!("cannot be read ({e})"))?;
    let ours = fs::read(library)
        .map_err(|e| format!("cannot be compared with {} ({e})", library.display()))?;
    let machine = |d: &[u8]| d.get(4..5).zip(d.get(18..20)).map(|(c, m)| [c, m].concat());
    if !data.starts_with(&elf::ELFMAG) {
        return Err("is neither an ELF program nor a script".to_owned());
    }
    if machine(&data) != machine(&ours) {
        return Err("is for another architecture than the library".to_owned());
    }
    inside(&data)
}

fn inside(data: &[u8]) -> Result<Option<OsString>, String> {
    let broken = |e: object::Error| format!("cannot be understood ({e})");
    let header = FileHeader64::<Endianness>::parse(data).map_err(broken)?;
    let endian = header.endian().map_err(broken)?;
    let mut interpreter = None;
    for segment in header.program_headers(endian, data).map_err(broken)? {
        interpreter = interpreter.or(segment.interpreter(endian, data).map_err(broken)?);
    }
    let file = ElfFile64::<Endianness>::parse(data).map_err(broken)?;
    if [".go.buildinfo", ".note.go.buildid"].iter().any(|s| file.section_by_name(s).is_some()) {
        return Err("is a Go program, which makes its system calls itself".to_owned());
    }
    let Some(interpreter) = interpreter else { return Err("is statically linked".to_owned()) };
    if !interpreter.windows(8).any(|w| w == b"ld-linux") {
        return Err("does not use glibc".to_owned());
    }
    let table = file.elf_dynamic_table().map_err(broken)?;
    let needed =
        table.iter().filter(|d| d.tag == elf::DT_NEEDED).filter_map(|d| table.string(d).ok());
    let sanitizers = [&b"libasan.so"[..], b"libtsan.so", b"libubsan.so", b"liblsan.so"];
    let mut runtime = needed.filter(|name| sanitizers.iter().any(|s| name.starts_with(s)));
    Ok(runtime.next().map(|name| OsString::from_vec(name.to_vec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_as_the_shell_does() {
        assert_eq!(
            find("sh".as_ref(), "/nonexistent:/bin".as_ref()).unwrap(),
            Path::new("/bin/sh")
        );
        assert!(find("no-such-program".as_ref(), "/bin".as_ref()).is_none());
        assert!(find("/etc/passwd".as_ref(), "/bin".as_ref()).is_none());
    }

    #[test]
    fn this_very_program_is_served() {
        let own = std::env::current_exe().unwrap();
        assert_eq!(binary(&own, &own), Ok(None));
    }

    #[test]
    fn what_is_no_program_is_not() {
        let own = std::env::current_exe().unwrap();
        assert!(binary(Path::new("/etc/passwd"), &own).unwrap_err().contains("neither"));
        let mut other = fs::read(&own).unwrap();
        other[18] ^= 0xff;
        let path = std::env::temp_dir().join(format!("rsrun-other-{}", std::process::id()));
        fs::write(&path, &other).unwrap();
        let said = binary(&path, &own).unwrap_err();
        other.truncate(100);
        fs::write(&path, &other).unwrap();
        assert!(binary(&path, &own).is_err());
        fs::remove_file(&path).unwrap();
        assert!(said.contains("architecture"), "{said}");
    }

    #[test]
    fn scripts_name_their_interpreter() {
        let path = std::env::temp_dir().join(format!("rsrun-script-{}", std::process::id()));
        fs::write(&path, "#! /usr/bin/env  python3 -u\nx").unwrap();
        let found = script(&path).unwrap();
        fs::remove_file(&path).unwrap();
        assert_eq!(found.unwrap(), Path::new("/usr/bin/env"));
        assert!(script(Path::new("/etc/passwd")).unwrap().is_none());
    }
}
