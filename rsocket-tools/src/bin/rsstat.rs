//! rsstat(1): shows the rsockets of running programs. All of it is `rsocket_tools::stat`.

use std::process::ExitCode;

fn main() -> ExitCode {
    rsocket_tools::stat::main()
}
