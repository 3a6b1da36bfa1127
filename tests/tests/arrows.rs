//! Which rooms of the code may know which: arrows point down, and no files import each other in a
//! circle.
//!
//! An arrow is a name that a file takes from a file of another room. The file takes it by `use`, or
//! by a path that begins with `crate`, `super` or `self`. Unit tests are left out. What does not
//! hold yet stands in a list with its size, which may only shrink. A mend lowers the number here,
//! so that it stays mended.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rs_tests::workspace;

/// The rooms of a crate, from the bottom up: each may take names from those before it.
const ROOMS: [(&str, &[&str]); 6] = [
    ("rsocket-host", &HOST),
    ("rsocket-sync", &SYNC),
    ("rsocket-device", &DEVICE),
    ("rsocket-shm", &SHM),
    ("rsocket-rdma", &RDMA),
    ("rsocket-core", &CORE),
];

const HOST: [&str; 22] = [
    // The processor.
    "copy",
    "failure",
    "environment",
    "address",
    "sys",
    // What libc has.
    "stdio",
    "objects",
    "sigaction",
    // The calling thread, its sections and its stack.
    "own",
    "signals",
    "thread",
    "migration",
    "stack",
    "array",
    "living",
    // What needs one of these.
    "log",
    "probe",
    "given",
    "facts",
    "seqpacket",
    // What is counted, and why.
    "reason",
    "stats",
];

const SYNC: [&str; 7] = ["atom", "backoff", "spin", "lock", "guarded", "mutex", "published"];

const DEVICE: [&str; 2] = ["sim", "conformance"];

const SHM: [&str; 13] = [
    "random",
    // How a sleeper is woken.
    "waiter_slot",
    "netns",
    "waker",
    // The memory, and who sleeps at it.
    "layout",
    "park",
    "stores",
    "direction",
    "arena",
    "places",
    // What is made of it.
    "channel",
    "queue_pair",
    "mailbox",
];

const RDMA: [&str; 14] = [
    // The libraries.
    "doorbell",
    "ffi",
    "gate",
    // Devices, and how two of them are connected.
    "private",
    "address",
    "contexts",
    "identifier",
    "event",
    // What carries bytes.
    "memory",
    "staging",
    "pair",
    "path",
    "cm",
    "ud",
];

const CORE: [&str; 24] = [
    "libdir",
    "config",
    "rules",
    // What the processes that hold a connection share of it.
    "conn",
    // Who watches connections.
    "tap",
    "live_segment",
    // Its part of that memory.
    "channel",
    // How two ends find each other, and what is beyond the channel.
    "attach",
    "headroom",
    "bridge",
    "fork_safe",
    // Its ways to the device and back to TCP.
    "pairing",
    "handover",
    // What a socket is.
    "waiting",
    "direct_placement",
    "datagram",
    "socket",
    // What programs do with several, or by other calls than those of sockets.
    "iomap",
    "readiness",
    "native",
    // For the libraries that export C functions.
    "descriptors",
    "exec_handover",
    "process",
    "fuzzing",
];

/// Arrows of a crate that point up, and how many names they bring.
const UP: [(&str, &str, &str, usize); 0] = [];

/// The largest circle of files in a crate, by its number of files. There is none beside it.
const CIRCLES: [(&str, usize); 13] = [
    ("rsocket-wire", 0),
    ("rsocket-stats", 0),
    ("rsocket-host", 0),
    ("rsocket-sync", 0),
    ("rsocket-device", 0),
    ("rsocket-shm", 0),
    ("rsocket-rdma", 0),
    ("rsocket-core", 0),
    ("rsocket-edge", 0),
    ("rspreload", 0),
    ("rsocket-capi", 0),
    ("rsrun", 0),
    ("rsstat", 0),
];

/// The crates, from the bottom up, and those of ours that each depends on.
const CRATES: [(&str, &[&str]); 13] = [
    ("rsocket-wire", &[]),
    ("rsocket-stats", &[]),
    ("rsocket-host", &["rsocket-stats"]),
    ("rsocket-sync", &["rsocket-host"]),
    ("rsocket-device", &["rsocket-host", "rsocket-wire"]),
    ("rsocket-shm", &["rsocket-device", "rsocket-host", "rsocket-sync", "rsocket-wire"]),
    ("rsocket-rdma", &["rsocket-device", "rsocket-host", "rsocket-sync", "rsocket-wire"]),
    (
        "rsocket-core",
        &[
            "rsocket-device",
            "rsocket-host",
            "rsocket-rdma",
            "rsocket-shm",
            "rsocket-stats",
            "rsocket-sync",
            "rsocket-wire",
        ],
    ),
    ("rsocket-edge", &["rsocket-core", "rsocket-host"]),
    ("rsrun", &["rsocket-edge"]),
    ("rsstat", &["rsocket-stats"]),
    // Of the engine they see what the list of rsocket-edge names.
    ("rsocket-capi", &["rsocket-edge", "rsocket-host"]),
    ("rspreload", &["rsocket-edge", "rsocket-host"]),
];

/// A module by the names of the path to it; the crate's root is empty.
type Module = Vec<String>;
/// The names that a module takes from each other one.
type Imports = BTreeMap<Module, BTreeMap<Module, BTreeSet<String>>>;

/// A word of a source, or one of the marks that a `use` is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Word(String),
    Path,
    Mark(char),
}

/// What the compiler sees of a source, up to its unit tests.
fn tokens(source: &str) -> Vec<Token> {
    let chars: Vec<char> = source.chars().collect();
    let at = |i: usize| chars.get(i).copied().unwrap_or('\0');
    let (mut tokens, mut i) = (Vec::new(), 0);
    while i < chars.len() {
        let start = i;
        i = match (at(i), at(i + 1)) {
            ('/', '/') => end_of_line(&chars, i),
            ('/', '*') => end_of_comment(&chars, i),
            ('"', _) => end_of_text(&chars, i),
            ('r', '"' | '#') if !is_word(at(i.wrapping_sub(1))) => end_of_raw(&chars, i),
            ('\'', '\\') => {
                (i + 3..chars.len()).find(|k| at(*k) == '\'').map_or(chars.len(), |k| k + 1)
            }
            ('\'', _) if at(i + 2) == '\'' => i + 3,
            (':', ':') => i + 2,
            (c, _) if is_word(c) => {
                (i..chars.len()).find(|k| !is_word(at(*k))).unwrap_or(chars.len())
            }
            _ => i + 1,
        };
        match at(start) {
            ':' if i == start + 2 => tokens.push(Token::Path),
            c if is_word(c) && at(i - 1) != '"' => {
                tokens.push(Token::Word(chars[start..i].iter().collect()))
            }
            c if "{},;*()[]#".contains(c) && i == start + 1 => tokens.push(Token::Mark(c)),
            _ => {}
        }
    }
    let end = tests_begin(&tokens).unwrap_or(tokens.len());
    tokens.truncate(end);
    tokens
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn end_of_line(chars: &[char], from: usize) -> usize {
    (from..chars.len()).find(|k| chars[*k] == '\n').unwrap_or(chars.len())
}

/// Comments of this kind nest.
fn end_of_comment(chars: &[char], from: usize) -> usize {
    let (mut depth, mut i) = (0_u32, from);
    while i + 1 < chars.len() {
        match (chars[i], chars[i + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') if depth == 1 => return i + 2,
            ('*', '/') => depth -= 1,
            _ => {
                i += 1;
                continue;
            }
        }
        i += 2;
    }
    chars.len()
}

fn end_of_text(chars: &[char], from: usize) -> usize {
    let mut i = from + 1;
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    i + 1
}

/// `r"…"`, `r#"…"#`; one further for a word that only begins like that.
fn end_of_raw(chars: &[char], from: usize) -> usize {
    let quote = (from + 1..chars.len()).find(|k| chars[*k] != '#').unwrap_or(chars.len());
    if chars.get(quote) != Some(&'"') {
        return from + 1;
    }
    let marks = quote - from - 1;
    let ends = |k: usize| {
        chars[k] == '"' && chars[k + 1..].iter().take(marks).filter(|c| **c == '#').count() == marks
    };
    (quote + 1..chars.len()).find(|k| ends(*k)).map_or(chars.len(), |k| k + 1 + marks)
}

/// Where `#[cfg(test)]`, with other attributes or none, stands before `mod name {`.
fn tests_begin(tokens: &[Token]) -> Option<usize> {
    (0..tokens.len()).find(|start| {
        let (mut i, mut for_tests) = (*start, false);
        while let [Token::Mark('#'), Token::Mark('['), rest @ ..] = &tokens[i..] {
            let Some(end) = end_of_attribute(rest) else { return false };
            let words: Vec<_> = rest[..end].iter().filter_map(word).collect();
            for_tests |= words.first() == Some(&"cfg") && words.contains(&"test") && !words.contains(&"not");
            for_tests |= words.starts_with(&["cfg", "all", "test"]);
            i += 2 + end + 1;
        }
        while matches!(&tokens[i..], [Token::Word(w), ..] if w == "pub" || w == "crate" || w == "super") {
            i += 1;
        }
        for_tests
            && matches!(&tokens[i..], [Token::Word(w), Token::Word(_), Token::Mark('{'), ..] if w == "mod")
    })
}

fn end_of_attribute(tokens: &[Token]) -> Option<usize> {
    let mut depth = 0_u32;
    tokens.iter().position(|token| {
        depth += u32::from(*token == Token::Mark('['));
        let ends = *token == Token::Mark(']') && depth == 0;
        depth -= u32::from(*token == Token::Mark(']') && depth > 0);
        ends
    })
}

fn word(token: &Token) -> Option<&str> {
    match token {
        Token::Word(word) => Some(word),
        _ => None,
    }
}

/// Every path that a `use` brings in, or that stands in the code and begins at a module.
fn paths(tokens: &[Token]) -> Vec<Vec<String>> {
    let (mut found, mut i) = (Vec::new(), 0);
    while i < tokens.len() {
        match &tokens[i] {
            Token::Word(w) if w == "use" => {
                let end = tokens[i..]
                    .iter()
                    .position(|t| *t == Token::Mark(';'))
                    .map_or(tokens.len(), |n| i + n);
                leaves(&tokens[i + 1..end], &[], &mut found);
                i = end;
            }
            Token::Word(w) if ["crate", "super", "self"].contains(&w.as_str()) => {
                let mut path = vec![w.clone()];
                while let [Token::Path, Token::Word(next), ..] = &tokens[i + 1..] {
                    path.push(next.clone());
                    i += 2;
                }
                if path.len() > 1 {
                    found.push(path);
                }
            }
            _ => {}
        }
        i += 1;
    }
    found
}

/// `a::{b, c::{d}}`: every full path, without its new name.
fn leaves(tree: &[Token], before: &[String], found: &mut Vec<Vec<String>>) {
    let mut path = before.to_vec();
    for (i, token) in tree.iter().enumerate() {
        match token {
            Token::Word(w) if w == "as" => break,
            Token::Word(w) => path.push(w.clone()),
            Token::Mark('{') => {
                let inner = &tree[i + 1..tree.len() - 1];
                parts(inner).into_iter().for_each(|part| leaves(part, &path, found));
                return;
            }
            _ => {}
        }
    }
    if path.len() > before.len() || tree.contains(&Token::Mark('*')) {
        found.push(path);
    }
}

/// What commas outside of braces part.
fn parts(list: &[Token]) -> Vec<&[Token]> {
    let (mut depth, mut start, mut parts) = (0_u32, 0, Vec::new());
    for (i, token) in list.iter().enumerate() {
        match token {
            Token::Mark('{') => depth += 1,
            Token::Mark('}') => depth = depth.saturating_sub(1),
            Token::Mark(',') if depth == 0 => {
                parts.push(&list[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(&list[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The modules below a directory and their sources, without files of tests.
fn modules(directory: &Path, above: &[String], found: &mut BTreeMap<Module, String>) {
    for entry in std::fs::read_dir(directory).expect("a directory of sources") {
        let path = entry.expect("an entry").path();
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let module = || [above, core::slice::from_ref(&stem)].concat();
        if path.is_dir() {
            modules(&path, &module(), found);
        } else if path.extension().is_some_and(|e| e == "rs")
            && !stem.ends_with("_tests")
            && stem != "tests"
        {
            let own = ["mod", "lib", "main"].contains(&stem.as_str());
            let source = std::fs::read_to_string(&path).expect("a source");
            found.insert(if own { above.to_vec() } else { module() }, source);
        }
    }
}

fn imports(sources: &BTreeMap<Module, String>) -> Imports {
    let mut imports = Imports::new();
    for (module, source) in sources.iter().filter(|(module, _)| !module.is_empty()) {
        for path in paths(&tokens(source)) {
            let Some(full) = from_root(module, &path) else { continue };
            let Some(n) = (1..=full.len()).rev().find(|n| sources.contains_key(&full[..*n])) else {
                continue;
            };
            if full[..n] != module[..] {
                let names = imports
                    .entry(module.clone())
                    .or_default()
                    .entry(full[..n].to_vec())
                    .or_default();
                names.insert(if n == full.len() { "*".into() } else { full[n..].join("::") });
            }
        }
    }
    imports
}

/// A path as seen from the crate's root; `None` for one into another crate.
fn from_root(module: &Module, path: &[String]) -> Option<Module> {
    let above = path.iter().take_while(|word| *word == "super").count();
    match path.first()?.as_str() {
        "crate" => Some(path[1..].to_vec()),
        "self" => Some([module, &path[1..]].concat()),
        "super" => Some([&module[..module.len().checked_sub(above)?], &path[above..]].concat()),
        _ => None,
    }
}

/// The circles: sets of modules that each reach all others of the set.
fn circles(imports: &Imports) -> Vec<BTreeSet<Module>> {
    let reached: BTreeMap<&Module, BTreeSet<&Module>> =
        imports.keys().map(|m| (m, reach(imports, m))).collect();
    let mut circles: Vec<BTreeSet<Module>> = Vec::new();
    for (module, there) in &reached {
        let back = |other: &&&Module| reached.get(*other).is_some_and(|from| from.contains(module));
        let circle: BTreeSet<Module> = there.iter().filter(back).map(|m| (*m).clone()).collect();
        if circle.len() > 1 && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles.sort_by_key(|circle| core::cmp::Reverse(circle.len()));
    circles
}

/// All that can be come to from a module by one import or more.
fn reach<'a>(imports: &'a Imports, from: &Module) -> BTreeSet<&'a Module> {
    let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
    while let Some(module) = next.pop() {
        for to in imports.get(module).into_iter().flat_map(BTreeMap::keys) {
            if seen.insert(to) {
                next.push(to);
            }
        }
    }
    seen
}

fn imports_of(package: &str) -> Imports {
    let mut sources = BTreeMap::new();
    modules(&workspace().join(package).join("src"), &[], &mut sources);
    imports(&sources)
}

/// How many names each room takes from another.
fn arrows(imports: &Imports) -> BTreeMap<(String, String), usize> {
    let mut arrows = BTreeMap::new();
    for (from, all) in imports {
        for (to, names) in all.iter().filter(|(to, _)| to[0] != from[0]) {
            *arrows.entry((from[0].clone(), to[0].clone())).or_insert(0) += names.len();
        }
    }
    arrows
}

#[test]
fn arrows_between_rooms_point_down() {
    for (package, rooms) in ROOMS {
        arrows_point_down(package, rooms);
    }
}

fn arrows_point_down(package: &str, rooms: &[&str]) {
    let imports = imports_of(package);
    let rank = |room: &str| rooms.iter().position(|known| *known == room);
    let source = workspace().join(package).join("src");
    let is_there =
        |room: &str| source.join(room).is_dir() || source.join(format!("{room}.rs")).is_file();
    let gone: Vec<_> = rooms.iter().filter(|room| !is_there(room)).collect();
    assert!(gone.is_empty(), "rooms that are no more: {gone:?}");
    let unranked: BTreeSet<_> =
        imports.keys().map(|m| &m[0]).filter(|room| rank(room).is_none()).collect();
    assert!(unranked.is_empty(), "rooms without a place in the order: {unranked:?}");
    let mut known: BTreeMap<(String, String), usize> = UP
        .iter()
        .filter(|(known, ..)| *known == package)
        .map(|(_, from, to, n)| (((*from).to_owned(), (*to).to_owned()), *n))
        .collect();
    let mut wrong = Vec::new();
    for ((from, to), n) in
        arrows(&imports).into_iter().filter(|((from, to), _)| rank(from) < rank(to))
    {
        let allowed = known.remove(&(from.clone(), to.clone())).unwrap_or(0);
        match n.cmp(&allowed) {
            core::cmp::Ordering::Greater => {
                wrong.push(format!("{from} -> {to}: {n} names up, {allowed} known"))
            }
            core::cmp::Ordering::Less => {
                wrong.push(format!("{from} -> {to}: {n} left of {allowed}: lower it here"))
            }
            core::cmp::Ordering::Equal => {}
        }
    }
    wrong.extend(
        known.keys().map(|(from, to)| format!("{from} -> {to}: none left, strike it out here")),
    );
    assert!(wrong.is_empty(), "{package}: {wrong:#?}");
}

#[test]
fn no_files_import_each_other_in_a_circle() {
    for (package, known) in CIRCLES {
        let circles = circles(&imports_of(package));
        let sizes: Vec<usize> = circles.iter().map(BTreeSet::len).collect();
        let expected: Vec<usize> = if known == 0 { vec![] } else { vec![known] };
        let small: Vec<_> = circles.iter().filter(|circle| circle.len() < 12).collect();
        assert_eq!(sizes, expected, "{package}: fewer is a mend to be noted here; {small:?}");
    }
}

#[test]
fn crates_depend_on_those_below_them() {
    for (package, below) in CRATES {
        let manifest = std::fs::read_to_string(workspace().join(package).join("Cargo.toml"))
            .expect("a manifest");
        let named = |line: &str| {
            let name = line.split_once([' ', '.', '=']).map_or(line, |(name, _)| name);
            CRATES.iter().map(|(name, _)| *name).find(|known| name == *known && line.contains('='))
        };
        let dependencies: BTreeSet<&str> = manifest.lines().filter_map(named).collect();
        assert_eq!(dependencies, below.iter().copied().collect(), "{package}");
    }
}

#[test]
fn what_is_no_import_is_not_taken_for_one() {
    let source = r##"
        use a::{self, b as c, d::{e, f::*}}; // use super::comment;
        /* use crate::x; /* nested */ use crate::y; */
        const T: &str = "use crate::text; \" crate::more"; const C: char = '"';
        const R: &str = r#"crate::raw "quoted" text"#;
        fn f<'a>(_: &'a super::Other) -> crate::g::H { self::own(); self.field }
        #[cfg(test)]
        #[allow(clippy::unwrap_used)]
        mod tests { use super::*; }
    "##;
    let found: Vec<String> = paths(&tokens(source)).iter().map(|path| path.join("::")).collect();
    let expected =
        ["a::self", "a::b", "a::d::e", "a::d::f", "super::Other", "crate::g::H", "self::own"];
    assert_eq!(found, expected);
}

#[test]
fn circles_are_found() {
    let sources: BTreeMap<Module, String> = [
        ("a", "use crate::b::X;"),
        ("b", "use super::c;"),
        ("c", "fn f() { crate::a::g() }"),
        ("d", "use crate::a;"),
    ]
    .map(|(name, source)| (vec![name.to_owned()], source.to_owned()))
    .into();
    let found = circles(&imports(&sources));
    assert_eq!(found, [["a", "b", "c"].map(|name| vec![name.to_owned()]).into()]);
}
