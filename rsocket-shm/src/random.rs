//! Random numbers from the kernel, for names that no stranger can guess. Nothing is cached.

use rsocket_host::failure::Failure;

/// 128 random bits.
///
/// # Errors
/// What the kernel says; `EAGAIN` when it gave less than asked for.
pub fn bits() -> Result<u128, Failure> {
    let mut bytes = [0_u8; 16];
    // The raw call: the C library's function of this name is a cancellation point.
    // SAFETY: the buffer is valid for its length, and the call writes no more.
    let n = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    match usize::try_from(n) {
        Ok(n) if n == bytes.len() => Ok(u128::from_ne_bytes(bytes)),
        Ok(_) => Err(Failure::Blocked),
        Err(_) => Err(Failure::last()),
    }
}
