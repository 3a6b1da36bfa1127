//! The sending end of a direction, whose target table and credits the peer writes
//! (`wire-protocol §5.1`, `§5.6`).
//!
//! Every message lies within an entry that was taken, no byte of one is used twice, and there are
//! never more messages than credits.
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rsocket_core::proto::send_half::SendHalf;
use rsocket_core::wire::sge::Sge;

#[derive(Arbitrary, Debug)]
enum Step {
    Entry { index: u8, addr: u64, rkey: u32, len: u32 },
    Expected { addr: u64, len: u16 },
    Credit(u32),
    More(u8),
    Send(u32),
    Iomap(u16),
}

#[derive(Arbitrary, Debug)]
struct Case {
    credits: u16,
    segments: u32,
    first: (u64, u32, u32),
    steps: Vec<Step>,
}

fuzz_target!(|case: Case| {
    let (addr, rkey, len) = case.first;
    let Ok(mut half) = SendHalf::new(case.credits, Sge { addr, rkey, len }, case.segments) else {
        return;
    };
    let mut bytes = u64::from(len);
    let (mut sent, mut total) = (0_u64, 0);
    let mut limit = u64::from(case.credits);
    for step in case.steps {
        match step {
            Step::Entry { index, addr, rkey, len } => {
                let expected = half.expected_entry();
                if half.on_entry(index.into(), Sge { addr, rkey, len }).is_ok() && len > 0 {
                    assert_eq!(expected, Some(u32::from(index)));
                    bytes += u64::from(len);
                }
            }
            Step::Expected { addr, len } => {
                if let Some(index) = half.expected_entry()
                    && half.on_entry(index, Sge { addr, rkey, len: len.into() }).is_ok()
                {
                    bytes += u64::from(len);
                }
            }
            Step::Credit(data) => {
                let before = half.credits();
                if half.on_credit(data).is_ok() {
                    assert!(half.credits() >= before);
                    limit += u64::from(half.credits() - before);
                }
            }
            Step::More(n) => {
                let data = (limit as u16).wrapping_add(n.into());
                let before = half.credits();
                if half.on_credit(data.into()).is_ok() {
                    limit += u64::from(half.credits() - before);
                }
            }
            Step::Send(wanted) => {
                let room = half.room();
                if let Some(message) = half.next_data(wanted) {
                    assert!(message.target.len <= room.min(wanted) && message.target.len > 0);
                    assert!(message.target.end().is_some());
                    total += u64::from(message.target.len);
                    sent += 1;
                } else {
                    assert!(room == 0 || wanted == 0);
                }
            }
            Step::Iomap(index) => sent += u64::from(half.next_iomap(index).is_some()),
        }
        assert!(total <= bytes && total == half.total(), "{total} of {bytes} bytes");
        assert!(sent <= limit && u64::from(half.credits()) == limit - sent);
    }
});
