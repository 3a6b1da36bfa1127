//! The command line of `rsstat`.

use clap::Parser;
use clap_complete::Shell;

/// Show the rsockets of running programs: your own, or, for root, everybody's
#[derive(Parser, Debug, Default)]
#[command(name = "rsstat", version, about, after_help = "rsstat(1) explains the columns.")]
pub struct Arguments {
    /// Only this process; may be repeated
    #[arg(short, long, value_name = "PID")]
    pub pid: Vec<u32>,

    /// Only connections with this port at either end; may be repeated
    #[arg(short = 'P', long, value_name = "PORT")]
    pub port: Vec<u16>,

    /// Only connections in this state (attached, switching, tcp, returned, broken); may be repeated
    #[arg(short, long, value_name = "STATE", value_parser = super::view::State::NAMES)]
    pub state: Vec<String>,

    /// A second line for each connection: messages, credits, room, sleeps, spins
    #[arg(short, long)]
    pub extended: bool,

    /// Totals only: what each process has moved, and why connections stayed on TCP
    #[arg(short, long)]
    pub totals: bool,

    /// As JSON
    #[arg(short, long)]
    pub json: bool,

    /// Again and again, in place, with so many seconds between
    #[arg(short, long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "1")]
    pub watch: Option<f32>,

    /// The last state of processes that were killed, instead of those that run
    #[arg(short, long)]
    pub dead: bool,

    /// Forget the processes that were killed
    #[arg(long, conflicts_with_all = ["watch", "dead", "json"])]
    pub forget: bool,

    #[arg(long, value_name = "SHELL", hide = true)]
    #[expect(
        missing_docs,
        reason = "it would be shown: completions for this shell, for scripts/install"
    )]
    pub completions: Option<Shell>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn it_is_consistent() {
        Arguments::command().debug_assert();
        let a =
            Arguments::try_parse_from(["rsstat", "-w", "-p", "1", "-p", "2", "-s", "tcp"]).unwrap();
        assert_eq!((a.watch, a.pid, a.state), (Some(1.0), vec![1, 2], vec!["tcp".to_owned()]));
        assert!(Arguments::try_parse_from(["rsstat", "-s", "happy"]).is_err());
    }
}
