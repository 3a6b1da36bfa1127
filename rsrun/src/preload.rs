//! The order in `LD_PRELOAD`. What was there stays. A sanitizer's run-time library must come before
//! everything. Ours comes before what else is there, so that it is what the program calls.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use rsocket_edge::libdir;

/// Beginnings of the names of libraries that must be first.
const FIRST: [&[u8]; 5] =
    [b"libasan.so", b"libtsan.so", b"libubsan.so", b"liblsan.so", b"libclang_rt."];

/// The library's path as it goes into `LD_PRELOAD`: with `$LIB`, where the linker then finds the
/// same file. Programs of another C library (musl) find none there, and start; with the plain path
/// they would not.
#[must_use]
pub fn portable(library: &Path) -> OsString {
    let path = library.as_os_str().as_bytes();
    match libdir::directory()
        .filter(|d| libdir::is_right(d))
        .and_then(|d| libdir::with_variable(path, d))
    {
        Some([before, after]) => OsString::from_vec([before, b"$LIB", after].concat()),
        None => library.into(),
    }
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|b| *b == b'/').next().unwrap_or(path)
}

fn must_be_first(path: &[u8]) -> bool {
    FIRST.iter().any(|name| file_name(path).starts_with(name))
}

/// The new value. `runtime` is a sanitizer's library that the program itself is linked with.
///
/// # Errors
/// If the library's path has a character that separates libraries.
pub fn order(before: &OsStr, library: &Path, runtime: Option<&OsStr>) -> Result<OsString, String> {
    let ours = library.as_os_str().as_bytes();
    let separates = |b: &u8| matches!(b, b' ' | b':');
    if ours.iter().any(separates) {
        return Err(format!(
            "{}: LD_PRELOAD cannot hold a path with a blank or a colon",
            library.display()
        ));
    }
    let there: Vec<&[u8]> = before.as_bytes().split(separates).filter(|w| !w.is_empty()).collect();
    let mut list: Vec<&[u8]> = Vec::new();
    if let Some(runtime) = runtime.map(OsStr::as_bytes)
        && !there.iter().any(|w| file_name(w) == file_name(runtime))
    {
        list.push(runtime);
    }
    list.extend(there.iter().filter(|w| must_be_first(w)));
    list.push(ours);
    list.extend(there.iter().filter(|w| !must_be_first(w) && file_name(w) != file_name(ours)));
    Ok(OsString::from_vec(list.join(&b' ')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(before: &str, runtime: Option<&str>) -> String {
        order(before.as_ref(), Path::new("/l/librspreload.so"), runtime.map(OsStr::new))
            .unwrap()
            .into_string()
            .unwrap()
    }

    #[test]
    fn sanitizers_first_then_ours_then_the_others() {
        assert_eq!(ordered("", None), "/l/librspreload.so");
        assert_eq!(
            ordered("a.so:/x/libasan.so.8 b.so", None),
            "/x/libasan.so.8 /l/librspreload.so a.so b.so"
        );
        assert_eq!(ordered("/old/librspreload.so  a.so", None), "/l/librspreload.so a.so");
        assert_eq!(ordered("a.so", Some("libtsan.so.2")), "libtsan.so.2 /l/librspreload.so a.so");
        assert_eq!(
            ordered("/x/libasan.so.8", Some("libasan.so.8")),
            "/x/libasan.so.8 /l/librspreload.so"
        );
        assert!(order("".as_ref(), Path::new("/a b/l.so"), None).is_err());
    }
}
