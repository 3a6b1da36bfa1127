//! Finds the files that processes leave, reads them, and removes those of processes that are no
//! more.
//!
//! They lie in directories of the users who own them; root looks into those of all users. Nothing
//! there is trusted: no link is followed, and nothing but a regular file of the directory's owner
//! is read. It is read, not mapped, since its owner may cut it short at any moment.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rsocket_stats::layout::{CHUNK_BYTES, HEAD_BYTES, MAX_CHUNKS, PLACES, SUFFIX, head};
use rustix::fs::OFlags;
use rustix::time::{ClockId, clock_gettime};

use super::view::{self, Process};

/// Files of killed processes that are kept for `rsstat --dead`, for each directory.
const KEPT: usize = 32;
/// For at most so long, in nanoseconds.
const KEPT_NS: u64 = 24 * 3600 * 1_000_000_000;

/// All processes: those that run, and those that were killed. Removes what is not wanted any more.
#[must_use]
pub fn all() -> (Vec<Process>, Vec<Process>) {
    let (mut alive, mut dead) = (Vec::new(), Vec::new());
    for directory in directories() {
        unfinished(&directory).iter().for_each(|p| remove(p));
        let mut killed = Vec::new();
        for (path, process) in read_directory(&directory) {
            match fate(&process) {
                Fate::Runs => alive.push(process),
                Fate::Killed if process.age_ns < KEPT_NS => killed.push((path, process)),
                Fate::Ended | Fate::Killed => remove(&path),
            }
        }
        killed.sort_by_key(|(_, p)| p.age_ns);
        for (i, (path, process)) in killed.into_iter().enumerate() {
            if i < KEPT { dead.push(process) } else { remove(&path) }
        }
    }
    alive.sort_by_key(|p| p.pid);
    (alive, dead)
}

/// Removes the files of all killed processes; how many there were. What else is not wanted any more
/// goes, too. A process that was killed when it had said that it ends had no time to remove its
/// file. Nor had one that was killed when it made the file.
#[must_use]
pub fn forget_dead(directories: &[PathBuf]) -> usize {
    let mut killed = 0;
    for directory in directories {
        unfinished(directory).iter().for_each(|p| remove(p));
        for (path, process) in read_directory(directory) {
            let fate = fate(&process);
            killed += usize::from(fate == Fate::Killed);
            if fate != Fate::Runs {
                remove(&path);
            }
        }
    }
    killed
}

/// The files of one directory that no process has written into, and whose process is no more.
fn unfinished(directory: &Path) -> Vec<PathBuf> {
    let Some((entries, owner)) = own_files(directory) else { return Vec::new() };
    let gone = |path: &PathBuf| {
        let name = path.file_name().and_then(|n| n.to_str()?.strip_suffix(SUFFIX)?.parse().ok());
        name.is_some_and(|pid| started_since_boot(pid).is_none())
    };
    let blank = |path: &PathBuf| {
        read(path, owner)
            .is_some_and(|words| words.get(head::MAGIC).is_none_or(|magic| *magic == 0))
    };
    entries.filter(|path| gone(path) && blank(path)).collect()
}

fn remove(path: &Path) {
    // If it cannot be, the next one tries.
    let _ = fs::remove_file(path);
}

/// Where to look: the user's own places, and for root those of all users.
#[must_use]
pub fn directories() -> Vec<PathBuf> {
    let uid = rustix::process::geteuid();
    let mut found = BTreeSet::new();
    if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR").filter(|v| !v.is_empty()) {
        found.insert(Path::new(&runtime).join("rsocket"));
    }
    for (before, after) in PLACES {
        if !uid.is_root() {
            found.insert(PathBuf::from(format!("{before}{}{after}", uid.as_raw())));
            continue;
        }
        // What stands there in place of the user's number.
        let (parent, prefix) = before.rsplit_once('/').unwrap_or(("", before));
        for entry in fs::read_dir(format!("{parent}/")).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(number) = name.to_str().and_then(|n| n.strip_prefix(prefix)) else { continue };
            if number.parse::<u32>().is_ok() {
                found.insert(PathBuf::from(format!("{before}{number}{after}")));
            }
        }
    }
    found.into_iter().collect()
}

/// What one directory has that bears the name of such a file, and who owns it; `None` where it is
/// not to be looked into.
fn own_files(directory: &Path) -> Option<(impl Iterator<Item = PathBuf> + use<>, u32)> {
    let meta = fs::symlink_metadata(directory).ok()?;
    let uid = rustix::process::geteuid();
    if !meta.is_dir() || meta.mode() & 0o022 != 0 || !(uid.is_root() || meta.uid() == uid.as_raw())
    {
        return None;
    }
    let entries = fs::read_dir(directory).into_iter().flatten().flatten().map(|e| e.path());
    Some((entries.filter(|p| p.to_str().is_some_and(|p| p.ends_with(SUFFIX))), meta.uid()))
}

/// The files of one directory that are what they should be.
fn read_directory(directory: &Path) -> Vec<(PathBuf, Process)> {
    let Some((entries, owner)) = own_files(directory) else { return Vec::new() };
    let understood = |path: PathBuf| {
        let process = view::understand(&read(&path, owner)?, owner, since_boot())?;
        Some((path, process))
    };
    entries.filter_map(understood).collect()
}

/// The words of one file.
fn read(path: &Path, owner: u32) -> Option<Vec<u64>> {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file: File = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let meta = file.metadata().ok()?;
    if !meta.is_file() || meta.uid() != owner {
        return None;
    }
    let mut bytes = Vec::new();
    file.take((HEAD_BYTES + MAX_CHUNKS * CHUNK_BYTES) as u64).read_to_end(&mut bytes).ok()?;
    Some(bytes.as_chunks().0.iter().map(|w| u64::from_ne_bytes(*w)).collect())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Runs,
    /// Orderly, or by becoming another program.
    Ended,
    Killed,
}

fn fate(process: &Process) -> Fate {
    if process.ended {
        return Fate::Ended;
    }
    // In another pid namespace the number says nothing: then it runs as long as it does not say
    // otherwise.
    let here = fs::metadata("/proc/self/ns/pid").map_or(0, |m| m.ino());
    if process.pid_namespace != 0 && process.pid_namespace != here {
        return Fate::Runs;
    }
    match started_since_boot(process.pid) {
        // A process that began after the file was made is another one of the same number. Ticks are
        // 10 ms.
        Some(began) if began <= process.made_since_boot.saturating_add(20_000_000) => Fate::Runs,
        _ => Fate::Killed,
    }
}

/// When a process began, in nanoseconds since the host was booted. `None` if there is none, or only
/// a zombie.
fn started_since_boot(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may contain anything.
    let fields: Vec<&str> = text.rsplit_once(") ")?.1.split(' ').collect();
    if matches!(fields.first(), Some(&("Z" | "X"))) {
        return None;
    }
    let ticks: u64 = fields.get(19)?.parse().ok()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some((u128::from(ticks) * 1_000_000_000 / u128::from(per_second)) as u64)
}

fn since_boot() -> u64 {
    let t = clock_gettime(ClockId::Boottime);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rsocket_stats::layout::{MAGIC, VERSION};

    #[test]
    fn a_process_began_before_now() {
        let began = started_since_boot(std::process::id()).unwrap();
        assert!(began > 0 && began <= since_boot());
        assert!(started_since_boot(u32::MAX).is_none());
    }

    /// A directory of this user's with one file for each process: its number, and the words at its
    /// head.
    fn directory(name: &str, files: &[(u32, &[(usize, u64)])]) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("rsstat-{name}-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        for (pid, set) in files {
            let mut words = vec![0_u64; (HEAD_BYTES + CHUNK_BYTES) / 8];
            set.iter().for_each(|(number, value)| words[*number] = *value);
            let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_ne_bytes()).collect();
            fs::write(dir.join(format!("{pid}{SUFFIX}")), bytes).unwrap();
        }
        dir
    }

    #[test]
    fn what_nobody_wants_any_more_is_forgotten() {
        let (own, nobody) = (std::process::id(), u32::MAX - 1);
        let of = |pid: u32, ended: u64| {
            [
                (head::MAGIC, MAGIC),
                (head::VERSION, VERSION),
                (head::PID, u64::from(pid)),
                (head::MADE_SINCE_BOOT, since_boot()),
                (head::ENDED, ended),
            ]
        };
        for (left, killed, pid, words) in [
            (1, 0, own, of(own, 0).as_slice()),
            (0, 1, nobody, of(nobody, 0).as_slice()),
            // Killed between its last word and the removal of its file; another program by now.
            (0, 0, nobody, of(nobody, 1).as_slice()),
            (0, 0, own, of(own, 1).as_slice()),
            // Killed before its first word; about to say it.
            (0, 0, nobody, [].as_slice()),
            (1, 0, own, [].as_slice()),
            // Another build's.
            (1, 0, nobody, [(head::MAGIC, MAGIC), (head::VERSION, VERSION + 1)].as_slice()),
        ] {
            let dir = directory("forget", &[(pid, words)]);
            assert_eq!(forget_dead(std::slice::from_ref(&dir)), killed);
            assert_eq!(fs::read_dir(&dir).unwrap().count(), left, "{words:?}");
            fs::remove_dir_all(&dir).unwrap();
        }
    }

    #[test]
    fn only_files_of_the_owner_are_read() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let uid = rustix::process::geteuid().as_raw();
        let dir = std::env::temp_dir().join(format!("rsstat-files-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let file = dir.join("1.live");
        fs::write(&file, [1, 2, 3, 4, 5, 6, 7, 8, 9]).unwrap();
        assert_eq!(read(&file, uid).unwrap().len(), 1);
        assert!(read(&file, uid + 1).is_none());
        symlink(&file, dir.join("2.live")).unwrap();
        assert!(read(&dir.join("2.live"), uid).is_none());
        assert!(read_directory(&dir).is_empty(), "nine bytes are no process");
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert!(read_directory(&dir).is_empty());
        fs::remove_dir_all(&dir).unwrap();
    }
}
