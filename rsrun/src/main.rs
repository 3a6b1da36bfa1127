//! rsrun(1): starts a program over rsockets. All of it is `rsrun`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rsrun::main()
}
