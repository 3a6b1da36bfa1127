//! What poll(2) and epoll(7) tell of a descriptor.
//!
//! The bits alone: must not know who asks, nor what is asked. Entry point: [`Events`].
#![forbid(unsafe_code)]

bitflags::bitflags! {
    /// What a socket is ready for, in the bits of poll(2) and epoll(7), which are the same.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Events: u32 {
        /// Something to receive: bytes, the end of the stream, an error.
        const IN = 1;
        /// Urgent data; the kernel's alone.
        const PRI = 2;
        /// Room to send, or an error that a send would report.
        const OUT = 4;
        /// An error is pending.
        const ERR = 8;
        /// Both directions have ended.
        const HUP = 0x10;
        /// The peer sends no more.
        const RDHUP = 0x2000;
    }
}
