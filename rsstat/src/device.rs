//! Which RDMA device an address belongs to: the kernel lists each port's addresses as GIDs.

use std::fs;
use std::net::IpAddr;
use std::path::Path;

/// The name of the device, if there is one.
#[must_use]
pub fn of(address: IpAddr) -> Option<String> {
    let wanted = match address {
        IpAddr::V4(a) => a.to_ipv6_mapped(),
        IpAddr::V6(a) => a,
    };
    let devices = fs::read_dir("/sys/class/infiniband").ok()?;
    devices
        .flatten()
        .find(|d| has(&d.path(), wanted))
        .and_then(|d| d.file_name().into_string().ok())
}

fn has(device: &Path, wanted: std::net::Ipv6Addr) -> bool {
    let below = |p: &Path| fs::read_dir(p).into_iter().flatten().flatten().map(|e| e.path());
    below(&device.join("ports")).any(|port| {
        below(&port.join("gids"))
            .any(|gid| fs::read_to_string(gid).is_ok_and(|text| text.trim().parse() == Ok(wanted)))
    })
}
