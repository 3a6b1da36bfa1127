//! Processes and connections as a table for people.

use std::fmt::Write;
use std::net::SocketAddr;

use rsocket_stats::reason::Reason;

use super::arguments::Arguments;
use super::view::{Connection, Process};

const HEADINGS: [&str; 11] = [
    "PID", "PROGRAM", "LOCAL", "PEER", "STATE", "VIA", "SENT", "RECEIVED", "WOKEN", "SPINS", "AGE",
];
/// Columns that are numbers.
const RIGHT: [bool; 11] = [true, false, false, false, false, false, true, true, true, true, true];

/// The whole picture, each line ended.
#[must_use]
pub fn draw(processes: &[Process], a: &Arguments) -> String {
    let mut out = String::new();
    if processes.is_empty() {
        out.push_str(if a.dead { "no process was killed lately\n" } else { "no rsockets\n" });
        return out;
    }
    if !a.totals {
        connections(&mut out, processes, a.extended);
    }
    totals(&mut out, processes, a.totals);
    out
}

fn connections(out: &mut String, processes: &[Process], extended: bool) {
    let mut rows: Vec<([String; 11], String)> = vec![(HEADINGS.map(str::to_owned), String::new())];
    for p in processes {
        rows.extend(
            p.connections
                .iter()
                .map(|c| (row(p, c), if extended { second_line(c) } else { String::new() })),
        );
    }
    let width = |i: usize| rows.iter().map(|(r, _)| r[i].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..HEADINGS.len()).map(width).collect();
    for (row, more) in &rows {
        let mut line = String::new();
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = if RIGHT[i] {
                write!(line, "{cell:>width$}  ")
            } else {
                write!(line, "{cell:<width$}  ")
            };
        }
        let _ = writeln!(out, "{}", line.trim_end());
        if !more.is_empty() {
            let _ = writeln!(out, "        {more}");
        }
    }
}

fn row(p: &Process, c: &Connection) -> [String; 11] {
    let name = |a: Option<SocketAddr>| a.map_or("-".to_owned(), |a| a.to_string());
    let via = match (&c.device, c.reason) {
        (Some(device), _) => format!("{}:{device}", c.transport),
        (None, Some(reason)) => {
            let option = c.option.as_ref().map_or(String::new(), |option| format!(" {option}"));
            let who = if c.by_peer { ", by the other end" } else { "" };
            format!("{} ({reason}{option}{who})", c.transport)
        }
        (None, None) => c.transport.to_owned(),
    };
    [
        p.pid.to_string(),
        p.program.clone(),
        name(c.local),
        name(c.peer),
        c.state.name().to_owned(),
        via,
        bytes(c.sent.bytes.saturating_add(c.sent_tcp.bytes)),
        bytes(c.received.bytes.saturating_add(c.received_tcp.bytes)),
        c.wakeups.to_string(),
        format!("{}/{}", c.spins_paid, c.spins_paid.saturating_add(c.spins_failed)),
        age(c.age_ns),
    ]
}

fn second_line(c: &Connection) -> String {
    let [small, large] = c.credits;
    let address = |a: Option<SocketAddr>| a.map_or("-".to_owned(), |a| a.to_string());
    let other = c.other_end.as_ref().map_or(String::new(), |e| {
        let (local, peer) = (address(e.local), address(e.peer));
        format!("  other end {} {} {local} {peer}", e.pid, e.program)
    });
    format!(
        "fd {}  messages {} out, {} in  by tcp {} out, {} in  credits {small}+{large}  room {}  unread {}  sleeps {}{other}",
        c.fd.map_or("-".to_owned(), |fd| fd.to_string()),
        c.sent.messages,
        c.received.messages,
        bytes(c.sent_tcp.bytes),
        bytes(c.received_tcp.bytes),
        bytes(c.room.into()),
        bytes(c.unread),
        c.sleeps,
    )
}

/// What each process has moved if asked for; the reasons for TCP always.
fn totals(out: &mut String, processes: &[Process], each: bool) {
    if each {
        for p in processes {
            let _ = writeln!(out, "{} {} (uid {}), {}", p.pid, p.program, p.uid, age(p.age_ns));
            for (name, n) in &p.counters {
                let _ = writeln!(out, "    {name:<28} {n}");
            }
        }
    }
    for reason in Reason::ALL {
        let n = processes
            .iter()
            .filter_map(|p| p.on_tcp.get(reason.name()))
            .fold(0u64, |n, m| n.saturating_add(*m));
        if n > 0 {
            let _ = writeln!(out, "on TCP: {n} × {}: {}", reason.name(), reason.text());
        }
    }
}

/// Four significant places at most.
fn bytes(n: u64) -> String {
    const UNITS: [&str; 6] = ["", "K", "M", "G", "T", "P"];
    let mut value = n as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { n.to_string() } else { format!("{value:.1}{}", UNITS[unit]) }
}

fn age(ns: u64) -> String {
    let s = ns / 1_000_000_000;
    match s {
        0..60 => format!("{s}s"),
        60..3600 => format!("{}m{:02}s", s / 60, s % 60),
        3600..86400 => format!("{}h{:02}m", s / 3600, s / 60 % 60),
        _ => format!("{}d{:02}h", s / 86400, s / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{tests::sample, understand};

    #[test]
    fn sizes_and_ages() {
        assert_eq!(
            ["1023", "1.0K", "1.5M"],
            [bytes(1023), bytes(1024), bytes(3 << 19)].map(|s| s).each_ref().map(|s| s.as_str())
        );
        let ages = [59, 60, 3_661, 90_000].map(|s| age(s * 1_000_000_000));
        assert_eq!(ages, ["59s", "1m00s", "1h01m", "1d01h"]);
    }

    #[test]
    fn a_line_for_each_connection_and_the_reasons() {
        let p = [understand(&sample(), 0, 3_000).unwrap()];
        let text = draw(&p, &Arguments { extended: true, ..Arguments::default() });
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(
            lines[1].contains("127.0.0.1:40000  127.0.0.2:80  attached  shm  976.7K"),
            "{text}"
        );
        assert!(lines[2].contains("credits 640+1400  room 4.0K"), "{text}");
        assert!(lines[3].starts_with("on TCP: 3 × no_offer: "), "{text}");
        assert_eq!(draw(&[], &Arguments::default()), "no rsockets\n");
        assert!(
            draw(&p, &Arguments { totals: true, ..Arguments::default() })
                .contains("bytes.sent.shm")
        );
    }
}
