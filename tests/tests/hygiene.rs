//! What must hold of the library as a file: what it exports, what it needs, how it was built. Each
//! of these was a failure once (docs/spec/hazards.md).

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use rs_tests::{preload_library, rsocket_library, workspace};

fn output(command: &mut Command) -> String {
    let done = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(done.status.success(), "{command:?}: {}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8(done.stdout).expect("tools print text")
}

fn exported(library: &Path) -> BTreeSet<String> {
    output(Command::new("nm").args(["-D", "--defined-only"]).arg(library))
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(|name| name.split('@').next().unwrap_or(name).to_owned())
        .collect()
}

/// The names that a library is to export: rspreload's are the lines of its table of calls that say
/// so.
fn listed(package: &str) -> BTreeSet<String> {
    let directory = workspace().join(package);
    let read = |name| {
        std::fs::read_to_string(directory.join(name)).expect("the list is part of the source")
    };
    if package != "rspreload" {
        return read("exports.txt")
            .lines()
            .map(str::to_owned)
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .collect();
    }
    read("calls.txt")
        .lines()
        .filter(|l| l.starts_with('+') || l.starts_with('*'))
        .filter_map(|l| l.split_whitespace().nth(2))
        .map(str::to_owned)
        .collect()
}

/// A symbol that leaks out of a dependency would interpose every program's own function of that
/// name.
#[test]
fn they_export_the_listed_names_and_no_others() {
    for (library, package) in
        [(preload_library(), "rspreload"), (rsocket_library(), "rsocket-capi")]
    {
        let (exported, listed) = (exported(library), listed(package));
        let unlisted: Vec<_> = exported.difference(&listed).collect();
        let missing: Vec<_> = listed.difference(&exported).collect();
        assert!(
            unlisted.is_empty() && missing.is_empty(),
            "{package}: not in its list: {unlisted:?}; not exported: {missing:?}"
        );
    }
}

/// A program that is compiled with the header finds every call, and no call is hidden from it.
#[test]
fn the_header_declares_what_is_exported() {
    let path = workspace().join("rsocket-capi/include/rdma/rsocket.h");
    let text = std::fs::read_to_string(path).expect("the header is part of the source");
    let declared: BTreeSet<String> = text
        .lines()
        .filter(|l| {
            ["int r", "ssize_t r", "size_t r", "off_t r"].iter().any(|start| l.starts_with(start))
        })
        .filter_map(|l| l.split_once(' ')?.1.split('(').next())
        .map(str::to_owned)
        .collect();
    assert_eq!(declared, listed("rsocket-capi"));
}

/// Programs find it by this name, and the steps around `fork` keep pointing into it.
#[test]
fn the_rsocket_library_has_a_name_and_stays() {
    let text = output(Command::new("readelf").arg("-dW").arg(rsocket_library()));
    assert!(text.contains("soname: [librsocket.so]"), "{text}");
    assert!(text.lines().any(|l| l.contains("FLAGS_1") && l.contains("NODELETE")), "{text}");
}

/// A call on a descriptor that is not ours is a look-up and a jump. What our own connections need
/// stands out of line, so that the whole function is the way past it.
#[test]
#[cfg(target_arch = "x86_64")]
fn a_miss_costs_a_few_instructions() {
    let library = rs_tests::build_preload_library(true);
    let limits = [
        ("read", 12),
        ("write", 12),
        ("recv", 12),
        ("send", 12),
        ("poll", 12),
        ("epoll_wait", 12),
        ("close", 24),
        ("sendmsg", 24),
    ];
    for (name, most) in limits {
        let text = output(
            Command::new("objdump")
                .args(["--no-show-raw-insn", &format!("--disassemble={name}")])
                .arg(&library),
        );
        let count = text
            .lines()
            .filter(|l| {
                l.starts_with(' ') && l.contains(":\t") && !l.contains("int3") && !l.contains("nop")
            })
            .count();
        assert!(count > 0 && count <= most, "{name}: {count} instructions\n{text}");
    }
}

/// `syscall` carries std's own futex, and the system calls of sandboxes. The hook looks at six
/// numbers, looks others up among those that wait, and touches nothing.
#[test]
#[cfg(target_arch = "x86_64")]
fn it_leaves_syscall_alone() {
    for release in [false, true] {
        let library = rs_tests::build_preload_library(release);
        let text = output(
            Command::new("objdump")
                .args(["--no-show-raw-insn", "--disassemble=syscall"])
                .arg(library),
        );
        let body: Vec<_> =
            text.lines().filter_map(|l| l.split_once(":\t")).map(|(_, i)| i.trim()).collect();
        let waits = ["cmp ", "jae ", "bt ", "jb ", "jmp "];
        let looks: Vec<_> = ["cmp ", "je "].repeat(6).into_iter().chain(waits).collect();
        let Some((way, padding)) = body.split_at_checked(looks.len()) else { panic!("{text}") };
        assert!(way.iter().zip(&looks).all(|(i, look)| i.starts_with(*look)), "{text}");
        assert!(
            padding.iter().all(|i| i.contains("nop") || i.contains("int3") || i.contains("xchg")),
            "{text}"
        );
    }
}

/// The symbols of the library for programs that stand in that section.
fn symbols_in(section: &str) -> Vec<String> {
    let text = output(Command::new("objdump").arg("-t").arg(rs_tests::build_preload_library(true)));
    let section = format!(" {section}\t");
    text.lines().filter(|l| l.contains(&section)).map(str::to_owned).collect()
}

/// Fails unless each of these names is among those symbols.
fn assert_named(symbols: &[String], names: &[&str]) {
    for name in names {
        assert!(symbols.iter().any(|l| l.contains(name)), "{name} is not among {symbols:?}");
    }
}

/// How many bytes they have in all.
fn size_of_all(symbols: &[String]) -> usize {
    let size = |line: &String| {
        line.split_whitespace().rev().nth(1).and_then(|n| usize::from_str_radix(n, 16).ok())
    };
    symbols.iter().filter_map(size).sum()
}

/// What a byte passes stands side by side, whichever linker made the library
/// (`rsocket-core/data-path.ld`): the patterns there name functions that may be renamed.
#[test]
fn the_data_path_is_in_one_place() {
    let inside = symbols_in(".text.data_path");
    let names = [
        "hooks4send",
        "hooks4recv",
        "send_at_once",
        "receive_at_once",
        "6bypass4send",
        "6bypass4look",
        "4pump",
        "4post17h",
        "9post_send",
        "post_receives",
        "receive_patiently",
        "4room9follow_up",
        "7in_turn",
        "12post_at_once",
    ];
    assert_named(&inside, &names);
    let tables = symbols_in(".bss.data_path");
    assert_named(&tables, &["10FORK_GROUP", "8WATCHERS", "5STATS"]);
    let all = size_of_all(&inside);
    assert!((16 << 10..64 << 10).contains(&all), "{all} bytes");
}

/// So does what each connection and each child of a server passes once, and the words that a child
/// writes: large tables stand behind them.
#[test]
fn what_a_child_passes_is_in_one_place() {
    let inside = symbols_in(".text.life_path");
    let names =
        ["7process5child", "4life7closing", "8handlers", "8registry", "10fork_group", "living"];
    assert_named(&inside, &names);
    let all = size_of_all(&inside);
    assert!((32 << 10..192 << 10).contains(&all), "{all} bytes");
    let tables = ["descriptors5TABLE", "8REGISTRY", "4here4HELD", "8MAPPINGS", "6CHUNKS"];
    assert_named(&symbols_in(".bss.tables"), &tables);
    // A page, as far as it goes: the words of .bss.data_path stand on it as well.
    let words = size_of_all(&symbols_in(".bss")) + size_of_all(&symbols_in(".bss.data_path"));
    assert!(words < 4 << 10, "{words} bytes of small variables: is an array among them?");
}

/// A name in `rsocket-core/data-path.ld` that is not the sources' any more has lost its place.
#[test]
fn the_data_path_names_what_there_is() {
    let list = std::fs::read_to_string(workspace().join("rsocket-core/data-path.ld")).unwrap();
    let mut count = 0;
    for pattern in list.split(['(', ')', ' ', '\n']) {
        let names = mangled(pattern);
        let package = match pattern.split(|c: char| c.is_ascii_digit()).next() {
            Some(".text.*rspreload" | ".bss.*rspreload") => "rspreload",
            Some(".text.*rsocket") => "rsocket-capi",
            Some(".text.*rsocket_sync" | ".bss.*rsocket_sync") => "rsocket-sync",
            Some(".text.*rsocket_host" | ".bss.*rsocket_host") => "rsocket-host",
            Some(".text.*rsocket_rdma" | ".bss.*rsocket_rdma") => "rsocket-rdma",
            Some(".text.*rsocket_shm") => "rsocket-shm",
            Some(".text.*rsocket_core" | ".bss.*rsocket_core") => "rsocket-core",
            _ => continue,
        };
        let (source, rest) = module(&workspace().join(package).join("src"), &names);
        for name in rest {
            let kinds = ["fn", "static", "struct"].map(|kind| format!("{kind} {name}"));
            assert!(kinds.iter().any(|kind| source.contains(kind)), "{pattern}: no {name}");
        }
        count += 1;
    }
    assert!(count > 20, "{count} names");
}

/// The names in a mangled one, each of which stands behind its length.
fn mangled(pattern: &str) -> Vec<&str> {
    let (mut names, mut rest) = (Vec::new(), pattern);
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = rest[at..].chars().take_while(char::is_ascii_digit).count();
        let (length, after) = rest[at..].split_at(digits);
        let Some(name) = length.parse().ok().and_then(|n: usize| after.get(..n)) else { break };
        names.push(name);
        rest = &after[name.len()..];
    }
    names
}

/// The source of the module that a path begins with, and what comes behind it in the path.
fn module<'a>(root: &Path, path: &'a [&'a str]) -> (String, &'a [&'a str]) {
    let mut found = (String::new(), path);
    for n in 1..=path.len() {
        let module = root.join(path[..n].join("/"));
        for file in [module.with_extension("rs"), module.join("mod.rs")] {
            if let Ok(source) = std::fs::read_to_string(file) {
                found = (source, &path[n..]);
            }
        }
    }
    found
}

/// A missing dependency of a preload library kills every program that is started, the shell
/// included. A present one makes every start longer: libgcc_s more than all the rest of it
/// (`rspreload/src/unwind.rs`).
#[test]
fn they_need_nothing_but_libc() {
    let mut preload = vec!["libc.so.6"];
    if !cfg!(target_arch = "x86_64") {
        preload.push("libgcc_s.so.1");
    }
    let libraries = [
        (preload_library().to_owned(), preload.as_slice()),
        (rs_tests::build_preload_library(true), preload.as_slice()),
        (rsocket_library().to_owned(), &["libc.so.6", "libgcc_s.so.1"]),
    ];
    for (library, known) in libraries {
        let text = output(Command::new("readelf").arg("-dW").arg(&library));
        for line in text.lines().filter(|l| l.contains("(NEEDED)")) {
            let name = line.split(['[', ']']).nth(1).unwrap_or(line);
            assert!(
                known.contains(&name) || name.starts_with("ld-linux"),
                "{} needs {name}",
                library.display()
            );
        }
    }
}

/// The RDMA libraries are loaded at their first use, also by the library as it is released: where
/// they are missing every program still starts.
#[test]
fn it_loads_the_rdma_libraries_itself() {
    for release in [false, true] {
        let text = output(
            Command::new("readelf").arg("-dW").arg(rs_tests::build_preload_library(release)),
        );
        assert!(text.contains("(NEEDED)"), "{text}");
        for name in ["libibverbs", "librdmacm"] {
            assert!(!text.contains(name), "{text}");
        }
    }
    // Their names are in one module, which calls nothing of the crate.
    let device = workspace().join("rsocket-rdma/src");
    for file in sources(&device) {
        let text = std::fs::read_to_string(&file).expect("a source is text");
        assert!(!text.contains("rdma_sys") || file.ends_with("ffi.rs"), "{}", file.display());
    }
}

/// With its `use-libc` feature, which any other crate could switch on, rustix would call our own
/// hooks. (`use-libc-auxv` is getauxval alone, which nobody hooks; without it a preloaded program
/// cannot run under valgrind.)
#[test]
fn rustix_goes_to_the_kernel_itself() {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let text = output(Command::new(cargo).current_dir(workspace()).args([
        "tree",
        "--offline",
        "-p",
        "rspreload",
        "-e",
        "features,no-dev,no-build",
        "-i",
        "rustix@1",
    ]));
    assert!(text.contains("rustix v"), "{text}");
    assert!(!text.replace("use-libc-auxv", "").contains("use-libc"), "{text}");
}

/// `pthread_cancel` unwinds through our frames: with `panic = "abort"` it would end the process.
#[test]
fn every_profile_unwinds() {
    let text = std::fs::read_to_string(workspace().join("Cargo.toml"))
        .expect("the workspace has a manifest");
    for profile in ["[profile.dev]", "[profile.release]"] {
        let section = text.split(profile).nth(1).expect(profile);
        let section = section.split("\n[").next().unwrap_or(section);
        assert!(section.contains("panic = \"unwind\""), "{profile}: {section}");
    }
    assert!(!text.contains("panic = \"abort\""));
}

/// A thread-local with a destructor runs before the program's own late destructors, which may still
/// call us.
#[test]
fn no_thread_local_of_its_own_has_a_destructor() {
    for package in ["rspreload", "rsocket-capi", "rsocket-core", "rsocket-host", "rsocket-sync"] {
        for file in sources(&workspace().join(package).join("src")) {
            let text = std::fs::read_to_string(&file).expect("a source is text");
            let mut inside = 0;
            for (n, line) in text.lines().enumerate() {
                if line.trim_start().starts_with("thread_local!") {
                    inside = 8;
                }
                if inside > 0 && line.contains("static ") {
                    assert!(line.contains("const {"), "{}:{}: {line}", file.display(), n + 1);
                }
                inside -= i32::from(inside > 0);
            }
        }
    }
}

/// What would block, allocate or come back to us from a hook.
#[test]
fn the_hooks_use_nothing_that_blocks() {
    let banned = [
        "OnceLock",
        "LazyLock",
        "std::sync::Once",
        "std::sync::Mutex",
        "catch_unwind(",
        "println!",
    ];
    let shared = ["core/src/descriptors.rs", "core/src/process.rs", "edge/src/edge.rs"]
        .map(|f| workspace().join(format!("rsocket-{f}")));
    let own = ["rspreload/src", "rsocket-capi/src"].map(|d| sources(&workspace().join(d)));
    for file in own.into_iter().flatten().chain(shared) {
        let text = std::fs::read_to_string(&file).expect("a source is text");
        for (n, line) in text.lines().enumerate().filter(|(_, l)| !l.trim_start().starts_with("//"))
        {
            for word in banned {
                assert!(!line.contains(word), "{}:{}: {line}", file.display(), n + 1);
            }
        }
    }
}

fn sources(directory: &Path) -> Vec<std::path::PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).expect("a source directory").flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}
