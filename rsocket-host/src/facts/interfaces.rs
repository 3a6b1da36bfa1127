//! The addresses of this host. Entry point: [`addresses`].
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// All addresses of the host's interfaces that are not loopback and not link-local; only IPv4 ones,
/// or both for a socket that takes both. Asks the kernel, allocates.
#[must_use]
pub fn addresses(six: bool) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut list: *mut libc::ifaddrs = core::ptr::null_mut();
    // SAFETY: libc writes a list that is freed below, or fails.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return found;
    }
    let mut at = list;
    while !at.is_null() {
        // SAFETY: an entry of the list, which is not freed yet.
        let entry = unsafe { &*at };
        // SAFETY: null or an address of its family, which belongs to the list.
        if let Some(ip) = unsafe { address(entry.ifa_addr) }
            && (six || ip.is_ipv4())
            && !ip.is_loopback()
            && !matches!(ip, IpAddr::V6(v6) if v6.is_unicast_link_local())
        {
            found.push(ip);
        }
        at = entry.ifa_next;
    }
    // SAFETY: from getifaddrs, freed once.
    unsafe { libc::freeifaddrs(list) };
    found
}

/// # Safety
/// Null, or an address whose family says how long it is.
unsafe fn address(at: *const libc::sockaddr) -> Option<IpAddr> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    match i32::from(unsafe { (*at).sa_family }) {
        libc::AF_INET => {
            // SAFETY: of this family.
            let raw = unsafe { at.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(raw.sin_addr.s_addr.to_ne_bytes()).into())
        }
        libc::AF_INET6 => {
            // SAFETY: of this family.
            let raw = unsafe { at.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(raw.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_not_among_them() {
        assert!(addresses(true).iter().all(|ip| !ip.is_loopback()));
        assert!(addresses(false).iter().all(IpAddr::is_ipv4));
    }
}
