//! What a peer says while connecting (`wire-protocol §2.2`): parsed, said again, and made a
//! connection of.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rsocket_core::proto::RecvParams;
use rsocket_core::proto::control::Mode;
use rsocket_core::proto::stream::{Stream, StreamParams};
use rsocket_core::wire::private_data::PrivateData;
use rsocket_core::wire::sge::Sge;

fuzz_target!(|bytes: &[u8]| {
    let _ = PrivateData::parse_ib_request(bytes);
    let Ok(said) = PrivateData::parse(bytes) else { return };
    assert!(said.credits > 0 && said.table.len >= 2 && said.buffer.len > 0);
    // What we would say in its place means the same.
    assert_eq!(PrivateData::parse(&said.to_bytes()).as_ref(), Ok(&said));
    // No address that is written to lies around the end of memory.
    for index in [0, 1, said.table.len - 1] {
        let at = said.entry_addr(index).expect("checked by parse");
        assert!(at.checked_add(Sge::SIZE as u64).is_some());
    }
    assert_eq!(said.entry_addr(said.table.len), None);
    if let Some(last) = said.iomap.and_then(|n| n.checked_sub(1)) {
        assert!(said.iomap_addr(last).is_some());
        assert_eq!(said.iomap_addr(last + 1), None);
    }
    let recv = RecvParams { queue: 8, segments: 2, large: 4096, small: 0 };
    let table = Sge { addr: 0x1000, rkey: 1, len: 2 };
    let buffer = Sge { addr: 0x10_0000, rkey: 2, len: 8192 };
    for mode in [Mode::Immediate, Mode::Message] {
        let params = StreamParams { mode, send_queue: 16, recv, buffer, table, iomaps: 4 };
        let mut stream = Stream::new(&params, &said).expect("what parse takes can be connected to");
        assert!(stream.room() > 0);
        while stream.next_control(true).is_some() {}
    }
});
