//! `rsstat`: the rsockets of running programs, and the last state of those that were killed.
//!
//! [`files`] finds and reads what processes leave (`rsocket_stats::layout`), [`view`] understands
//! it, [`filter`] selects, [`table`] and JSON show it. What is read was written by other users'
//! processes and is believed no further than the screen. Links the layout of what it reads, and
//! nothing else of the library.
#![forbid(unsafe_code)]

pub mod arguments;
pub mod device;
pub mod files;
pub mod filter;
pub mod table;
pub mod view;

use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::time::Duration;

use arguments::Arguments;
use clap::{CommandFactory, Parser};
use view::Process;

/// The whole program.
#[must_use]
pub fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(a) => a,
        Err(e) => {
            let _ = e.print();
            return ExitCode::from(if e.use_stderr() { 2 } else { 0 });
        }
    };
    if let Some(shell) = arguments.completions {
        clap_complete::generate(shell, &mut Arguments::command(), "rsstat", &mut io::stdout());
        return ExitCode::SUCCESS;
    }
    match show(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        // The reader of our output has seen enough.
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("rsstat: {e}");
            ExitCode::FAILURE
        }
    }
}

fn show(arguments: &Arguments) -> io::Result<()> {
    if arguments.forget {
        let n = files::forget_dead(&files::directories());
        return writeln!(io::stdout(), "{n} forgotten");
    }
    let Some(seconds) = arguments.watch else {
        return io::stdout().lock().write_all(picture(arguments).as_bytes());
    };
    let pause = Duration::from_secs_f64(f64::from(seconds).clamp(0.1, 86_400.0));
    let terminal = io::stdout().is_terminal();
    loop {
        let text = picture(arguments);
        let mut out = io::stdout().lock();
        // Over the old picture, line by line, so that nothing flickers; what is left of it below
        // goes.
        let text =
            if terminal { format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\n")) } else { text };
        out.write_all(text.as_bytes())?;
        out.flush()?;
        drop(out);
        std::thread::sleep(pause);
    }
}

fn picture(arguments: &Arguments) -> String {
    let (alive, dead) = files::all();
    let mut chosen = if arguments.dead { dead } else { alive };
    view::join(&mut chosen);
    let chosen: Vec<Process> = filter::select(arguments, chosen);
    if arguments.json {
        let mut text = serde_json::to_string_pretty(&chosen).unwrap_or_default();
        text.push('\n');
        return text;
    }
    table::draw(&chosen, arguments)
}
