//! Works on a bridge, and then tells the program what changed.
//!
//! Must not know what did. Entry point: [`with_news`].

use super::connection::Connection;
use super::table::Bridge;
use crate::channel::link;
use crate::conn::{fork_group, slot::SlotId};

/// Something changed that is not in the channel: the threads that wait look again.
pub(super) fn news(id: SlotId) {
    let Some(s) = fork_group::slot(id) else { return };
    s.next_epoch();
    crate::conn::listeners::mode_changed(id);
    if let Some(ends) = link::ends(s) {
        // As the other side would: the program's own sleepers.
        ends.wake_own();
    }
}

/// Works on a bridge, and then tells the program what changed, with no lock held: it may want to
/// know at once.
pub fn with_news<R>(bridge: &Bridge, f: impl FnOnce(&mut Option<Connection>) -> R) -> Option<R> {
    let (r, told) = bridge.with(|slot| {
        let r = f(slot);
        (r, slot.as_mut().and_then(Connection::take_news))
    })?;
    if let Some(id) = told {
        news(id);
    }
    Some(r)
}
