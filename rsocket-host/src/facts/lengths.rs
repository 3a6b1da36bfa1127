//! Where x86-64 instructions begin and end, told from their bytes.
//!
//! Only lengths: prefixes, opcode, operand bytes, immediates (Intel's manual, volume 2, chapter 2
//! and the opcode maps of appendix A). Must not know what an instruction does, nor files. Entry
//! point: [`begins_at`].

/// How far before a place the paths begin, in bytes, and how many of them there are. Paths that
/// began in the middle of an instruction have nearly always met the others by then.
pub(crate) const BACK: usize = 64;
const PATHS: usize = 24;

/// Whether an instruction begins at `at`, rather than before it: what most of the paths that lead
/// there say.
///
/// Nothing says where the first instruction of a piece is, so that paths begin at several places.
/// Where none of them holds instructions only, the answer is yes.
pub(crate) fn begins_at(text: &[u8], at: usize) -> bool {
    let first = at.saturating_sub(BACK);
    let (mut met, mut passed) = (0, 0);
    for start in first..at.min(first + PATHS) {
        match walk(text, start, at) {
            Some(true) => met += 1,
            Some(false) => passed += 1,
            None => {}
        }
    }
    met >= passed
}

/// Whether a path from `start` comes to `at`. `None`: it leads through bytes that are no
/// instruction.
fn walk(text: &[u8], start: usize, at: usize) -> Option<bool> {
    let mut place = start;
    while place < at {
        place += length(text.get(place..)?)?;
    }
    Some(place == at)
}

/// What follows an opcode.
#[derive(Clone, Copy)]
struct Rest {
    /// A byte that names operands, and what it calls for.
    operands: bool,
    /// Bytes of a value.
    value: usize,
}

const ALONE: Rest = Rest { operands: false, value: 0 };
const OPERANDS: Rest = Rest { operands: true, value: 0 };

const fn value(value: usize) -> Rest {
    Rest { operands: false, value }
}

const fn operands_and(value: usize) -> Rest {
    Rest { operands: true, value }
}

/// How wide values are, by the prefixes.
#[derive(Clone, Copy)]
struct Widths {
    /// Of a value that is as wide as the operand, though never above 4.
    value: usize,
    /// Of what `mov` puts into a register.
    whole: usize,
    /// Of an address.
    address: usize,
}

/// Bytes of the instruction with which `text` begins. `None`: there is no such instruction, or it
/// is cut off.
pub(crate) fn length(text: &[u8]) -> Option<usize> {
    let (mut narrow, mut short, mut at) = (false, false, 0);
    let mut byte = *text.first()?;
    while matches!(byte, 0x66 | 0x67 | 0xf2 | 0xf3 | 0xf0 | 0x2e | 0x36 | 0x3e | 0x26 | 0x64 | 0x65)
    {
        narrow |= byte == 0x66;
        short |= byte == 0x67;
        at += 1;
        byte = *text.get(at)?;
    }
    let mut wide = false;
    if byte & 0xf0 == 0x40 {
        wide = byte & 8 != 0;
        at += 1;
        byte = *text.get(at)?;
    }
    let widths = Widths {
        value: if narrow && !wide { 2 } else { 4 },
        whole: if wide {
            8
        } else if narrow {
            2
        } else {
            4
        },
        address: if short { 4 } else { 8 },
    };
    let tail = text.get(at + 1..)?;
    let (more, rest) = match byte {
        0x0f => second_map(tail)?,
        0x62 | 0xc4 | 0xc5 => vector(byte, tail)?,
        0x8f if *tail.first()? & 0x1f >= 8 => vector(byte, tail)?,
        _ => (0, first_map(byte, tail, widths)?),
    };
    let mut total = at + 1 + more + rest.value;
    if rest.operands {
        total += operands(tail.get(more..)?)?;
    }
    (total <= 15 && total <= text.len()).then_some(total)
}

/// Bytes of the operands' description: the byte itself, its scale and index, its distance.
fn operands(text: &[u8]) -> Option<usize> {
    let byte = *text.first()?;
    let (kind, register) = (byte >> 6, byte & 7);
    if kind == 3 {
        return Some(1);
    }
    let scaled = register == 4;
    let base = if scaled { *text.get(1)? & 7 } else { register };
    let distance = match kind {
        0 if base == 5 => 4,
        0 => 0,
        1 => 1,
        _ => 4,
    };
    Some(1 + usize::from(scaled) + distance)
}

/// The map of one-byte opcodes.
fn first_map(opcode: u8, tail: &[u8], widths: Widths) -> Option<Rest> {
    Some(match opcode {
        0x00..=0x3f => match opcode & 7 {
            0..=3 => OPERANDS,
            4 => value(1),
            5 => value(widths.value),
            _ => return None,
        },
        0x50..=0x5f | 0x6c..=0x6f | 0x90..=0x99 | 0x9b..=0x9f | 0xa4..=0xa7 | 0xaa..=0xaf => ALONE,
        0xc3
        | 0xc9
        | 0xcb
        | 0xcc
        | 0xcf
        | 0xd7
        | 0xec..=0xef
        | 0xf1
        | 0xf4
        | 0xf5
        | 0xf8..=0xfd => ALONE,
        0x63 | 0x84..=0x8f | 0xd0..=0xd3 | 0xd8..=0xdf | 0xfe | 0xff => OPERANDS,
        0x6a | 0x70..=0x7f | 0xa8 | 0xb0..=0xb7 | 0xcd | 0xe0..=0xe7 | 0xeb => value(1),
        0x6b | 0x80 | 0x83 | 0xc0 | 0xc1 | 0xc6 => operands_and(1),
        0x68 | 0xa9 => value(widths.value),
        0x69 | 0x81 | 0xc7 => operands_and(widths.value),
        0xa0..=0xa3 => value(widths.address),
        0xb8..=0xbf => value(widths.whole),
        0xc2 | 0xca => value(2),
        0xc8 => value(3),
        0xe8 | 0xe9 => value(4),
        // Whether a value follows these depends on the operands' byte: tests take one.
        0xf6 | 0xf7 => match (tail.first()? >> 3 & 7, opcode) {
            (0 | 1, 0xf6) => operands_and(1),
            (0 | 1, _) => operands_and(widths.value),
            _ => OPERANDS,
        },
        _ => return None,
    })
}

/// The maps behind 0F: how many bytes of opcode are left, and what follows them.
fn second_map(tail: &[u8]) -> Option<(usize, Rest)> {
    let opcode = *tail.first()?;
    let rest = match opcode {
        0x38 => return Some((2, OPERANDS)),
        0x3a => return Some((2, operands_and(1))),
        0x05..=0x09 | 0x0b | 0x0e | 0x30..=0x35 | 0x37 | 0x77 => ALONE,
        0xa0..=0xa2 | 0xa8..=0xaa | 0xc8..=0xcf => ALONE,
        0x80..=0x8f => value(4),
        0x0f | 0x70..=0x73 | 0xa4 | 0xac | 0xba | 0xc2 | 0xc4..=0xc6 => operands_and(1),
        0x04 | 0x0a | 0x0c | 0x24..=0x27 | 0x36 | 0x39 | 0x3b..=0x3f | 0xa6 | 0xa7 => return None,
        _ => OPERANDS,
    };
    Some((1, rest))
}

/// Vector instructions (VEX, EVEX, XOP): bytes from the second of the prefix to the opcode, and
/// what follows.
fn vector(prefix: u8, tail: &[u8]) -> Option<(usize, Rest)> {
    let (map, more) = match prefix {
        0xc5 => (1, 2),
        0xc4 | 0x8f => (tail.first()? & 0x1f, 3),
        _ => (tail.first()? & 7, 4),
    };
    let rest = match (map, *tail.get(more - 1)?) {
        (1, 0x77) => ALONE,
        (1, 0x70..=0x73 | 0xc2 | 0xc4..=0xc6) | (3 | 8, _) => operands_and(1),
        (1 | 2 | 5 | 6 | 9, _) => OPERANDS,
        (10, _) => operands_and(4),
        _ => return None,
    };
    Some((more, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn what_is_cut_off_or_no_instruction_has_no_length() {
        for bytes in
            [&b""[..], b"\x0f", b"\x48", b"\x66\x66", b"\xe8\0\0", b"\x06", b"\x0f\x04", b"\x8b"]
        {
            assert_eq!(length(bytes), None, "{bytes:x?}");
        }
        assert_eq!(length(&[0x66; 40]), None);
    }

    #[test]
    fn a_distance_is_not_taken_for_an_instruction() {
        let mut text = [0x90; 120];
        let load = b"\x48\x8d\x35\x0f\x05\x17\x00";
        text[100..107].copy_from_slice(load);
        assert!(begins_at(&text, 100));
        assert!(!begins_at(&text, 103));
    }

    /// What the disassembler, which comes with the linker, says of every instruction of a program.
    #[test]
    fn agrees_with_the_disassembler() {
        let program = std::env::current_exe().unwrap();
        let limits = ["--stop-address=0x400000", "-d", "-w", "--section=.text"];
        let out = Command::new("objdump").args(limits).arg(program).output().unwrap();
        let mut seen = 0;
        for line in String::from_utf8_lossy(&out.stdout).lines() {
            let mut parts = line.split('\t').skip(1);
            let (Some(hex), Some(name)) = (parts.next(), parts.next()) else { continue };
            let bytes: Vec<u8> =
                hex.split_whitespace().filter_map(|b| u8::from_str_radix(b, 16).ok()).collect();
            if name.contains("bad")
                || name.starts_with(".byte")
                || name.starts_with("fwait")
                || name.contains("rex")
            {
                continue;
            }
            // What follows must not matter.
            let mut more = bytes.clone();
            more.extend([0x90; 16]);
            assert_eq!(length(&more), Some(bytes.len()), "{line}");
            seen += 1;
        }
        assert!(seen > 10_000, "{seen}");
    }
}
