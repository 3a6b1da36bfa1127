//! The memory that a peer on the same host shares with us, written by it in any way at any time.
//!
//! Whatever the peer does, every call of the program's comes back and gives no more than was asked
//! for. None touches anything outside (the sanitizer and the kernel see to that).
#![no_main]

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use rsocket_core::fuzzing::{CHANNEL, Victim};

#[derive(Arbitrary, Debug)]
enum Step {
    /// Anywhere.
    Scribble(u32, Vec<u8>),
    /// In the heads, where words, entries and marks are.
    Head(bool, u16, [u8; 8]),
    Publish(u8, u32),
    Credit(u8, u32),
    Send(u16),
    SendMuch(u32),
    Receive(u16, bool),
    ReceiveMuch(u32),
    Place(u16, i64),
    Look,
    Shut,
    HangUp,
}

fuzz_target!(|steps: Vec<Step>| {
    let mut victim = Victim::new();
    let (mut published, mut credited) = (0_u32, 0_u32);
    for step in steps {
        match step {
            Step::Scribble(at, bytes) => victim.scribble(at as usize % CHANNEL, &bytes),
            Step::Head(second, at, bytes) => {
                victim.scribble(if second { CHANNEL / 2 } else { 0 } + usize::from(at) / 2, &bytes);
            }
            Step::Publish(skip, word) => {
                published = published.wrapping_add(u32::from(skip / 64));
                victim.publish(published, word);
                published = published.wrapping_add(1);
            }
            Step::Credit(skip, word) => {
                credited = credited.wrapping_add(u32::from(skip / 64));
                victim.credit(credited, word);
                credited = credited.wrapping_add(1);
            }
            Step::Send(n) => drop(victim.send(n.into())),
            Step::SendMuch(n) => drop(victim.send(n as usize % (4 << 20))),
            Step::Receive(n, peek) => drop(victim.receive(n.into(), peek)),
            Step::ReceiveMuch(n) => drop(victim.receive(n as usize % (4 << 20), false)),
            Step::Place(n, offset) => drop(victim.place(n.into(), offset)),
            Step::Look => victim.look(),
            Step::Shut => victim.shut(),
            Step::HangUp => victim.hang_up(),
        }
    }
});
