//! `rsrun --explain`: what would be run and with which settings, and where each of them comes from.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::Path;

use super::program::{Program, Trouble};
use super::settings;

/// The report.
#[must_use]
pub fn report(
    library: &Path,
    preload: &OsStr,
    set: &[(&'static str, OsString)],
    program: Option<&Result<Program, Trouble>>,
) -> String {
    let mut out = String::new();
    let mut line = |name: &str, value: &str, source: &str| {
        let _ = writeln!(out, "{}", format!("{name:<18} {value:<12} {source}").trim_end());
    };
    match program {
        Some(Ok(p)) => {
            line("program", &p.path.display().to_string(), "");
            if let Some(i) = &p.interpreter {
                line("run by", &i.display().to_string(), "");
            }
        }
        Some(Err(Trouble::Missing(why) | Trouble::NotServed(why))) => {
            line("program", &format!("refused: {why}"), "")
        }
        None => {}
    }
    line("library", &library.display().to_string(), "");
    line("LD_PRELOAD", &preload.to_string_lossy(), "");
    let resolved = settings::resolve(set, |name| std::env::var_os(name));
    for r in &resolved {
        line(&r.name, &r.value, &r.source);
    }
    let disable = std::env::var_os("RSOCKET_DISABLE");
    if settings::disabled(disable.as_deref()) {
        line("", "RSOCKET_DISABLE is set: the library does nothing", "");
    }
    out
}
