//! Where the library is: named, beside rsrun itself (a build directory), or installed.

use std::path::{Path, PathBuf};

/// What is preloaded for unmodified programs, and for those that call rsocket(7).
const NAMES: [&str; 2] = ["librspreload.so", "librsocket.so"];

/// Where they are installed, below a directory of libraries. In the second, on Debian, lie
/// rdma-core's of the same name: so the first is the one of our package.
const SUBDIRECTORIES: [&str; 2] = ["rsocket-rs", "rsocket"];

/// The library to preload.
///
/// # Errors
/// Why there is none, for people.
pub fn find(named: Option<&Path>, for_rsocket: bool) -> Result<PathBuf, String> {
    if let Some(path) = named {
        let whole = path.canonicalize().map_err(|e| format!("{}: {e}", path.display()))?;
        return Ok(whole);
    }
    let [preload, rsocket] = NAMES;
    let name = if for_rsocket { rsocket } else { preload };
    let own = std::env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
    let places = candidates(&own, std::env::consts::ARCH);
    places.iter().map(|d| d.join(name)).find(|p| p.is_file()).ok_or_else(|| {
        format!(
            "{name} is neither beside {} nor where it is installed; use --library",
            own.display()
        )
    })
}

/// Directories in which to look, for an rsrun at this path.
fn candidates(own: &Path, arch: &str) -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> = own.parent().map(Path::to_owned).into_iter().collect();
    let triplet = format!("{arch}-linux-gnu");
    let prefix = own.parent().and_then(Path::parent);
    for prefix in prefix.into_iter().chain([Path::new("/usr/local"), Path::new("/usr")]) {
        for lib in ["lib", "lib64", &format!("lib/{triplet}")] {
            places.extend(SUBDIRECTORIES.iter().map(|sub| prefix.join(lib).join(sub)));
        }
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beside_then_in_the_prefix() {
        let places = candidates(Path::new("/opt/rs/bin/rsrun"), "x86_64");
        let want = [
            "/opt/rs/bin",
            "/opt/rs/lib/rsocket-rs",
            "/opt/rs/lib/rsocket",
            "/opt/rs/lib64/rsocket-rs",
        ];
        assert!(places.iter().zip(want).all(|(p, w)| p == Path::new(w)));
        assert!(places.contains(&PathBuf::from("/opt/rs/lib/x86_64-linux-gnu/rsocket")));
        assert!(places.contains(&PathBuf::from("/usr/lib/x86_64-linux-gnu/rsocket")));
    }

    #[test]
    fn a_named_one_must_be_there() {
        assert!(find(Some(Path::new("/nonexistent/x.so")), false).is_err());
    }
}
