//! What the repository's text cites is there: sections of docs/spec, hazards, files, links.
//!
//! A citation is written `PAGE §N` (N is the number of a heading of docs/spec/PAGE.md), or
//! `hazards HN`. A number without a page is of the page that the same file named last; a page of
//! docs/spec means itself.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use rs_tests::workspace;

/// Before the number of a section.
const SECTION: char = '§';
/// What is not looked into: it is made, or not ours.
const SKIPPED: [&str; 4] = ["target", ".git", "node_modules", "__pycache__"];
/// What stands for any name.
const ANY: [&str; 2] = ["NAME", "FILE"];
/// The map has at most so many lines.
const LINES: usize = 150;

/// The headings of docs/spec, by page.
struct Pages(BTreeMap<String, BTreeSet<String>>);

impl Pages {
    fn read() -> Self {
        let spec = workspace().join("docs/spec");
        let pages = markdown(&spec).into_iter().map(|page| (stem(&page), numbers(&text(&page))));
        Self(pages.collect())
    }

    fn has(&self, page: &str, number: &str) -> bool {
        self.0.get(page).is_some_and(|numbers| numbers.contains(number))
    }

    /// The citations of a text that lead nowhere. `own`: the page that it is, if it is one.
    fn dead(&self, text: &str, own: Option<&str>) -> Vec<String> {
        let mut last = own.map(str::to_owned);
        let mut dead = Vec::new();
        for (at, _) in text.match_indices(SECTION) {
            let number = number_at(&text[at + SECTION.len_utf8()..]);
            last = self.named_before(&text[..at]).or(last);
            match &last {
                Some(page) if self.has(page, &number) => {}
                Some(page) => dead.push(format!("{page} {SECTION}{number}")),
                None => dead.push(format!("{SECTION}{number} of no page")),
            }
        }
        for (at, _) in text.match_indices("hazards H") {
            let number = &text[at + "hazards ".len()..];
            let end =
                number[1..].find(|c: char| !c.is_ascii_digit()).map_or(number.len(), |i| i + 1);
            if !self.has("hazards", &number[..end]) {
                dead.push(format!("hazards {}", &number[..end]));
            }
        }
        dead
    }

    /// The page that stands right before a number, perhaps at the end of the line before.
    fn named_before(&self, text: &str) -> Option<String> {
        let text = text.trim_end_matches(|c: char| c.is_whitespace() || "`/!#*".contains(c));
        self.0.keys().find(|page| text.ends_with(page.as_str())).cloned()
    }
}

fn number_at(text: &str) -> String {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    text[..end].trim_end_matches('.').to_owned()
}

/// The numbers with which the headings of a page begin: `5.5`, `H4`.
fn numbers(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with("##"));
    headings
        .filter_map(|line| line.trim_start_matches('#').split_whitespace().next())
        .map(|word| word.trim_end_matches(['.', ':']).to_owned())
        .collect()
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn stem(path: &Path) -> String {
    path.file_stem().expect("a file has a name").to_string_lossy().into_owned()
}

/// Every file below a directory.
fn files(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a directory of the repository") {
        let entry = entry.expect("an entry");
        let kind = entry.file_type().expect("its kind");
        if SKIPPED.iter().any(|name| *name == entry.file_name()) {
            continue;
        }
        if kind.is_dir() {
            found.extend(files(&entry.path()));
        } else if kind.is_file() {
            found.push(entry.path());
        }
    }
    found
}

/// Every file of the repository but this one, which has wrong citations.
fn citing() -> Vec<PathBuf> {
    let mut citing = files(workspace());
    citing.retain(|path| !path.ends_with("tests/tests/citations.rs"));
    citing
}

fn markdown(directory: &Path) -> Vec<PathBuf> {
    let mut pages = files(directory);
    pages.retain(|path| path.extension().is_some_and(|e| e == "md"));
    pages.sort();
    pages
}

/// The pages for people: those at the root, and docs.
fn pages() -> Vec<PathBuf> {
    let root = workspace();
    let mut pages =
        vec![root.join("README.md"), root.join("ARCHITECTURE.md"), root.join("CONTRIBUTING.md")];
    pages.extend(markdown(&root.join("docs")));
    pages
}

/// Whether a file or directory of the repository has this path, or a path that ends with it.
fn exists(known: &[String], path: &str) -> bool {
    let path = path.trim_end_matches('/');
    if SKIPPED.contains(&path) || ANY.iter().any(|any| path.contains(any)) {
        return true;
    }
    known.iter().any(|file| {
        let at = file.strip_suffix(path).or_else(|| Some(file.split_once(&format!("{path}/"))?.0));
        at.is_some_and(|before| before.is_empty() || before.ends_with('/'))
    })
}

/// The words of a text in back quotes that name a file or a directory.
fn named_files(text: &str) -> Vec<&str> {
    const KINDS: [&str; 9] = [".rs", ".md", ".sh", ".c", ".h", ".txt", ".py", ".7", ".1"];
    let outside = text.split("```").step_by(2);
    let quoted = outside.flat_map(|part| part.split('`').skip(1).step_by(2));
    quoted
        .filter(|word| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
            let kind =
                KINDS.iter().any(|kind| word.ends_with(kind)) && !word.starts_with(['.', '/', '-']);
            let directory =
                word.ends_with('/') && word.starts_with(|c: char| c.is_ascii_lowercase());
            (kind || directory) && word.chars().all(plain)
        })
        .collect()
}

/// The words of a text in back quotes that name an item: `module::function`, `Type::CONSTANT`.
fn named_items(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    let quoted = outside.flat_map(|part| part.split('`').skip(1).step_by(2));
    let plain =
        |part: &str| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_');
    quoted.filter(|word| word.contains("::") && word.split("::").all(plain)).collect()
}

/// Whether `name` stands in a line as a word, right behind `before`.
fn says(line: &str, before: &str, name: &str) -> bool {
    line.match_indices(before).any(|(at, _)| {
        let rest = line[at + before.len()..].strip_prefix(name);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '_'))
    })
}

/// Whether a source defines something of this name, has it as a variant, or passes it on.
fn defines(source: &str, name: &str) -> bool {
    const KINDS: [&str; 8] =
        ["fn ", "struct ", "enum ", "const ", "static ", "trait ", "type ", "mod "];
    source.lines().any(|line| {
        let passed_on = line.trim_start().starts_with("pub") && line.contains(" use ");
        KINDS.iter().any(|kind| says(line, kind, name))
            || says(line.trim_start(), "", name) && line.starts_with(' ')
            || passed_on && [":", "{", " "].iter().any(|before| says(line, before, name))
    })
}

/// Whether the sources have the item: its last part in a file, a folder or beside a type that the
/// part before it names.
fn has_item(sources: &[(String, String)], item: &str) -> bool {
    let mut parts = item.rsplit("::");
    let (Some(last), Some(owner)) = (parts.next(), parts.next()) else { return false };
    sources.iter().any(|(path, source)| {
        let by_path = || path.trim_end_matches(".rs").split('/').any(|part| part == owner);
        let owned = || source.contains(owner) && defines(source, owner);
        source.contains(last) && (by_path() || owned()) && defines(source, last)
    })
}

/// The pages of docs that a text names by their path.
fn named_pages(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices("docs/") {
        let before = text[..at].chars().next_back();
        let rest = &text[at..];
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !"_-./".contains(c));
        let path = rest[..end.unwrap_or(rest.len())].trim_end_matches('.');
        let begins = before.is_none_or(|c| !c.is_ascii_alphanumeric() && !"/_-.".contains(c));
        if begins && path.ends_with(".md") {
            found.push(path);
        }
    }
    found
}

/// The targets of a page's links that are in the repository.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
    targets.filter(|target| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// What a heading is called in a link: as the common renderers of Markdown have it.
fn anchor(heading: &str) -> String {
    let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    heading
        .trim()
        .to_lowercase()
        .chars()
        .filter(kept)
        .map(|c| if c == ' ' { '-' } else { c })
        .collect()
}

fn leads(page: &Path, target: &str) -> bool {
    let (path, place) =
        target.split_once('#').map_or((target, None), |(path, place)| (path, Some(place)));
    let file = if path.is_empty() {
        page.to_owned()
    } else {
        page.parent().expect("a page is in a directory").join(path)
    };
    let heading = |place: &str| {
        text(&file)
            .lines()
            .filter(|l| l.starts_with('#'))
            .any(|l| anchor(l.trim_start_matches('#')) == place)
    };
    file.exists() && place.is_none_or(heading)
}

fn relative(path: &Path) -> String {
    path.strip_prefix(workspace()).expect("a file of the repository").to_string_lossy().into_owned()
}

#[test]
fn every_section_and_hazard_that_is_cited_exists() {
    let spec = Pages::read();
    let (mut cited, mut dead) = (0, Vec::new());
    for file in citing() {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        cited += text.matches(SECTION).count() + text.matches("hazards H").count();
        let own = file.parent().filter(|p| p.ends_with("docs/spec")).map(|_| stem(&file));
        dead.extend(
            spec.dead(&text, own.as_deref())
                .into_iter()
                .map(|d| format!("{}: {d}", relative(&file))),
        );
    }
    assert!(dead.is_empty(), "{dead:#?}");
    assert!(cited > 100, "only {cited} citations were found");
}

#[test]
fn every_page_that_is_named_exists() {
    let root = workspace();
    let mut dead = Vec::new();
    for file in citing() {
        let Ok(text) = std::fs::read_to_string(&file) else { continue };
        let missing = named_pages(&text).into_iter().filter(|page| !root.join(page).exists());
        dead.extend(missing.map(|page| format!("{}: {page}", relative(&file))));
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_file_that_a_page_names_exists() {
    let known: Vec<String> = files(workspace()).iter().map(|file| relative(file)).collect();
    let mut dead = Vec::new();
    for page in pages() {
        let text = text(&page);
        let missing = named_files(&text).into_iter().filter(|file| !exists(&known, file));
        dead.extend(missing.map(|file| format!("{}: {file}", relative(&page))));
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_item_that_a_page_names_exists() {
    let mut sources = files(workspace());
    sources.retain(|path| path.extension().is_some_and(|e| e == "rs"));
    let sources: Vec<_> = sources.iter().map(|path| (relative(path), text(path))).collect();
    let mut dead = Vec::new();
    for page in pages() {
        let text = text(&page);
        let missing = named_items(&text).into_iter().filter(|item| !has_item(&sources, item));
        dead.extend(missing.map(|item| format!("{}: {item}", relative(&page))));
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn every_link_leads_somewhere() {
    let mut dead = Vec::new();
    for page in pages() {
        let text = text(&page);
        let missing = links(&text).into_iter().filter(|target| !leads(&page, target));
        dead.extend(missing.map(|target| format!("{}: {target}", relative(&page))));
    }
    assert!(dead.is_empty(), "{dead:#?}");
}

#[test]
fn the_map_is_one_page() {
    let lines = text(&workspace().join("ARCHITECTURE.md")).lines().count();
    assert!(
        lines <= LINES,
        "ARCHITECTURE.md has {lines} lines: what a page says better goes there"
    );
}

#[test]
fn a_wrong_citation_is_found() {
    let spec = Pages::read();
    let dead = |text: &str| spec.dead(text, None);
    for good in [
        "as `wire-protocol §5.5` says, and `§5.6`",
        "(`wire-protocol\n//! §2`), then `life-of-a-connection §4`.",
        "`hazards H4` and `hazards H16`",
    ] {
        assert_eq!(dead(good), [""; 0], "{good}");
    }
    for bad in [
        "`wire-protocol §99.9`",
        "`wire-protocol §5.5` and `§5.55`",
        "`life-of-a-connection §4.1`",
        "`§5.5` of no page",
        "`hazards H17`",
        "`hazards H`",
    ] {
        assert_eq!(dead(bad).len(), 1, "{bad}: {:?}", dead(bad));
    }
}

#[test]
fn a_wrong_file_or_link_is_found() {
    let known = ["rsocket-core/src/socket/send.rs".to_owned(), "docs/limits.md".to_owned()];
    for good in ["send.rs", "socket/send.rs", "socket/", "docs/limits.md", "rsocket-core/"] {
        assert!(exists(&known, good), "{good}");
    }
    for bad in ["end.rs", "attach/send.rs", "ocket/", "limits"] {
        assert!(!exists(&known, bad), "{bad}");
    }
    assert_eq!(
        named_files("`a/b.rs` and `x.y()` in `attach/`, ```\n`no.rs`\n```"),
        ["a/b.rs", "attach/"]
    );
    assert_eq!(named_pages("see docs/no-page.md."), ["docs/no-page.md"]);
    let sources = [(
        "core/src/send.rs".to_owned(),
        "pub fn cut() {}\nenum Into {\n    Stream,\n}".to_owned(),
    )];
    for (item, is) in
        [("send::cut", true), ("Into::Stream", true), ("send::cuts", false), ("x::cut", false)]
    {
        assert_eq!(has_item(&sources, item), is, "{item}");
    }
    let page = workspace().join("README.md");
    assert!(leads(&page, "docs/limits.md") && !leads(&page, "docs/none.md"));
    assert!(!leads(&page, "docs/limits.md#no-such-heading"));
    assert_eq!(links("[a](b.md) and [c](https://example.org)"), ["b.md"]);
}
