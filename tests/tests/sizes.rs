//! Functions fit on a screen and take few parameters; files are not long.
//!
//! Of functions unit tests are left out, and those whose parameters C dictates; of files no source
//! is, whatever its language. What does not hold yet stands here by name: a mend takes the name
//! out, so that it stays mended.

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};

use rs_tests::workspace;
use syn::visit::{self, Visit};

/// Lines of a function, from its name to its last brace.
const SCREEN: usize = 50;
const PARAMETERS: usize = 5;
/// Lines of a file, its unit tests included.
const FILE: usize = 600;
/// What sources are called. Scripts without an ending say `#!`.
const ENDINGS: [&str; 6] = ["rs", "c", "h", "py", "sh", "prepare"];
/// Directories that are not looked into: what is in them is made, or not ours.
const SKIPPED: [&str; 3] = ["target", ".git", "__pycache__"];

const CRATES: [&str; 13] = [
    "rsocket-wire",
    "rsocket-stats",
    "rsocket-host",
    "rsocket-sync",
    "rsocket-device",
    "rsocket-shm",
    "rsocket-rdma",
    "rsocket-core",
    "rsocket-edge",
    "rsocket-capi",
    "rspreload",
    "rsrun",
    "rsstat",
];

/// Functions above [`SCREEN`].
const LONG: &[&str] = &[];
/// Functions above [`PARAMETERS`].
const MANY: &[&str] = &[];
/// Files above [`FILE`], from the root.
const LONG_FILES: &[&str] = &[];

#[derive(Default)]
struct Seen {
    file: String,
    long: BTreeSet<String>,
    many: BTreeSet<String>,
}

impl Seen {
    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let lines =
            body.brace_token.span.close().end().line - signature.fn_token.span.start().line + 1;
        let name = format!("{}::{}", self.file, signature.ident);
        if lines > SCREEN {
            self.long.insert(name.clone());
        }
        if signature.inputs.len() > PARAMETERS && signature.abi.is_none() {
            self.many.insert(name);
        }
    }
}

/// Whether this is compiled for tests alone.
fn for_tests(attributes: &[syn::Attribute]) -> bool {
    attributes.iter().any(|a| {
        a.path().is_ident("test")
            || a.path().is_ident("cfg")
                && a.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

impl<'a> Visit<'a> for Seen {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !for_tests(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }
    fn visit_item_fn(&mut self, function: &'a syn::ItemFn) {
        if !for_tests(&function.attrs) {
            self.function(&function.sig, &function.block);
            visit::visit_item_fn(self, function);
        }
    }
    fn visit_impl_item_fn(&mut self, function: &'a syn::ImplItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }
}

/// The files below `dir` of which `wanted` holds.
fn below(dir: &Path, wanted: &dyn Fn(&Path) -> bool, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !SKIPPED.contains(&name) {
                below(&path, wanted, found);
            }
        } else if wanted(&path) {
            found.push(path);
        }
    }
}

/// Every file by its own name, so that one that moves keeps it, and its text.
fn texts() -> Vec<(String, String)> {
    let wanted = |path: &Path| {
        let name = path.file_name().unwrap().to_str().unwrap();
        name.ends_with(".rs") && !name.ends_with("tests.rs")
    };
    let mut found = Vec::new();
    for package in CRATES {
        below(&workspace().join(package).join("src"), &wanted, &mut found);
    }
    let name = |path: &Path| {
        let path = path.with_extension("");
        let own = if path.ends_with("mod") { path.parent().unwrap() } else { &path };
        own.file_name().unwrap().to_str().unwrap().to_owned()
    };
    found.iter().map(|path| (name(path), std::fs::read_to_string(path).unwrap())).collect()
}

fn compare(what: &str, found: &BTreeSet<String>, known: &[&str]) {
    let known: BTreeSet<String> = known.iter().map(|name| (*name).to_owned()).collect();
    let new: Vec<_> = found.difference(&known).collect();
    let mended: Vec<_> = known.difference(found).collect();
    assert!(new.is_empty(), "{what}: {new:#?}");
    assert!(mended.is_empty(), "{what}, mended, and to be taken out of the list: {mended:#?}");
}

#[test]
fn functions() {
    let mut seen = Seen::default();
    for (name, text) in texts() {
        seen.file = name;
        seen.visit_file(&syn::parse_file(&text).expect("it compiles"));
    }
    compare("functions of more than 50 lines", &seen.long, LONG);
    compare("functions of more than five parameters", &seen.many, MANY);
}

/// The ending of a source, or `#!`; `None` of what is none: data, pages, lists.
fn kind(path: &Path) -> Option<&'static str> {
    let Some(ending) = path.extension() else {
        let mut start = [0; 2];
        let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut start));
        return (read.is_ok() && start == *b"#!").then_some("#!");
    };
    ENDINGS.into_iter().find(|known| ending == *known)
}

#[test]
fn files() {
    let root = workspace();
    let mut sources = Vec::new();
    below(root, &|path| kind(path).is_some(), &mut sources);
    let kinds: BTreeSet<_> = sources.iter().filter_map(|path| kind(path)).collect();
    assert_eq!(kinds.len(), ENDINGS.len() + 1, "only {kinds:?} were found");
    let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
    let long = sources.iter().filter(|path| lines(path) > FILE);
    let name = |path: &Path| path.strip_prefix(root).unwrap().display().to_string();
    let long = long.map(|path| name(path)).collect();
    compare("files of more than 600 lines", &long, LONG_FILES);
}
