//! rsrun(1): starts a program over rsockets. All of it is `rsocket_tools::run`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rsocket_tools::run::main()
}
