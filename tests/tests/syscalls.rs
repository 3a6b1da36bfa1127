//! Which system calls the data path and an attach make: the rows that `docs/system-calls.md` marks.
//! Needs `strace`, and a kernel that lets it trace; without them there is nothing to see, and the
//! test says so.
//!
//! And which crates make any: the engine asks rsocket-host. Unit tests may ask the kernel.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use proc_macro2::{Span, TokenTree};
use rs_tests::{compile, preload_library, profile_directory, run, workspace};
use syn::visit::{self, Visit};

/// How often each system call was made, by stage.
type Stages = BTreeMap<String, BTreeMap<String, u32>>;

fn stages(trace: &str) -> Stages {
    let mut out = Stages::new();
    let mut stage = String::new();
    for line in trace.lines() {
        let Some((call, rest)) = line.split_once('(') else { continue };
        if call == "write" && rest.starts_with("-1, ") {
            stage = rest.split('"').nth(1).unwrap_or_default().to_owned();
            out.insert(stage.clone(), BTreeMap::new());
        } else if let Some(counts) = out.get_mut(&stage) {
            *counts.entry(call.to_owned()).or_default() += 1;
        }
    }
    out
}

/// How many system calls both ends of a connection make together to attach, where their processes
/// have met before. It is 102, and 103 where the library is built with debug assertions.
const ATTACH_MOST: u32 = 103;
/// How often they ask who has the other end.
const LOOK_UPS: u32 = 5;
/// Not counted: the program's own calls, looks whose number the clock decides, and what depends on
/// the limit on open files and on sandboxes.
const NOT_ALWAYS: [&str; 10] = [
    "sendto",
    "recvfrom",
    "recvmsg",
    "poll",
    "ppoll",
    "prlimit64",
    "rt_sigprocmask",
    "newfstatat",
    "openat",
    "read",
];

#[test]
fn the_data_path() {
    let program = compile("awake", "awake", &[]);
    let trace =
        profile_directory().join("edge").join(format!("awake.{}.trace", std::process::id()));
    let mut strace = Command::new("strace");
    strace.arg("-o").arg(&trace).arg("-E");
    strace.arg(format!("LD_PRELOAD={}", preload_library().display())).arg(&program);
    strace.env_remove("RSOCKET_TRANSPORT").env_remove("RSOCKET_DISABLE");
    let traces = |c: &mut Command| c.output().is_ok_and(|o| o.status.success());
    if !traces(Command::new("strace").args(["-o", "/dev/null", "true"])) {
        println!("strace is not there, or may not trace: nothing was tested");
        return;
    }
    let began = Instant::now();
    let outcome = run(&mut strace, Duration::from_secs(60));
    // One in 100 ms, on a machine that others use as well.
    let looks = 20 + (began.elapsed().as_millis() / 100) as u32;
    assert_eq!((outcome.status, outcome.stdout.as_str()), (0, "done\n"), "{}", outcome.stderr);
    let text = std::fs::read_to_string(&trace).expect("strace wrote it");
    let _ = std::fs::remove_file(&trace);
    let stages = stages(&text);
    let counts = |stage: &str| {
        let calls = stages.get(stage).unwrap_or_else(|| panic!("no stage {stage}"));
        calls.iter().map(|(call, n)| (call.as_str(), *n)).collect::<Vec<_>>()
    };
    assert_eq!(
        counts("foreign"),
        [("read", 100), ("write", 100)],
        "the program's own, and none of ours"
    );
    assert_eq!(
        counts("young"),
        [("recvfrom", 4), ("sendto", 4)],
        "the program's own, and none of ours"
    );
    for (call, n) in counts("awake") {
        assert!(
            matches!(call, "poll" | "ppoll") && n <= looks,
            "6000 messages of 1 KiB on the device, and now and then a look whether they are read: {call} {n}"
        );
    }
    for (call, n) in counts("empty") {
        assert!(
            call == "recvmsg" && n <= looks,
            "one look at the connection's end for each, at most: {call} {n}"
        );
    }
    let attach = counts("attach");
    let made = |name: &str| attach.iter().find(|(call, _)| *call == name).map_or(0, |(_, n)| *n);
    // Each file that is looked into is closed again.
    let all = attach.iter().filter(|(call, _)| !NOT_ALWAYS.contains(call)).map(|(_, n)| n);
    let all = all.sum::<u32>().saturating_sub(made("openat"));
    assert!(all <= ATTACH_MOST, "{all} system calls to attach: {attach:?}");
    assert_eq!(
        made("socket"),
        2 + LOOK_UPS,
        "where the ends meet, and one for each look-up: {attach:?}"
    );
}

/// Crates that make no system call of their own.
const ENGINE: [&str; 5] =
    ["rsocket-core", "rsocket-wire", "rsocket-sync", "rsocket-device", "rsocket-stats"];
/// Whose functions are system calls. Their types and constants may be named.
const KERNEL: [&[&str]; 6] = [
    &["rustix"],
    &["libc"],
    &["std", "fs"],
    &["std", "process"],
    &["std", "thread"],
    &["std", "time"],
];
/// Types of theirs whose methods are system calls.
const CALLING: [&str; 2] = ["RawDir", "Dir"];

/// The paths of a file that lead to system calls, each with its line.
#[derive(Default)]
struct Calls {
    /// What a `use` of the kernel's crates has brought in: its name here, and its path.
    names: BTreeMap<String, Vec<String>>,
    found: Vec<(usize, String)>,
}

impl Calls {
    fn of(text: &str) -> Vec<(usize, String)> {
        let file = syn::parse_file(text).expect("a source");
        let mut calls = Self::default();
        // Twice: a `use` may stand behind what goes by it.
        calls.visit_file(&file);
        calls.found.clear();
        calls.visit_file(&file);
        calls.found
    }

    fn note(&mut self, span: Span, what: impl Into<String>) {
        self.found.push((span.start().line, what.into()));
    }

    /// Whether the path, as it stands in the file, is a function of the kernel's crates.
    fn is_call(&self, path: &[String]) -> bool {
        let Some((first, rest)) = path.split_first() else { return false };
        let mut full = self.names.get(first).cloned().unwrap_or_else(|| vec![first.clone()]);
        full.extend_from_slice(rest);
        let Some((last, above)) = full.split_last() else { return false };
        let is_type = |word: &String| word.starts_with(char::is_uppercase);
        // There are no modules in libc: what stands between is a type (`c_int`).
        let of_a_type = full.len() > 2 && full.first().is_some_and(|word| word == "libc");
        is_kernels(&full)
            && !of_a_type
            && (full.iter().any(|word| CALLING.contains(&word.as_str()))
                || last.starts_with(char::is_lowercase) && !above.iter().any(is_type))
    }

    /// `use a::{b, c as d}`.
    fn bring(&mut self, above: &[String], tree: &syn::UseTree) {
        let with = |name: &syn::Ident| [above, &[name.to_string()]].concat();
        match tree {
            syn::UseTree::Path(path) => self.bring(&with(&path.ident), &path.tree),
            syn::UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.bring(above, tree));
            }
            syn::UseTree::Name(name) if name.ident == "self" => {
                let Some(last) = above.last() else { return };
                self.names.insert(last.clone(), above.to_vec());
            }
            syn::UseTree::Name(name) => {
                self.names.insert(name.ident.to_string(), with(&name.ident));
            }
            syn::UseTree::Rename(new) => {
                self.names.insert(new.rename.to_string(), with(&new.ident));
            }
            syn::UseTree::Glob(star) => {
                if is_kernels(above) {
                    self.note(star.star_token.spans[0], format!("use {}::*", above.join("::")));
                }
            }
        }
    }

    /// The paths of a macro's text, which is not parsed: a function is what is called there.
    fn search(&mut self, text: proc_macro2::TokenStream) {
        let (mut path, mut span, mut joined) = (Vec::new(), Span::call_site(), false);
        for tree in text {
            match tree {
                TokenTree::Ident(word) => {
                    if !joined {
                        path.clear();
                        span = word.span();
                    }
                    path.push(word.to_string());
                    joined = false;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => joined = true,
                TokenTree::Group(group) => {
                    if self.is_call(&path) {
                        self.note(span, path.join("::"));
                    }
                    path.clear();
                    self.search(group.stream());
                }
                _ => path.clear(),
            }
        }
    }
}

fn is_kernels(path: &[String]) -> bool {
    KERNEL.iter().any(|kernels| {
        path.len() >= kernels.len() && path.iter().zip(*kernels).all(|(a, b)| a == b)
    })
}

/// Whether something is compiled for unit tests alone.
fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        let syn::Meta::List(list) = &a.meta else { return false };
        let words = list.tokens.to_string();
        let has = |name| words.split(|c: char| !c.is_alphanumeric()).any(|word| word == name);
        list.path.is_ident("cfg") && has("test") && !has("not")
    })
}

impl<'a> Visit<'a> for Calls {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }

    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if !for_tests(&function.attrs) {
            visit::visit_item_fn(self, function);
        }
    }

    fn visit_item_impl(&mut self, block: &'a syn::ItemImpl) {
        if !for_tests(&block.attrs) {
            visit::visit_item_impl(self, block);
        }
    }

    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        if !for_tests(&function.attrs) {
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        if !for_tests(&item.attrs) {
            self.bring(&[], &item.tree);
        }
    }

    fn visit_item_foreign_mod(&mut self, block: &'a syn::ItemForeignMod) {
        self.note(block.abi.extern_token.span, "extern");
    }

    fn visit_expr_path(&mut self, expression: &'a syn::ExprPath) {
        let segments = &expression.path.segments;
        let path: Vec<String> = segments.iter().map(|s| s.ident.to_string()).collect();
        if self.is_call(&path) {
            self.note(segments[0].ident.span(), path.join("::"));
        }
        visit::visit_expr_path(self, expression);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        if call.path.segments.last().is_some_and(|s| s.ident == "asm") {
            self.note(call.path.segments[0].ident.span(), "asm!");
        }
        self.search(call.tokens.clone());
    }
}

/// The sources below a directory, without files of tests.
fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy();
        if stem == "tests" || stem.ends_with("_tests") {
            continue;
        } else if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
}

#[test]
fn the_engine_asks_the_host() {
    let mut files = Vec::new();
    ENGINE.iter().for_each(|package| sources(&workspace().join(package).join("src"), &mut files));
    assert!(files.len() > 200, "{} files", files.len());
    let mut found = Vec::new();
    for path in files {
        let name = path.strip_prefix(workspace()).expect("below it").display().to_string();
        let text = std::fs::read_to_string(&path).expect("a source");
        found.extend(Calls::of(&text).iter().map(|(line, what)| format!("{name}:{line}: {what}")));
    }
    assert!(found.is_empty(), "for these rsocket-host has functions, or gets them: {found:#?}");
}

#[test]
fn a_system_call_is_found() {
    let text = r#"
        use rustix::event::epoll::{self, Event as E, EventFlags};
        use rustix::net::*;
        fn f(t: libc::c_int) {
            epoll::wait(t);
            let flags = EventFlags::from_bits_retain(libc::EPOLLIN as u32);
            let v = libc::iovec { iov_base: core::mem::zeroed::<libc::msghdr>(), iov_len: 0 };
            assert!(matches!(t, libc::EPOLL_CTL_ADD) && libc::fork() == 0, "{}", later(t));
            list.map(rustix::fs::fstat);
            rustix::fs::RawDir::new(t);
            std::fs::read(t);
        }
        use rustix::io::read as later;
        fn g() { later(0); host::read(0); sys::fs::read(0); std::mem::take(0) }
        unsafe extern "C" { fn ppoll(); }
        #[cfg(test)]
        fn h() { libc::fork(); }
        #[cfg(test)]
        mod tests { use libc::kill; fn k() { kill(0) } }
    "#;
    let found = Calls::of(text);
    let lines: Vec<usize> = found.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [3, 5, 8, 8, 9, 10, 11, 14, 15], "{found:?}");
}
