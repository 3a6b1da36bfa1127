//! How much of a program's stack a hook may take. A thread may have been given 16 KiB
//! (`PTHREAD_STACK_MIN`), of which libc has taken its part before the program begins. So no
//! function that a hook reaches has a frame above 1 KiB. (`tests/edge/small_stack.c` runs chains of
//! calls on such a stack.)
//! What needs more runs on a stack of the library's own (`rsocket-host/src/stack.rs`), which is
//! called by a pointer that this test does not follow.
//!
//! The test reads the machine code of the library as it is released. Every call, jump and address
//! of a function counts as a way to it.
#![cfg(target_arch = "x86_64")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

/// The largest frame, in bytes: what is pushed and what is subtracted, with the return address.
const MOST: usize = 1024 + 8;

/// Parts of names of functions that are reached in no thread of a program's, or stand where the
/// kernel would take as much.
const EXCUSED: [(&str, &str); 7] = [
    ("host::stack::run", "begins on a stack of the library's own"),
    ("bridge::serving::", "the service thread, which has a stack of its own making"),
    ("std::", "threads of the library's own, and what follows a panic"),
    ("core::panicking", "what follows a panic"),
    ("gimli", "what follows a panic"),
    ("datagram::", "datagram rsockets, which only librsocket makes"),
    ("host::signals::run", "calls a handler in the kernel's stead, whose frame for it is as large"),
];

struct Function {
    name: String,
    frame: usize,
    calls: BTreeSet<u64>,
}

fn output(program: &str, arguments: &[&str], file: &std::path::Path) -> String {
    let done =
        Command::new(program).args(arguments).arg(file).output().expect("binutils are there");
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

/// The function that an instruction calls, jumps to, or takes the address of.
fn target(instruction: &str) -> Option<u64> {
    let (code, rest) = instruction.split_once(' ')?;
    match code {
        "lea" => hex(rest.split_once("# ")?.1.split(' ').next()?),
        _ if code.starts_with('j') || code == "call" => hex(rest.trim_start().split(' ').next()?),
        _ => None,
    }
}

/// What an instruction takes of the stack. A frame of more than a page is made in steps.
fn taken(instruction: &str) -> usize {
    let immediate =
        |text: &str| hex(text.trim_start().trim_start_matches('$').split(',').next()?);
    match instruction.split_once(' ') {
        Some(("push", _)) => 8,
        Some(("sub", rest)) if rest.ends_with(",%rsp") => immediate(rest).unwrap_or(0) as usize,
        _ => 0,
    }
}

fn functions(text: &str) -> BTreeMap<u64, Function> {
    let mut all = BTreeMap::new();
    let mut at = 0;
    for line in text.lines() {
        if let Some((address, name)) = line.strip_suffix(">:").and_then(|l| l.split_once(" <")) {
            at = hex(address).expect("an address");
            all.insert(at, Function { name: name.to_owned(), frame: 8, calls: BTreeSet::new() });
        } else if let (Some(function), Some((_, code))) = (all.get_mut(&at), line.split_once(":\t"))
        {
            let instruction = code.trim();
            function.frame += taken(instruction);
            function.calls.extend(target(instruction));
        }
    }
    all
}

fn excused(name: &str) -> bool {
    EXCUSED.iter().any(|(part, _)| {
        if part.ends_with("::") && !part.contains("datagram") {
            name.trim_start_matches('<').starts_with(part)
        } else {
            name.contains(part)
        }
    })
}

#[test]
fn no_frame_that_a_hook_reaches_is_large() {
    let library = rs_tests::build_preload_library(true);
    let all = functions(&output("objdump", &["-d", "-C", "--no-show-raw-insn"], &library));
    let hooks = output("nm", &["-D", "--defined-only"], &library);
    let mut way: BTreeMap<u64, u64> = BTreeMap::new();
    let mut open: Vec<(u64, u64)> =
        hooks.lines().filter_map(|l| hex(l.split(' ').next()?)).map(|at| (at, at)).collect();
    assert!(open.len() > 100, "{hooks}");
    while let Some((at, from)) = open.pop() {
        let Some(function) = all.get(&at).filter(|f| !excused(&f.name)) else { continue };
        if let std::collections::btree_map::Entry::Vacant(place) = way.entry(at) {
            place.insert(from);
            open.extend(function.calls.iter().map(|to| (*to, at)));
        }
    }
    assert!(way.len() > 300, "only {} functions are reached", way.len());
    let mut large = Vec::new();
    for at in way.keys() {
        let function = &all[at];
        if function.frame > MOST {
            let mut path = String::new();
            let mut step = *at;
            while way[&step] != step && path.len() < 600 {
                step = way[&step];
                path += " < ";
                path += &all[&step].name;
            }
            large.push(format!("{} bytes: {}{path}", function.frame, function.name));
        }
    }
    assert!(large.is_empty(), "{}", large.join("\n"));
}
