//! The `call!` macro: how a function of rsocket(7) is defined.

/// Defines and exports functions. The body runs under the contract of the libc function whose name
/// it has without the r, which the C caller upholds. Nothing with a destructor is alive where it
/// sleeps: a thread may be cancelled there, and unwinds through it.
macro_rules! call {
    ($($(#[$meta:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) -> $ret:ty $body:block)+) => {$(
        $(#[$meta])*
        #[doc = concat!("`", stringify!($name), "`, as in rsocket(7).")]
        ///
        /// # Safety
        /// The contract of the libc function of this name without the r.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        // Some bodies do nothing with a pointer.
        #[allow(unused_unsafe)]
        pub(crate) unsafe extern "C-unwind" fn $name($($arg: $type),*) -> $ret {
            // SAFETY: whatever the body does with the arguments, the contract above allows it.
            rsocket_edge::edge::leaving_errno(|| unsafe { $body })
        }
    )+};
}
