//! The flags of a connection: what their table says is what the code does, and what the page shows.
//!
//! The table is `rsocket-core/src/conn/flag.rs`. What follows from it alone is tested beside it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rs_tests::workspace;
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Expr, Token};

/// Functions that give a slot the flags that they are called with.
const SETTERS: [&str; 4] = ["take", "established", "enter", "enter_new"];

/// One row of the table.
struct Row {
    name: String,
    life: String,
    implies: String,
    excludes: String,
    meaning: String,
}

impl Row {
    /// `    NAME = 3, Once, implies A | B, excludes C`, behind its comment.
    fn read(text: &str) -> Self {
        let lines = || text.lines().map(str::trim);
        let meaning: Vec<_> = lines().filter_map(|line| line.strip_prefix("/// ")).collect();
        let code: Vec<_> = lines().filter(|line| !line.starts_with("//")).collect();
        let code = code.join(" ");
        let (name, rest) = code.trim().split_once(" = ").expect("a row has a bit");
        let parts: Vec<_> = rest.split(", ").collect();
        let said = |word: &str| {
            let flags = parts.iter().find_map(|part| part.strip_prefix(word)).unwrap_or_default();
            flags.replace(" |", ",").trim().to_owned()
        };
        Self {
            name: name.to_owned(),
            life: parts[1].to_owned(),
            implies: said("implies"),
            excludes: said("excludes"),
            meaning: meaning.join(" "),
        }
    }

    /// As docs/design/rules.md shows it.
    fn shown(&self) -> String {
        let Self { name, implies, excludes, .. } = self;
        let life = match self.life.as_str() {
            "Born" => "from birth",
            "Once" => "once",
            "ComesAndGoes" => "comes and goes",
            other => panic!("{name}: {other} is no life"),
        };
        let meaning = self.meaning.replace("[`", "`").replace("`]", "`");
        let excludes = excludes.replace("STREAMS", "what only a stream has");
        let row = [name, life, implies, &excludes, &meaning];
        let cell = |text: &str| if text.is_empty() { String::new() } else { format!("{text} ") };
        row.iter().fold("|".to_owned(), |row, text| row + " " + &cell(text) + "|")
    }
}

fn table() -> Vec<Row> {
    let path = workspace().join("rsocket-core/src/conn/flag.rs");
    let text = std::fs::read_to_string(path).unwrap();
    let (_, rest) = text.split_once("\nflags! {\n").expect("the table");
    let (rows, _) = rest.split_once("\n}\n").expect("its end");
    let rows = rows.split(";\n").map(|row| row.trim_end_matches(';'));
    rows.filter(|row| !row.trim().is_empty()).map(Row::read).collect()
}

/// What a file does to flags.
#[derive(Default)]
struct Changes {
    file: String,
    set: BTreeMap<String, BTreeSet<String>>,
    cleared: BTreeMap<String, BTreeSet<String>>,
    /// Calls that clear what no flag's name says.
    unclear: Vec<String>,
}

/// The names of flags in an expression.
#[derive(Default)]
struct Names(BTreeSet<String>);

impl<'a> Visit<'a> for Names {
    fn visit_path(&mut self, path: &'a syn::Path) {
        let names: Vec<_> = path.segments.iter().map(|part| part.ident.to_string()).collect();
        if let [.., module, name] = names.as_slice()
            && module == "flag"
        {
            self.0.insert(name.clone());
        }
        visit::visit_path(self, path);
    }
}

fn names<'a>(expressions: impl IntoIterator<Item = &'a Expr>) -> BTreeSet<String> {
    let mut found = Names::default();
    expressions.into_iter().for_each(|e| found.visit_expr(e));
    found.0
}

/// Whether it is names of flags, and no more: what else it cleared, no table could say.
fn only_names(e: &Expr) -> bool {
    match e {
        Expr::Binary(both) => {
            matches!(both.op, syn::BinOp::BitOr(_))
                && only_names(&both.left)
                && only_names(&both.right)
        }
        Expr::Path(_) => !names([e]).is_empty(),
        _ => false,
    }
}

impl Changes {
    fn note(&mut self, set: bool, names: BTreeSet<String>) {
        let noted = if set { &mut self.set } else { &mut self.cleared };
        for name in names {
            noted.entry(name).or_default().insert(self.file.clone());
        }
    }

    fn called(&mut self, method: &str, given: &Punctuated<Expr, Token![,]>) {
        match (method, given.len()) {
            ("set" | "set_first", 1) => self.note(true, names(given)),
            ("turn", 2) => {
                self.note(false, names(given.first()));
                self.note(true, names(given.last()));
            }
            ("clear", 1) if !matches!(given.first(), Some(Expr::Closure(_))) => {
                if !given.iter().all(only_names) {
                    self.unclear.push(self.file.clone());
                }
                self.note(false, names(given));
            }
            _ => {}
        }
    }
}

impl<'a> Visit<'a> for Changes {
    fn visit_item_mod(&mut self, module: &'a syn::ItemMod) {
        if !module.attrs.iter().any(|a| a.path().is_ident("cfg")) {
            visit::visit_item_mod(self, module);
        }
    }
    fn visit_expr_method_call(&mut self, call: &'a syn::ExprMethodCall) {
        self.called(&call.method.to_string(), &call.args);
        visit::visit_expr_method_call(self, call);
    }
    fn visit_expr_call(&mut self, call: &'a syn::ExprCall) {
        if let Expr::Path(function) = &*call.func
            && let Some(last) = function.path.segments.last()
            && SETTERS.contains(&last.ident.to_string().as_str())
        {
            self.note(true, names(&call.args));
        }
        visit::visit_expr_call(self, call);
    }
}

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") && name != "fuzzing.rs" {
            found.push(path);
        }
    }
}

fn changes() -> Changes {
    let mut files = Vec::new();
    for package in ["rsocket-core", "rspreload", "rsocket-capi"] {
        sources(&workspace().join(package).join("src"), &mut files);
    }
    assert!(files.len() > 100, "{files:?}");
    let mut changes = Changes::default();
    for path in files {
        changes.file = path.strip_prefix(workspace()).unwrap().display().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        changes.visit_file(&syn::parse_file(&text).unwrap());
    }
    changes
}

fn with_life(life: &str) -> BTreeSet<String> {
    table().into_iter().filter(|row| row.life == life).map(|row| row.name).collect()
}

/// What is set once is cleared nowhere, and what comes and goes is cleared somewhere.
#[test]
fn what_is_cleared_is_what_comes_and_goes() {
    let changes = changes();
    assert!(changes.unclear.is_empty(), "cleared by no name: {:?}", changes.unclear);
    let cleared: BTreeSet<_> = changes.cleared.keys().cloned().collect();
    assert_eq!(cleared, with_life("ComesAndGoes"), "{:#?}", changes.cleared);
}

/// A flag that nothing sets says nothing.
#[test]
fn every_flag_is_set_somewhere() {
    let changes = changes();
    let set: BTreeSet<_> = changes.set.keys().cloned().collect();
    let every: BTreeSet<_> = table().into_iter().map(|row| row.name).collect();
    assert_eq!(set, every, "{:#?}", changes.set);
}

#[test]
fn the_page_shows_the_table() {
    let page = std::fs::read_to_string(workspace().join("docs/design/rules.md")).unwrap();
    let (_, section) = page.split_once("\n## The flags of a connection\n").expect("the section");
    let section = section.split("\n## ").next().unwrap();
    let shown: Vec<_> =
        section.lines().filter(|line| line.starts_with('|')).skip(2).map(str::to_owned).collect();
    let expected: Vec<_> = table().iter().map(Row::shown).collect();
    assert!(expected.len() > 20);
    assert_eq!(shown, expected, "as it should be:\n{}", expected.join("\n"));
}
