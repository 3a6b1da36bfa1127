//! What of the command line becomes the environment, and where each setting comes from in the end.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rsocket_edge::config::{Config, DIRECTORY, FIELDS};

use super::arguments::Arguments;

/// The variables that the options stand for.
///
/// # Errors
/// A path that cannot be made absolute: the program may change its directory.
pub fn environment(a: &Arguments) -> Result<Vec<(&'static str, OsString)>, String> {
    let mut set: Vec<(&'static str, OsString)> = Vec::new();
    let mut put = |name, value: Option<OsString>| set.extend(value.map(|v| (name, v)));
    put("RSOCKET_TRANSPORT", a.transport.as_ref().map(Into::into));
    put("RSOCKET_ATTACH", a.eager.then(|| "eager".into()));
    put("RSOCKET_REQUIRE", a.require.then(|| "1".into()));
    put("RDMAV_FORK_SAFE", a.fork_safe.then(|| "1".into()));
    put("RSOCKET_SECCOMP", a.trust_seccomp.then(|| "trust".into()));
    put("RSOCKET_SECCOMP", a.seccomp.as_ref().map(Into::into));
    put("RSOCKET_LOG", a.log.as_ref().map(Into::into));
    // A file to say it in is worth nothing while nothing is said.
    if a.log.is_none() && a.log_file.is_some() && std::env::var_os("RSOCKET_LOG").is_none() {
        put("RSOCKET_LOG", Some("info".into()));
    }
    for (name, path) in [
        ("RSOCKET_LOG_FILE", &a.log_file),
        ("RSOCKET_STATS", &a.stats),
        ("RSOCKET_PCAP", &a.pcap),
        ("RSOCKET_CONF_DIR", &a.conf_dir),
    ] {
        if let Some(path) = path {
            let whole =
                std::path::absolute(path).map_err(|e| format!("{}: {e}", path.display()))?;
            put(name, Some(whole.into_os_string()));
        }
    }
    for field in &FIELDS {
        put(field.variable, number(a, field.file).map(|n| n.to_string().into()));
    }
    Ok(set)
}

/// The option for the number that this file of the configuration holds.
fn number(a: &Arguments, file: &str) -> Option<u32> {
    match file {
        "mem_default" => a.receive_buffer,
        "wmem_default" => a.send_buffer,
        "sqsize_default" => a.send_queue,
        "rqsize_default" => a.receive_queue,
        "inline_default" => a.inline,
        "iomap_size" => a.iomap,
        "polling_time" => a.polling_time,
        "wake_up_interval" => a.wake_up_interval,
        _ => None,
    }
}

/// One setting as the program will find it.
#[derive(Debug, PartialEq, Eq)]
pub struct Resolved {
    /// Its name for people.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Where that comes from.
    pub source: String,
}

/// Every setting, with where it comes from. `get` is the environment that the program would inherit
/// without rsrun.
pub fn resolve(
    set: &[(&'static str, OsString)],
    get: impl Fn(&str) -> Option<OsString>,
) -> Vec<Resolved> {
    let lookup = |name: &str| {
        let by_option = set.iter().find(|(n, _)| *n == name).map(|(_, v)| (v.clone(), "option"));
        by_option.or_else(|| get(name).map(|v| (v, "environment"))).filter(|(v, _)| !v.is_empty())
    };
    let config = load(&lookup);
    let mut out = of_files(&lookup, &config);
    let words = |name: &str| match lookup(name) {
        Some((v, from)) => (v.to_string_lossy().into_owned(), format!("{from} {name}")),
        None => ("-".to_owned(), "default".to_owned()),
    };
    let (_, source) = words("RSOCKET_TRANSPORT");
    let names: Vec<String> =
        config.transports.iter().map(|t| format!("{t:?}").to_lowercase()).collect();
    out.push(Resolved { name: "transport".into(), value: names.join(","), source });
    for (name, variable) in WORDS {
        let (value, source) = words(variable);
        out.push(Resolved { name: name.into(), value, source });
    }
    out
}

/// Settings that are words, not files: the name for people, and the variable.
const WORDS: [(&str, &str); 11] = [
    ("attach", "RSOCKET_ATTACH"),
    ("require", "RSOCKET_REQUIRE"),
    ("disable", "RSOCKET_DISABLE"),
    ("fork safe", "RDMAV_FORK_SAFE"),
    ("seccomp", "RSOCKET_SECCOMP"),
    ("meet", "RSOCKET_MEET"),
    ("log", "RSOCKET_LOG"),
    ("log file", "RSOCKET_LOG_FILE"),
    ("stats", "RSOCKET_STATS"),
    ("pcap", "RSOCKET_PCAP"),
    ("live statistics", "RSOCKET_LIVE"),
];

/// A variable's value, and whether an option or the environment says it.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<(OsString, &'static str)>;

/// The settings that have a file each.
fn of_files(lookup: Lookup<'_>, config: &Config) -> Vec<Resolved> {
    let directory: PathBuf =
        lookup("RSOCKET_CONF_DIR").map_or_else(|| DIRECTORY.into(), |(v, _)| v.into());
    let mut out = Vec::new();
    for field in &FIELDS {
        let value = (field.get)(config).to_string();
        let alone = |text: &[u8]| {
            let only = Config::load(|n| match n {
                "RSOCKET_CONF_DIR" => Some(&b"/dev/null"[..]),
                n if n == field.variable => Some(text),
                _ => None,
            });
            only.1.iter().next().is_none()
        };
        let source = match lookup(field.variable) {
            Some((v, from)) if alone(v.as_bytes()) => format!("{from} {}", field.variable),
            _ => from_file(&directory.join(field.file), alone),
        };
        out.push(Resolved { name: field.file.to_owned(), value, source });
    }
    out
}

fn load(lookup: Lookup<'_>) -> Config {
    // `Config::load` borrows what it looks up; a handful of short strings may stay.
    Config::load(|name| lookup(name).map(|(v, _)| &*Vec::leak(v.as_bytes().to_vec()))).0
}

fn from_file(path: &Path, means_something: impl Fn(&[u8]) -> bool) -> String {
    match std::fs::read(path) {
        Ok(text) if !text.trim_ascii().is_empty() && means_something(&text) => {
            format!("file {}", path.display())
        }
        Ok(_) => format!("default ({} means nothing)", path.display()),
        Err(_) => "default".to_owned(),
    }
}

/// Whether the library is told to do nothing.
#[must_use]
pub fn disabled(value: Option<&OsStr>) -> bool {
    value.is_some_and(|v| !matches!(v.as_bytes(), b"" | b"0"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_has_an_option() {
        let a = Arguments {
            receive_buffer: Some(1),
            send_buffer: Some(2),
            send_queue: Some(3),
            receive_queue: Some(4),
            inline: Some(5),
            iomap: Some(6),
            polling_time: Some(7),
            wake_up_interval: Some(8),
            ..Arguments::default()
        };
        let set = environment(&a).unwrap();
        assert_eq!(set.len(), FIELDS.len());
        assert!(FIELDS.iter().all(|f| set.iter().any(|(name, _)| *name == f.variable)));
    }

    #[test]
    fn the_source_is_the_one_that_wins() {
        let set = [
            ("RSOCKET_POLLING_TIME", OsString::from("33")),
            ("RSOCKET_CONF_DIR", "/nonexistent".into()),
        ];
        let got = resolve(&set, |name| match name {
            "RSOCKET_POLLING_TIME" => Some("44".into()),
            "RSOCKET_MEM_DEFAULT" => Some("8192".into()),
            "RSOCKET_SQSIZE_DEFAULT" => Some("nonsense".into()),
            "RSOCKET_TRANSPORT" => Some("tcp".into()),
            _ => None,
        });
        let of = |name: &str| {
            let r = got.iter().find(|r| r.name == name).unwrap();
            (r.value.as_str(), r.source.as_str())
        };
        assert_eq!(of("polling_time"), ("33", "option RSOCKET_POLLING_TIME"));
        assert_eq!(of("mem_default"), ("8192", "environment RSOCKET_MEM_DEFAULT"));
        assert_eq!(of("sqsize_default"), ("384", "default"));
        assert_eq!(of("transport"), ("tcp", "environment RSOCKET_TRANSPORT"));
        assert_eq!(of("pcap"), ("-", "default"));
    }
}
