//! Control data of a message (cmsg(3)): the descriptors in it, and `TCP_INQ`.
//!
//! Every look stays inside what the header says. Must not know who asks. Entry points, all of them
//! [`Message`]'s: [`Message::each_descriptor`], [`Message::tell_unread`],
//! [`Message::correct_unread`].

use core::ffi::{c_int, c_uint};

use libc::{cmsghdr, msghdr};
use rsocket_host::probe::readable;

use crate::message::Message;

/// The bytes of a header and an integer behind it, and the same with what follows up to the next
/// one.
fn integer_in() -> (usize, usize) {
    let size = size_of::<c_int>() as c_uint;
    // SAFETY: these only count.
    unsafe { (libc::CMSG_LEN(size) as usize, libc::CMSG_SPACE(size) as usize) }
}

/// Calls `f` for each part of the control data: its header, where its data are, and how many bytes
/// of them lie before the end. The data can be read.
fn each(message: &msghdr, mut f: impl FnMut(cmsghdr, *mut u8, usize)) {
    if message.msg_control.is_null() {
        return;
    }
    let end = message.msg_control as usize + message.msg_controllen;
    // SAFETY: the bytes are there up to `end`, by the promise of Message::new(). These functions
    // give null, or a header that lies before it.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(message);
        while !at.is_null() {
            let (header, data) = (at.read_unaligned(), libc::CMSG_DATA(at));
            let stop = (at as usize).saturating_add(header.cmsg_len).min(end);
            f(header, data, stop.saturating_sub(data as usize));
            at = libc::CMSG_NXTHDR(message, at);
        }
    }
}

impl Message<'_> {
    /// Calls `f` for each descriptor that it carries (`SCM_RIGHTS`).
    pub fn each_descriptor(self, mut f: impl FnMut(c_int)) {
        let Some(message) = self.header() else { return };
        if !readable(message.msg_control, message.msg_controllen) {
            return;
        }
        each(&message, |header, data, bytes| {
            if (header.cmsg_level, header.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                for i in 0..bytes / size_of::<c_int>() {
                    // SAFETY: inside the data.
                    f(unsafe { data.cast::<c_int>().add(i).read_unaligned() });
                }
            }
        });
    }

    /// Puts `TCP_INQ`'s control message into a message without any, or as much of it as there is
    /// `room` for, as the kernel does.
    pub fn tell_unread(self, room: usize, unread: c_int) {
        let Some(message) = self.header() else { return };
        let (whole, space) = integer_in();
        let cut = message.msg_flags | libc::MSG_CTRUNC;
        if room >= size_of::<cmsghdr>() && !message.msg_control.is_null() {
            let length = whole.min(room);
            // SAFETY: there is room for the header, and for the data up to `length`.
            unsafe {
                let header = message.msg_control.cast::<cmsghdr>();
                let mut said: cmsghdr = core::mem::zeroed();
                said.cmsg_len = length as _;
                said.cmsg_level = libc::IPPROTO_TCP;
                said.cmsg_type = libc::TCP_INQ;
                header.write_unaligned(said);
                let bytes = unread.to_ne_bytes();
                core::ptr::copy_nonoverlapping(
                    bytes.as_ptr(),
                    libc::CMSG_DATA(header),
                    length.saturating_sub(size_of::<cmsghdr>()).min(bytes.len()),
                );
            }
            self.say(space.min(room), if length < whole { cut } else { message.msg_flags });
        } else {
            self.say(0, cut);
        }
    }

    /// Says another number where the kernel has said `TCP_INQ`.
    pub fn correct_unread(self, unread: c_int) {
        let Some(message) = self.header() else { return };
        each(&message, |header, data, bytes| {
            if (header.cmsg_level, header.cmsg_type) == (libc::IPPROTO_TCP, libc::TCP_INQ)
                && bytes >= size_of::<c_int>()
            {
                // SAFETY: there is room for it.
                unsafe { data.cast::<c_int>().write_unaligned(unread) };
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OTHER: u64 = 0xaaaa_aaaa_aaaa_aaaa;

    /// The header after `f`, with so much control data, and its bytes.
    fn with(room: usize, f: impl FnOnce(Message)) -> (msghdr, [u64; 4]) {
        let mut control = [OTHER; 4];
        // SAFETY: integers and pointers, for which zero is a value.
        let mut message: msghdr = unsafe { core::mem::zeroed() };
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = room as _;
        // SAFETY: the buffer has 32 bytes, and `room` is no more.
        f(unsafe { Message::new(&raw mut message) });
        (message, control)
    }

    fn told(room: usize) -> (msghdr, [u64; 4]) {
        with(room, |message| {
            assert_eq!(message.finish(0), room);
            message.tell_unread(room, 77);
        })
    }

    #[test]
    fn what_can_be_read_is_told_in_the_room_there_is() {
        let (message, control) = told(32);
        assert_eq!((message.msg_controllen, message.msg_flags), (24, 0));
        assert_eq!((control[0], control[2] as u32), (20, 77));
        // Room for the header alone: it is cut, and says so; nothing beyond the room is written.
        let (message, control) = told(16);
        assert_eq!((message.msg_controllen, message.msg_flags), (16, libc::MSG_CTRUNC));
        assert_eq!((control[0], control[2]), (16, OTHER));
        // Not even that.
        let (message, control) = told(15);
        assert_eq!((message.msg_controllen, message.msg_flags), (0, libc::MSG_CTRUNC));
        assert_eq!(control[0], OTHER);
    }

    #[test]
    fn another_number_is_said_where_one_was() {
        let (_, control) = with(32, |message| {
            message.tell_unread(message.finish(0), 77);
            message.correct_unread(78);
            message.each_descriptor(|fd| panic!("{fd} is none"));
        });
        assert_eq!(control[2] as u32, 78);
    }

    #[test]
    fn descriptors_end_with_the_control_data() {
        let (_, _) = with(24, |message| {
            let header = message.header().unwrap();
            // SAFETY: control data of 24 bytes: a header that claims more, and two numbers.
            unsafe {
                let at = header.msg_control.cast::<cmsghdr>();
                let mut said: cmsghdr = core::mem::zeroed();
                said.cmsg_len = 900;
                (said.cmsg_level, said.cmsg_type) = (libc::SOL_SOCKET, libc::SCM_RIGHTS);
                at.write_unaligned(said);
                at.add(1).cast::<[c_int; 2]>().write_unaligned([5, 6]);
            }
            let mut found = Vec::new();
            message.each_descriptor(|fd| found.push(fd));
            assert_eq!(found, [5, 6]);
            message.say(0, 0);
            message.each_descriptor(|fd| panic!("{fd} is none"));
        });
    }
}
