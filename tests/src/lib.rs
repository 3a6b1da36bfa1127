//! What tests across crates share: where the preload library is, how a C program is compiled, and
//! how a program is run plain and preloaded.
//!
//! Hooks are only ever active in children: the test binaries themselves are not interposed.

use std::ffi::OsString;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// The directory of this package.
#[must_use]
pub fn here() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The workspace's root.
///
/// # Panics
/// Never where the package lies inside its workspace.
#[must_use]
pub fn workspace() -> &'static Path {
    here().parent().expect("the package lies inside the workspace")
}

/// `target/<profile>` of the build that this test belongs to.
///
/// # Panics
/// If the test binary does not lie where cargo puts it.
#[must_use]
pub fn profile_directory() -> PathBuf {
    let exe = std::env::current_exe().expect("a running program has a path");
    exe.parent()
        .and_then(Path::parent)
        .expect("cargo puts tests into target/<profile>/deps")
        .to_owned()
}

/// The preload library of the profile under test, or what `RSOCKET_PRELOAD_LIB` names. Built by
/// cargo if it is missing or stale (`cargo test` alone does not build a cdylib).
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn preload_library() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("RSOCKET_PRELOAD_LIB") {
        Some(given) => given.into(),
        None => build_preload_library(profile_directory().ends_with("release")),
    })
}

/// Builds the preload library in one of the two profiles and gives its path.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn build_preload_library(release: bool) -> PathBuf {
    build_library("rspreload", "librspreload.so", release)
}

/// The library of rsocket(7) of the profile under test, or what `RSOCKET_CAPI_LIB` names; built as
/// [`preload_library`] is.
///
/// # Panics
/// If it cannot be built.
#[must_use]
pub fn rsocket_library() -> &'static Path {
    static FOUND: OnceLock<PathBuf> = OnceLock::new();
    FOUND.get_or_init(|| match std::env::var_os("RSOCKET_CAPI_LIB") {
        Some(given) => given.into(),
        None => {
            build_library("rsocket-capi", "librsocket.so", profile_directory().ends_with("release"))
        }
    })
}

fn build_library(package: &str, file: &str, release: bool) -> PathBuf {
    let target = profile_directory().parent().expect("target").to_owned();
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(workspace()).args(["build", "--quiet", "--package", package]);
    cargo.arg("--target-dir").arg(&target);
    if release {
        cargo.arg("--release");
    }
    assert!(cargo.status().expect("cargo runs").success(), "{package} does not build");
    target.join(if release { "release" } else { "debug" }).join(file)
}

/// Compiles `edge/<source>.c` and gives the path of the program or, with `-shared` among `flags`,
/// the library.
///
/// # Panics
/// If it does not compile.
#[must_use]
pub fn compile(source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let directory = profile_directory().join("edge");
    std::fs::create_dir_all(&directory).expect("the build directory is writable");
    let output = directory.join(name);
    // Several tests may want the same program at once: whoever is last replaces it by an equal one.
    let fresh =
        directory.join(format!("{name}.{}.{:?}", std::process::id(), std::thread::current().id()));
    let done = Command::new("cc")
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE", "-pthread"])
        .args(flags)
        .arg("-o")
        .arg(&fresh)
        .arg(here().join("edge").join(source).with_extension("c"))
        .output()
        .expect("cc runs");
    assert!(done.status.success(), "{source}: {}", String::from_utf8_lossy(&done.stderr));
    std::fs::rename(&fresh, &output).expect("the build directory is writable");
    output
}

/// What a program left behind.
#[derive(Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The exit code, or minus the signal.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

/// Runs a command to its end, which must come within `limit`.
///
/// # Panics
/// If it cannot be started, or does not end in time (it is killed then).
pub fn run(command: &mut Command, limit: Duration) -> Outcome {
    use std::os::unix::process::ExitStatusExt;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let out = std::thread::spawn(move || all_of(out));
    let err = std::thread::spawn(move || all_of(err));
    let end = Instant::now() + limit;
    let status = loop {
        match child.try_wait().expect("our own child") {
            Some(status) => break status,
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{command:?} did not end within {limit:?}");
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    Outcome {
        status: status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)),
        stdout: out.join().unwrap_or_default(),
        stderr: err.join().unwrap_or_default(),
    }
}

fn all_of(from: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _ = from.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// A value for `LD_PRELOAD`: libraries in order.
#[must_use]
pub fn preload_list(libraries: &[&Path]) -> OsString {
    let mut list = OsString::new();
    for (i, library) in libraries.iter().enumerate() {
        if i > 0 {
            list.push(" ");
        }
        list.push(library);
    }
    list
}

/// Runs what `make` builds without and with the preload library, and demands the same outcome.
/// Gives the plain one. `before` and `after` are other preloaded libraries, which both runs get.
///
/// # Panics
/// If the two outcomes differ.
pub fn same_plain_and_preloaded(
    make: impl Fn() -> Command,
    library: &Path,
    before: &[&Path],
    after: &[&Path],
    limit: Duration,
) -> Outcome {
    let plain_list: Vec<&Path> = before.iter().chain(after).copied().collect();
    let full_list: Vec<&Path> = before.iter().chain([&library]).chain(after).copied().collect();
    let mut command = make();
    if !plain_list.is_empty() {
        command.env("LD_PRELOAD", preload_list(&plain_list));
    }
    let plain = run(&mut command, limit);
    let preloaded = run(make().env("LD_PRELOAD", preload_list(&full_list)), limit);
    assert_eq!(plain, preloaded, "plain on the left, preloaded on the right");
    plain
}
