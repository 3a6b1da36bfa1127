//! The directory in which processes of one user leave files for each other and for `rsstat`: one
//! that no other user can read, write to, or have prepared.
//!
//! Must not know what lies in it. Entry point: [`find`], a few system calls.

use core::fmt::Write;
use std::os::fd::OwnedFd;

use rsocket_stats::layout::PLACES;

use crate::environment::variable;
use crate::sys::files::{self, For};
use crate::sys::text::Text;
use crate::sys::{discard, identity};

/// The longest path of a file in it, in bytes.
pub(crate) const PATH_MAX: usize = 192;

/// A path in it.
pub(crate) type Path = Text<PATH_MAX>;

/// Calls `f` with the first directory that will do, which is made if need be, and its path; then
/// with others, until `f` says something.
pub(crate) fn find<R>(mut f: impl FnMut(&OwnedFd, &mut Path) -> Option<R>) -> Option<R> {
    let uid = identity::user();
    let runtime = variable(c"XDG_RUNTIME_DIR").map(|v| v.to_bytes()).filter(|v| is_own(v, uid));
    let in_runtime = runtime.and_then(|r| {
        let mut path = Path::new();
        path.push(r);
        path.push(b"/rsocket");
        in_directory(path, uid, &mut f)
    });
    in_runtime.or_else(|| {
        PLACES.iter().find_map(|(before, after)| {
            let mut path = Path::new();
            let _ = write!(path, "{before}{uid}{after}");
            in_directory(path, uid, &mut f)
        })
    })
}

/// Whether a directory that a variable names is one that no other user can have prepared.
fn is_own(directory: &[u8], uid: u32) -> bool {
    directory.starts_with(b"/") && files::status(directory).is_ok_and(|st| st.is_private_to(uid))
}

/// Calls `f` with a directory of the user's own, making that if need be. `None`, and no call, where
/// another user could have a hand in it.
fn in_directory<R>(
    mut path: Path,
    uid: u32,
    f: &mut impl FnMut(&OwnedFd, &mut Path) -> Option<R>,
) -> Option<R> {
    if path.cut {
        return None;
    }
    // Whatever stands there is looked at below.
    let _ = files::make_directory(path.as_bytes());
    let dir = files::open(path.as_bytes(), For::OwnListing).ok()?;
    let ours = files::status_of(&dir).is_ok_and(|st| st.is_private_to(uid));
    let found = if ours { f(&dir, &mut path) } else { None };
    discard(dir);
    found
}
