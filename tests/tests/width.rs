//! Lines are as wide as a screen, in pages and in code.

use std::path::{Path, PathBuf};

use rs_tests::workspace;

const COLUMNS: usize = 100;
/// Lines of code that are wider: long texts, and what a macro holds. A mend lowers the number.
const WIDE: usize = 83;
/// What is not looked into: it is made, or not ours.
const SKIPPED: [&str; 3] = ["target", ".git", "__pycache__"];

/// The files below `dir` with this ending.
fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found = Vec::new();
    for path in entries {
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() && !SKIPPED.contains(&name.as_str()) {
            found.extend(files(&path, ending));
        } else if name.ends_with(ending) && path.is_file() {
            found.push(path);
        }
    }
    found
}

/// The lines that are too wide, of those that `counts` says count.
fn wide(ending: &str, counts: impl Fn(&str) -> bool) -> Vec<String> {
    let root = workspace();
    let mut found = Vec::new();
    for path in files(root, ending) {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.strip_prefix(root).unwrap().display();
        let lines = text.lines().enumerate();
        let lines = lines.filter(|(_, line)| line.chars().count() > COLUMNS && counts(line));
        found.extend(lines.map(|(n, _)| format!("{name}:{}", n + 1)));
    }
    found
}

#[test]
fn pages() {
    // A row of a table, and a command, stand in one line.
    let command = |line: &str| line.trim().starts_with('`') && line.trim().ends_with(['`', '.']);
    let wide = wide(".md", |line| !line.starts_with('|') && !command(line));
    assert!(wide.is_empty(), "more than {COLUMNS} columns: {wide:#?}");
}

/// What everybody reads has no exceptions.
#[test]
fn the_first_pages() {
    let wide = wide(".md", |_| true);
    let first = ["README.md:", "ARCHITECTURE.md:"];
    let wide: Vec<_> =
        wide.into_iter().filter(|line| first.iter().any(|page| line.starts_with(page))).collect();
    assert!(wide.is_empty(), "more than {COLUMNS} columns: {wide:#?}");
}

#[test]
fn code() {
    let wide = wide(".rs", |_| true);
    assert!(wide.len() <= WIDE, "{} lines, not {WIDE}: {wide:#?}", wide.len());
    assert!(wide.len() == WIDE, "only {} lines are wide now: lower WIDE", wide.len());
}
