//! What a receiver makes of what arrives, and of lies.

use super::*;

/// Upstream's defaults: two halves of 65536 bytes, 384 credits.
const UPSTREAM: RecvParams = RecvParams { queue: 384, segments: 2, large: 65536, small: 0 };
const SMALL: RecvParams = RecvParams { queue: 64, segments: 4, large: 65536, small: 1000 };

fn take(half: &mut RecvHalf, len: u32) {
    half.on_data(len).unwrap();
    assert_eq!(half.next_read().len, len);
    half.on_read(len);
}

#[test]
fn the_receiver_of_section_5_7() {
    let mut half = RecvHalf::new(&UPSTREAM);
    assert_eq!(RecvHalf::buffer_len(&UPSTREAM), 131_072);
    assert_eq!(half.first(), Region { offset: 0, len: 65536 });
    let one = Region { offset: 65536, len: 65536 };
    assert_eq!(
        half.next_update(false),
        Some(Update { entry: Some((1, one)), word: Word(0x8000_0180) })
    );
    assert_eq!(half.next_update(false), None);
    for len in [5, 5, 2048, 4096, 8192, 16384, 32768, 2038, 65536] {
        take(&mut half, len);
    }
    let word = Word(0x8000_0189);
    assert_eq!(half.next_update(false), Some(Update { entry: Some((0, half.first())), word }));
    assert_eq!(half.next_update(false), Some(Update { entry: Some((1, one)), word }));
    assert_eq!(half.next_update(false), None);
    assert_eq!(half.total(), 131_072);
}

#[test]
fn messages_follow_each_other_in_a_segment() {
    let mut half = RecvHalf::new(&UPSTREAM);
    assert_eq!(half.behind(), 65536);
    half.on_data(5).unwrap();
    assert_eq!((half.next_read(), half.behind()), (Region { offset: 0, len: 5 }, 65531));
    half.on_read(3);
    assert_eq!((half.next_read(), half.behind()), (Region { offset: 3, len: 2 }, 65531));
    half.on_read(2);
    half.on_data(65531).unwrap();
    assert_eq!((half.next_read().offset, half.behind()), (5, 0));
    half.on_read(65531);
    assert_eq!(half.behind(), 0, "no other segment is promised yet");
    half.next_update(false).unwrap();
    assert_eq!(half.behind(), 65536);
}

#[test]
fn what_is_allowed_is_what_the_sender_has_room_for() {
    let mut half = RecvHalf::new(&UPSTREAM);
    assert_eq!((half.allowed(), half.promised()), (384, 65536), "one segment by the private data");
    while half.next_update(false).is_some() {}
    assert_eq!((half.allowed(), half.promised()), (384, 131_072));
    half.on_data(5).unwrap();
    half.on_read(3);
    assert_eq!(
        (half.allowed(), half.promised()),
        (384, 131_069),
        "a message is read to its end or not at all"
    );
    half.on_read(2);
    assert_eq!((half.allowed(), half.promised()), (383, 131_067));
    take(&mut half, 65531);
    assert_eq!(
        (half.allowed(), half.promised()),
        (382, 65536),
        "the segment is not promised again yet"
    );
    while half.next_update(false).is_some() {}
    assert_eq!((half.allowed(), half.promised()), (384, 131_072));
}

#[test]
fn a_copy_follows_what_is_read() {
    let mut half = RecvHalf::new(&SMALL);
    for len in (1..=1000).cycle().take(3000) {
        while half.next_update(false).is_some() {}
        let mut behind = half;
        let room = half.current().len - half.read;
        take(&mut half, len.min(room));
        behind.follow_reading(&half);
        assert_eq!(behind, half);
        if half.on_data(1).is_ok() {
            behind.follow_reading(&half);
            assert_eq!(behind, half);
            half.on_read(1);
        }
    }
}

#[test]
fn owes_what_an_update_would_say() {
    let mut half = RecvHalf::new(&SMALL);
    for len in (1..=1000).cycle().take(5000) {
        while half.owes() {
            assert!(half.next_update(false).is_some());
        }
        assert_eq!(half.next_update(false), None);
        let room = half.current().len - half.read;
        take(&mut half, len.min(room));
    }
}

#[test]
fn credit_only_example_of_section_5_7() {
    let mut half = RecvHalf::new(&RecvParams { queue: 16, ..UPSTREAM });
    assert!(half.next_update(false).is_some());
    for _ in 0..7 {
        take(&mut half, 1);
        assert_eq!(half.next_update(false), None);
    }
    take(&mut half, 1);
    assert_eq!(half.next_update(false), Some(Update { entry: None, word: Word(0x8000_0018) }));
    assert_eq!(half.next_update(false), None);
}

#[test]
fn a_segment_is_promised_again_only_when_it_was_read() {
    let mut half = RecvHalf::new(&UPSTREAM);
    half.next_update(false).unwrap();
    half.on_data(65536).unwrap();
    half.on_read(65535);
    assert_eq!(half.next_update(false), None);
    assert_eq!(half.next_read(), Region { offset: 65535, len: 1 });
    half.on_read(u32::MAX);
    assert_eq!(half.next_update(false).unwrap().entry, Some((0, half.first())));
    assert_eq!(half.next_update(false), None);
}

#[test]
fn small_segments_grow() {
    assert_eq!(RecvHalf::buffer_len(&SMALL), 4096 + 4 * 65536);
    let mut half = RecvHalf::new(&SMALL);
    assert_eq!(half.first(), Region { offset: 0, len: 1000 });
    let two = half.next_update(false).unwrap().entry;
    assert_eq!(two, Some((1, Region { offset: 1000, len: 1000 })));
    let large = |i| Some((i, Region { offset: 4096 + i * 65536, len: 65536 }));
    assert_eq!(half.next_update(true).unwrap().entry, large(2));
    assert_eq!(half.next_update(false).unwrap().entry, large(3), "it does not shrink");
    assert_eq!(half.next_update(false), None);
    take(&mut half, 1000);
    assert_eq!(half.next_update(false).unwrap().entry, large(0));
    half.on_data(1001).unwrap_err();
    take(&mut half, 1000);
    take(&mut half, 65536);
}

#[test]
fn a_longer_table_goes_round_by_itself() {
    let mut half = RecvHalf::with_table(&UPSTREAM, 3);
    let entry = |half: &mut RecvHalf| {
        half.next_update(false).and_then(|u| u.entry).map(|(i, r)| (i, r.offset))
    };
    assert_eq!(entry(&mut half), Some((1, 65536)));
    assert_eq!(entry(&mut half), None);
    for expected in [(2, 0), (0, 65536), (1, 0), (2, 65536)] {
        take(&mut half, 65536);
        assert_eq!(entry(&mut half), Some(expected));
    }
    let half = RecvHalf::with_table(&SMALL, 2);
    assert_eq!((half.segments, half.table), (2, 2));
}

#[test]
fn every_rule_is_checked_and_changes_nothing() {
    let refuses = |half: &RecvHalf, len, violation| {
        let mut copy = *half;
        assert_eq!(copy.on_data(len), Err(violation));
        assert_eq!(copy, *half);
    };
    let mut half = RecvHalf::new(&RecvParams { queue: 2, ..UPSTREAM });
    refuses(&half, 0, Violation::EmptyData);
    refuses(&half, 65537, Violation::DataBounds);
    refuses(&half, u32::MAX, Violation::DataBounds);
    half.on_data(65535).unwrap();
    refuses(&half, 1, Violation::Unread);
    half.on_read(65535);
    refuses(&half, 2, Violation::DataBounds);
    take(&mut half, 1);
    refuses(&half, 1, Violation::CreditOverrun);
    assert_eq!(half.on_iomap(), Err(Violation::CreditOverrun));
    let mut starved = RecvHalf::new(&UPSTREAM);
    take(&mut starved, 65536);
    refuses(&starved, 1, Violation::NoBuffer);
    starved.on_shutdown();
    refuses(&starved, 1, Violation::AfterEnd);
    assert_eq!(starved.next_update(false), None, "nothing is left to promise");
}

#[test]
fn the_end_comes_after_what_was_taken_up() {
    let mut half = RecvHalf::new(&UPSTREAM);
    half.on_data(3).unwrap();
    half.on_shutdown();
    assert!(!half.ended());
    half.on_read(3);
    assert!(half.ended());
}

#[test]
fn iomap_words_give_their_credit_back() {
    let mut half = RecvHalf::new(&RecvParams { queue: 4, ..UPSTREAM });
    half.next_update(false).unwrap();
    half.on_iomap().unwrap();
    half.on_iomap().unwrap();
    assert_eq!(half.next_update(false).unwrap().word, Word(0x8000_0006));
}

#[test]
fn credits_survive_the_wrap_for_every_queue() {
    for queue in [1u16, 2, 3, 384, 65534, 65535] {
        let mut half = RecvHalf::new(&RecvParams { queue, segments: 2, large: 1 << 20, small: 0 });
        while half.next_update(false).is_some() {}
        // Miri is slow, and looks at memory, not at sums.
        for _ in 0..if cfg!(miri) { 500 } else { 200_000u32 } {
            take(&mut half, 1);
            while half.next_update(false).is_some() {}
        }
    }
}

#[test]
fn no_parameters_overflow() {
    for segments in [0, 1, 2, 8, 9, u32::MAX] {
        for large in [0, 1, 65536, 1 << 31, u32::MAX] {
            for small in [0, 1, 4096, u32::MAX] {
                let p = RecvParams { queue: 0, segments, large, small };
                let size = RecvHalf::buffer_len(&p);
                let mut half = RecvHalf::new(&p);
                let mut grow = false;
                for _ in 0..20 {
                    while let Some(update) = half.next_update(grow) {
                        let (_, region) = update.entry.unwrap_or_default();
                        assert!(region.offset.checked_add(region.len).unwrap() <= size);
                    }
                    let len = half.current().len;
                    take(&mut half, len);
                    grow = true;
                }
            }
        }
    }
}
