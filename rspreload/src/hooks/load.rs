//! `dlopen` and `dlmopen`. What they do is [`crate::ops::load`]'s.

use crate::ops::load as ops;

by_caller! {
    /// `dlopen`, as in its manual page.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlopen => ops::before_dlopen;
    /// `dlmopen`, as in its manual page.
    #[cfg_attr(not(test), unsafe(no_mangle))]
    dlmopen => ops::before_dlmopen;
}
