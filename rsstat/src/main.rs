//! rsstat(1): shows the rsockets of running programs. All of it is `rsstat`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rsstat::main()
}
