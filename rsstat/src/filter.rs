//! Which processes and connections are shown.

use super::arguments::Arguments;
use super::view::{Connection, Process};

/// Those that the options ask for. A process stays without connections unless connections were
/// asked for.
#[must_use]
pub fn select(a: &Arguments, mut processes: Vec<Process>) -> Vec<Process> {
    processes.retain(|p| a.pid.is_empty() || a.pid.contains(&p.pid));
    for p in &mut processes {
        p.connections.retain(|c| wanted(a, c));
    }
    if !a.port.is_empty() || !a.state.is_empty() {
        processes.retain(|p| !p.connections.is_empty());
    }
    processes
}

fn wanted(a: &Arguments, c: &Connection) -> bool {
    let port = |wanted: &u16| [c.local, c.peer].iter().flatten().any(|s| s.port() == *wanted);
    (a.port.is_empty() || a.port.iter().any(port))
        && (a.state.is_empty() || a.state.iter().any(|s| s == c.state.name()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::{tests::sample, understand};

    #[test]
    fn by_process_port_and_state() {
        let left = |a: Arguments| select(&a, vec![understand(&sample(), 0, 0).unwrap()]).len();
        assert_eq!(left(Arguments::default()), 1);
        assert_eq!(left(Arguments { pid: vec![77], port: vec![80], ..Arguments::default() }), 1);
        assert_eq!(left(Arguments { pid: vec![78], ..Arguments::default() }), 0);
        assert_eq!(left(Arguments { port: vec![81], ..Arguments::default() }), 0);
        assert_eq!(left(Arguments { state: vec!["tcp".into()], ..Arguments::default() }), 0);
        assert_eq!(left(Arguments { state: vec!["attached".into()], ..Arguments::default() }), 1);
    }
}
