//! Who stores into the rings of a channel: its two ends, and nothing beside them.
//!
//! Put once and taken once are rules of the source. Each operation that tells the other end
//! something is named in a few files, and the table here has all of them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rs_tests::workspace;

/// What puts a message into a ring, or gives room back, and the files that do it. `direction.rs`
/// has the operations themselves. The channel of a queue pair (`queue_pair.rs`) has words of its
/// own, and no messages. `fuzzing.rs` is a peer that breaks the rules.
const STORES: [(&str, &[&str]); 5] = [
    ("publish_data(", &["channel/sender.rs", "direction.rs", "fuzzing.rs", "queue_pair.rs"]),
    ("publish_control(", &["channel/receiver.rs", "direction.rs", "fuzzing.rs", "queue_pair.rs"]),
    ("post_entry(", &["channel/receiver.rs", "direction.rs", "queue_pair.rs"]),
    // The states go on in the same places.
    ("data_position = ", &["channel/receiver.rs", "channel/sender.rs", "channel/state.rs"]),
    ("control_position = ", &["channel/receiver.rs", "channel/sender.rs"]),
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            sources(&path, found);
        } else if name.ends_with(".rs") && !name.ends_with("tests.rs") {
            found.push(path);
        }
    }
}

/// The code of a file, without its comments.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

#[test]
fn only_the_ends_of_a_channel_store_into_its_rings() {
    let mut files = Vec::new();
    let roots = ["rsocket-core/src", "rsocket-shm/src"].map(|root| workspace().join(root));
    roots.iter().for_each(|root| sources(root, &mut files));
    assert!(files.len() > 100, "{files:?}");
    let name = |path: &Path| {
        let path = roots.iter().find_map(|root| path.strip_prefix(root).ok()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    for (store, allowed) in STORES {
        let found: BTreeSet<_> =
            files.iter().filter(|path| code(path).contains(store)).map(|path| name(path)).collect();
        let allowed: BTreeSet<_> = allowed.iter().map(|s| (*s).to_owned()).collect();
        assert_eq!(found, allowed, "{store}");
    }
}
