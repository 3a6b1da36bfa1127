//! What an administrator and the environment say: the files under `/etc/rdma/rsocket` and
//! `RSOCKET_*`.
//!
//! [`Config::load`] reads everything once, without allocation and without `std`'s I/O, since it may
//! run inside a hook. It never fails: a file that is not there means the built-in value. A file
//! that does not hold exactly one integer in range means the same and a [`Complaint`], which the
//! caller logs. The meaning of each file is upstream's (`wire-protocol §10.2`); odd values that
//! upstream accepts and then gets wrong are refused here.
#![forbid(unsafe_code)]
#![deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![cfg_attr(
    test,
    allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)
)]

use std::os::fd::IntoRawFd;

use crate::failure::Failure;

use crate::device::shm::layout;
use crate::sys::files::{self, For};
use crate::wire::private_data::representable_iomap;

mod complaint;
pub mod fork_peers;
pub mod policy;
pub mod sizes;

pub use complaint::{Complaint, Complaints};

/// Where the files are, unless `RSOCKET_CONF_DIR` names another directory.
pub const DIRECTORY: &str = "/etc/rdma/rsocket";

/// Everything that can be configured. Plain values: copy it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// `mem_default`: bytes of receive buffer for each stream socket; even, at least 4096.
    pub recv_buffer: u32,
    /// `wmem_default`: bytes of send buffer for each stream socket; at least 2048.
    pub send_buffer: u32,
    /// `sqsize_default`: work requests in a send queue, 16 to 65534.
    pub send_queue: u16,
    /// `rqsize_default`: work requests in a receive queue, hence credits; 16 to 65534.
    pub recv_queue: u16,
    /// `inline_default`: bytes that a work request may carry in itself, up to 65534.
    pub inline: u16,
    /// `iomap_size`: entries for direct placement that are offered to the peer, up to 1024. What
    /// the private data cannot say exactly is rounded down.
    pub iomap: u16,
    /// `polling_time`: microseconds to spin before sleeping, up to a second.
    pub polling_us: u32,
    /// `wake_up_interval`: the longest single sleep inside poll, in milliseconds; 0 is no limit.
    pub wake_up_ms: u32,
    /// `RSOCKET_TRANSPORT`: what may carry a connection, the best first.
    pub transports: Transports,
    /// `RSOCKET_ATTACH=eager`: a connection tries to leave TCP from its first byte, not only once
    /// it has shown that it will live.
    pub eager: bool,
    /// `RSOCKET_REQUIRE`: a connection that stays on TCP for good, or goes back to it, is broken
    /// instead.
    pub require: bool,
    /// `RSOCKET_DISABLE`: leave every socket to the kernel.
    pub disabled: bool,
    /// `RSOCKET_LOG`: how much to say.
    pub log: Log,
}

/// What can carry a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Shared memory between processes of one host.
    Shm,
    /// An RDMA adapter.
    Rdma,
    /// The kernel.
    Tcp,
}

impl Transport {
    fn parse(word: &[u8]) -> Option<Self> {
        match word {
            b"shm" => Some(Self::Shm),
            b"rdma" => Some(Self::Rdma),
            b"tcp" => Some(Self::Tcp),
            _ => None,
        }
    }
}

/// Transports in order of preference, each at most once, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transports([Option<Transport>; 3]);

impl Transports {
    /// All of them, the fastest first.
    pub const ALL: Self = Self([Some(Transport::Shm), Some(Transport::Rdma), Some(Transport::Tcp)]);

    /// The best first.
    pub fn iter(&self) -> impl Iterator<Item = Transport> + '_ {
        self.0.iter().copied().flatten()
    }

    /// Whether a connection may use it at all.
    #[must_use]
    pub fn allows(&self, transport: Transport) -> bool {
        self.0.contains(&Some(transport))
    }

    /// Whether it is allowed and preferred to everything else.
    #[must_use]
    pub fn prefers(&self, transport: Transport) -> bool {
        self.iter().next() == Some(transport)
    }

    /// Reads `shm,rdma,tcp` or a part of it; false when there was a word that means nothing.
    /// Without any word that means something, all are allowed.
    fn parse(text: &[u8]) -> (Self, bool) {
        let mut found = Self([None; 3]);
        let mut clean = true;
        for word in text.split(|b| *b == b',').map(<[u8]>::trim_ascii) {
            match Transport::parse(word) {
                Some(transport) if found.allows(transport) => {}
                Some(transport) => {
                    if let Some(slot) = found.0.iter_mut().find(|slot| slot.is_none()) {
                        *slot = Some(transport);
                    }
                }
                None => clean = false,
            }
        }
        (if found.iter().next().is_none() { Self::ALL } else { found }, clean)
    }
}

/// How much is said about what happens; each level includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Log {
    /// Nothing.
    Off,
    /// What the user should know.
    Warn,
    /// What became of each connection, and why.
    Info,
    /// Everything.
    Debug,
}

impl Default for Config {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// One number that can be set: by a file, or by a variable, which wins.
pub struct Field {
    /// Name of the file.
    pub file: &'static str,
    /// Name of the variable.
    pub variable: &'static str,
    /// The smallest number that means something.
    pub min: u32,
    /// The largest.
    pub max: u32,
    /// What the configuration says now.
    pub get: fn(&Config) -> u32,
    set: fn(&mut Config, u32),
}

/// All numbers that can be set.
pub const FIELDS: [Field; 8] = [
    Field {
        file: "mem_default",
        variable: "RSOCKET_MEM_DEFAULT",
        get: |c| c.recv_buffer,
        min: 1,
        max: 1 << 30,
        set: |c, v| c.recv_buffer = v.max(4096).next_multiple_of(2),
    },
    Field {
        file: "wmem_default",
        variable: "RSOCKET_WMEM_DEFAULT",
        get: |c| c.send_buffer,
        min: 1,
        max: 1 << 30,
        set: |c, v| c.send_buffer = if v < 2048 { 4096 } else { v },
    },
    Field {
        file: "sqsize_default",
        variable: "RSOCKET_SQSIZE_DEFAULT",
        get: |c| c.send_queue.into(),
        min: 1,
        max: 65534,
        set: |c, v| c.send_queue = queue(v),
    },
    Field {
        file: "rqsize_default",
        variable: "RSOCKET_RQSIZE_DEFAULT",
        get: |c| c.recv_queue.into(),
        min: 1,
        max: 65534,
        set: |c, v| c.recv_queue = queue(v),
    },
    Field {
        file: "inline_default",
        variable: "RSOCKET_INLINE_DEFAULT",
        get: |c| c.inline.into(),
        min: 0,
        max: 65534,
        set: |c, v| c.inline = v as u16,
    },
    Field {
        file: "iomap_size",
        variable: "RSOCKET_IOMAP_SIZE",
        get: |c| c.iomap.into(),
        min: 0,
        max: layout::MAPS as u32,
        set: |c, v| c.iomap = representable_iomap(v as u16),
    },
    Field {
        file: "polling_time",
        variable: "RSOCKET_POLLING_TIME",
        get: |c| c.polling_us,
        min: 0,
        max: 1_000_000,
        set: |c, v| c.polling_us = v,
    },
    Field {
        file: "wake_up_interval",
        variable: "RSOCKET_WAKE_UP_INTERVAL",
        get: |c| c.wake_up_ms,
        min: 0,
        max: 86_400_000,
        set: |c, v| c.wake_up_ms = v,
    },
];

/// A queue size as upstream clamps it (`wire-protocol §10.1`).
fn queue(value: u32) -> u16 {
    value.clamp(16, 65534) as u16
}

/// More of a file than this is not one integer.
const FILE_MAX: usize = 64;
/// A directory name of this size can be opened without allocating.
const PATH_MAX: usize = 200;

impl Config {
    /// The built-in values (`wire-protocol §10.1`).
    pub const DEFAULT: Self = Self {
        recv_buffer: 131_072,
        send_buffer: 131_072,
        send_queue: 384,
        recv_queue: 384,
        inline: 64,
        iomap: 0,
        polling_us: 50,
        // Upstream's is 500. Here nothing depends on it, and a process at rest shall rest.
        wake_up_ms: 0,
        transports: Transports::ALL,
        eager: false,
        require: false,
        disabled: false,
        log: Log::Off,
    };

    /// Reads the files and the environment. `env` looks a variable up, as `getenv` would; it is not
    /// `std::env`, whose lock may be held by the code that a signal handler interrupted.
    pub fn load<'a>(env: impl Fn(&'static str) -> Option<&'a [u8]>) -> (Self, Complaints) {
        let mut config = Self::DEFAULT;
        let mut complaints = Complaints::NONE;
        config.apply_env(&env, &mut complaints);
        let directory = env("RSOCKET_CONF_DIR").filter(|d| !d.is_empty());
        match directory {
            Some(long) if long.len() > PATH_MAX => complaints.add("RSOCKET_CONF_DIR", long),
            other => config.apply_files(other.unwrap_or(DIRECTORY.as_bytes()), &mut complaints),
        }
        for field in &FIELDS {
            if let Some(text) = env(field.variable).filter(|t| !t.trim_ascii().is_empty()) {
                config.apply_number(field, field.variable, text, &mut complaints);
            }
        }
        (config, complaints)
    }

    /// The variables that upstream's preload library reads for every socket
    /// (`wire-protocol §10.3`): `RS_SQ_SIZE`, `RS_RQ_SIZE`, `RS_INLINE`. An empty one, and 0 for a
    /// queue, leave the default; `RS_INLINE=0` is said, here.
    pub fn apply_preload_env<'a>(
        &mut self,
        env: impl Fn(&'static str) -> Option<&'a [u8]>,
        complaints: &mut Complaints,
    ) {
        for (name, file) in [
            ("RS_SQ_SIZE", "sqsize_default"),
            ("RS_RQ_SIZE", "rqsize_default"),
            ("RS_INLINE", "inline_default"),
        ] {
            let Some(text) = env(name).filter(|t| !t.trim_ascii().is_empty()) else { continue };
            let field = FIELDS.iter().find(|f| f.file == file);
            match (parse_integer(text), field) {
                (Some(0), Some(field)) if field.min > 0 => {}
                (Some(value), Some(field)) if (field.min..=field.max).contains(&value) => {
                    (field.set)(self, value)
                }
                _ => complaints.add(name, text),
            }
        }
    }

    /// The files of one directory.
    fn apply_files(&mut self, directory: &[u8], complaints: &mut Complaints) {
        let Ok(dir) = files::open(directory, For::Listing) else { return };
        for field in &FIELDS {
            let mut buffer = [0; FILE_MAX];
            match read_file(&dir, field.file, &mut buffer) {
                Ok(content) => self.apply_number(field, field.file, content, complaints),
                Err(Failure::Missing) => {}
                Err(_) => complaints.add(field.file, b"(unreadable)"),
            }
        }
        close(dir);
    }

    /// The content of one file, or of its variable.
    fn apply_number(
        &mut self,
        field: &Field,
        source: &'static str,
        content: &[u8],
        complaints: &mut Complaints,
    ) {
        match parse_integer(content) {
            Some(value) if (field.min..=field.max).contains(&value) => (field.set)(self, value),
            _ => complaints.add(source, content),
        }
    }

    /// The variables.
    fn apply_env<'a>(
        &mut self,
        env: &impl Fn(&'static str) -> Option<&'a [u8]>,
        complaints: &mut Complaints,
    ) {
        if let Some(text) = env("RSOCKET_TRANSPORT").filter(|t| !t.trim_ascii().is_empty()) {
            let (transports, clean) = Transports::parse(text);
            self.transports = transports;
            if !clean {
                complaints.add("RSOCKET_TRANSPORT", text);
            }
        }
        let yes = |name| env(name).is_some_and(|t| !matches!(t.trim_ascii(), b"" | b"0"));
        self.disabled = yes("RSOCKET_DISABLE");
        self.require = yes("RSOCKET_REQUIRE");
        match env("RSOCKET_ATTACH").map(<[u8]>::trim_ascii) {
            None | Some(b"" | b"lazy") => {}
            Some(b"eager") => self.eager = true,
            Some(other) => complaints.add("RSOCKET_ATTACH", other),
        }
        match env("RSOCKET_LOG").map(<[u8]>::trim_ascii) {
            None | Some(b"") => {}
            Some(b"warn") => self.log = Log::Warn,
            Some(b"info") => self.log = Log::Info,
            Some(b"debug") => self.log = Log::Debug,
            Some(other) => complaints.add("RSOCKET_LOG", other),
        }
    }
}

/// One decimal integer with nothing but blanks around it.
fn parse_integer(text: &[u8]) -> Option<u32> {
    let digits = text.trim_ascii();
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0u32, |value, byte| {
        let digit = byte.checked_sub(b'0').filter(|d| *d < 10)?;
        value.checked_mul(10)?.checked_add(u32::from(digit))
    })
}

/// As much of a file as fits. Not blocking, so that a FIFO in its place does no harm.
fn read_file<'a>(
    dir: &impl std::os::fd::AsFd,
    name: &str,
    buffer: &'a mut [u8; FILE_MAX],
) -> Result<&'a [u8], Failure> {
    let file = files::open_in(dir, name, For::ReadingAtOnce)?;
    let count = files::read_through_signals(&file, &mut buffer[..]);
    close(file);
    // A full buffer means that there may be more, which no integer needs.
    buffer.get(..count?).filter(|content| content.len() < FILE_MAX).ok_or(Failure::FileTooLong)
}

/// Closes without going through libc, whose `close` may be our own hook.
fn close(fd: impl IntoRawFd) {
    crate::sys::close_private(fd.into_raw_fd());
}

#[cfg(test)]
mod tests;
