//! Frames of a datagram queue pair and packets of a UDP socket (`wire-protocol §9`): parsed, and
//! said again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rsocket_core::wire::datagram::{UdHeader, UdpHeader};

fuzz_target!(|bytes: &[u8]| {
    if let Ok((header, data)) = UdHeader::parse(bytes) {
        let said = header.to_bytes();
        assert_eq!(said.as_slice().len() + data.len(), bytes.len());
        assert_eq!(said.as_slice(), &bytes[..said.as_slice().len()]);
    }
    if let Ok((header, data)) = UdpHeader::parse(bytes) {
        let said = header.to_bytes();
        assert_eq!(said.as_slice().len() + data.len(), bytes.len());
        assert_eq!(UdpHeader::parse(said.as_slice()), Ok((header, &[][..])));
    }
});
