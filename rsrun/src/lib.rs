//! `rsrun`: finds the library, sets the environment, and becomes the program.
//!
//! [`arguments`] is the command line, [`settings`] what of it becomes the environment, [`library`]
//! where the library is, and [`preload`] the order in `LD_PRELOAD`. [`program`] is whether the
//! program can be served at all, [`explain`] the report. The exit status is the program's, with
//! three exceptions, as env(1) has them. It is 125 when rsrun itself fails or refuses, 126 when the
//! program cannot be executed, and 127 when it is not found.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod explain;
pub mod library;
pub mod preload;
pub mod program;
pub mod settings;

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use arguments::Arguments;
use clap::{CommandFactory, Parser};

/// rsrun itself failed, or refused.
const OWN_FAILURE: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(a) => a,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { OWN_FAILURE } else { 0 });
        }
    };
    if let Some(shell) = arguments.completions {
        clap_complete::generate(shell, &mut Arguments::command(), "rsrun", &mut io::stdout());
        return ExitCode::SUCCESS;
    }
    match run(&arguments) {
        Ok(code) => code,
        Err(why) => {
            eprintln!("rsrun: {why}");
            ExitCode::from(OWN_FAILURE)
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, String> {
    let library = library::find(arguments.library.as_deref(), arguments.rsocket)?;
    let found = arguments.program.first().map(|name| program::look(name, &library));
    let needs = match &found {
        Some(Ok(p)) => p.runtime.clone(),
        _ => None,
    };
    let before = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let preload = preload::order(&before, preload::portable(&library).as_ref(), needs.as_deref())?;
    let set = settings::environment(arguments)?;
    if arguments.explain {
        print!("{}", explain::report(&library, &preload, &set, found.as_ref()));
        return Ok(if matches!(found, Some(Err(_))) {
            ExitCode::from(OWN_FAILURE)
        } else {
            ExitCode::SUCCESS
        });
    }
    match found {
        None => return Err("no program is given; see rsrun --help".to_owned()),
        Some(Ok(_)) => {}
        Some(Err(program::Trouble::Missing(why))) => {
            eprintln!("rsrun: {why}");
            return Ok(ExitCode::from(NOT_FOUND));
        }
        Some(Err(program::Trouble::NotServed(why))) => return Err(why),
    }
    Ok(become_program(&arguments.program, &preload, &set))
}

/// Comes back only if that failed.
fn become_program(
    words: &[OsString],
    preload: &OsString,
    set: &[(&'static str, OsString)],
) -> ExitCode {
    let Some((name, rest)) = words.split_first() else { return ExitCode::from(OWN_FAILURE) };
    let mut command = Command::new(name);
    command.args(rest).env("LD_PRELOAD", preload).envs(set.iter().map(|(k, v)| (k, v)));
    let e = command.exec();
    eprintln!("rsrun: {}: {e}", name.display());
    ExitCode::from(if e.kind() == ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
}
