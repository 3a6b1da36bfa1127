//! The command line of `rsrun`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Parser;
use clap_complete::Shell;

/// Run a program over rsockets: its TCP connections move to shared memory or RDMA where they can,
/// and stay on TCP where they cannot.
#[derive(Parser, Debug, Default)]
#[command(
    name = "rsrun",
    version,
    about,
    after_help = "rsrun(1) explains the options, rsocket(7) the settings."
)]
pub struct Arguments {
    /// What may carry connections, the best first: any of shm, rdma, tcp
    #[arg(short, long, value_name = "LIST", value_parser = transports)]
    pub transport: Option<String>,

    /// Attach connections from their first byte, not only those that have shown that they will live
    #[arg(long)]
    pub eager: bool,

    /// Break a connection that would stay on TCP for good, or go back to it
    #[arg(short = 'R', long)]
    pub require: bool,

    /// For programs that fork while they use RDMA: protect registered memory from copies
    #[arg(short, long)]
    pub fork_safe: bool,

    /// Microseconds to spin before sleeping
    #[arg(short, long, value_name = "US", value_parser = clap::value_parser!(u32).range(..=1_000_000))]
    pub polling_time: Option<u32>,

    /// Longest single sleep inside poll, in milliseconds
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u32).range(1..=86_400_000))]
    pub wake_up_interval: Option<u32>,

    /// Bytes of receive buffer for each connection over RDMA
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub receive_buffer: Option<u32>,

    /// Bytes of send buffer for each connection over RDMA
    #[arg(short, long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    pub send_buffer: Option<u32>,

    /// Entries of the send queue over RDMA
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65534))]
    pub send_queue: Option<u32>,

    /// Entries of the receive queue over RDMA
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65534))]
    pub receive_queue: Option<u32>,

    /// Bytes that a work request may carry in itself
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(..=65534))]
    pub inline: Option<u32>,

    /// Entries for direct placement that are offered to peers
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=32512))]
    pub iomap: Option<u32>,

    /// Attach even where a seccomp filter watches over the program, unprobed (as --seccomp=trust)
    #[arg(long)]
    pub trust_seccomp: bool,

    /// What to do where a seccomp filter watches over the program: probe what it allows, trust it,
    /// or refuse to attach
    #[arg(long, value_name = "HOW", value_parser = ["probe", "trust", "refuse"], conflicts_with = "trust_seccomp")]
    pub seccomp: Option<String>,

    /// Say on standard error what the library does and why
    #[arg(short, long, value_name = "LEVEL", value_parser = ["warn", "info", "debug"],
          num_args = 0..=1, require_equals = true, default_missing_value = "info")]
    pub log: Option<String>,

    /// Say it into this file instead; %p is the process id
    #[arg(long, value_name = "FILE")]
    pub log_file: Option<PathBuf>,

    /// Append each process's counters to this file at its end; %p is the process id
    #[arg(short = 'S', long, value_name = "FILE")]
    pub stats: Option<PathBuf>,

    /// Write the bytes of the connections to this file, for Wireshark; %p is the process id
    #[arg(short = 'P', long, value_name = "FILE")]
    pub pcap: Option<PathBuf>,

    /// Read the settings from this directory in place of /etc/rdma/rsocket
    #[arg(short, long, value_name = "DIR")]
    pub conf_dir: Option<PathBuf>,

    /// Use this library
    #[arg(short = 'L', long, value_name = "FILE")]
    pub library: Option<PathBuf>,

    /// For a program that calls rsocket(7) itself: replace librdmacm's calls
    #[arg(long)]
    pub rsocket: bool,

    /// Say where each setting comes from and what would be run, and run nothing
    #[arg(short, long)]
    pub explain: bool,

    #[arg(long, value_name = "SHELL", hide = true)]
    #[expect(
        missing_docs,
        reason = "it would be shown: completions for this shell, for scripts/install"
    )]
    pub completions: Option<Shell>,

    /// The program, and what it is given
    #[arg(value_name = "PROGRAM", trailing_var_arg = true)]
    pub program: Vec<OsString>,
}

/// As the library reads it, but strictly: a word that means nothing is an error here.
fn transports(text: &str) -> Result<String, String> {
    let words: Vec<&str> = text.split(',').map(str::trim).collect();
    match words.iter().find(|w| !["shm", "rdma", "tcp"].contains(w)) {
        None => Ok(words.join(",")),
        Some(odd) => Err(format!("\"{odd}\" is none of shm, rdma, tcp")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn it_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn the_programs_options_are_its_own() {
        let a = Arguments::try_parse_from([
            "rsrun", "-t", "shm,tcp", "--log", "--", "curl", "-s", "-t", "x",
        ])
        .unwrap();
        assert_eq!((a.transport.as_deref(), a.log.as_deref()), (Some("shm,tcp"), Some("info")));
        assert_eq!(a.program, ["curl", "-s", "-t", "x"]);
        let a = Arguments::try_parse_from(["rsrun", "curl", "--log", "-R"]).unwrap();
        assert!(a.log.is_none() && !a.require && a.program == ["curl", "--log", "-R"]);
        assert!(Arguments::try_parse_from(["rsrun", "--curl", "x"]).is_err());
        assert!(Arguments::try_parse_from(["rsrun", "-t", "udp", "curl"]).is_err());
        assert!(Arguments::try_parse_from(["rsrun", "-p", "1000001", "curl"]).is_err());
    }
}
