//! What the libraries that export C functions may use of the engine, name by name, and what they
//! share where C meets Rust ([`edge`], [`message`], [`messages`], [`control`]).
//!
//! They depend on this crate and not on the engine: what is not listed here does not exist for
//! them. Must not know what a call does, nor which library asks. Entry point: the list.
#![forbid(unsafe_op_in_unsafe_fn)]

pub mod control;
pub mod edge;
pub mod message;
pub mod messages;

/// See [`rsocket_core::attach`].
pub mod attach {

    /// See [`rsocket_core::attach::io_uring`].
    pub mod io_uring {
        pub use rsocket_core::attach::io_uring::{open_from_now_on, refused};
    }

    /// See [`rsocket_core::attach::own_waits`].
    pub mod own_waits {
        pub use rsocket_core::attach::own_waits::{files_changed, seen};
    }
}

/// See [`rsocket_core::bridge`].
pub mod bridge {

    /// See [`rsocket_core::bridge::native_rdma`].
    pub mod native_rdma {
        pub use rsocket_core::bridge::native_rdma::listens;
    }
}

/// See [`rsocket_core::channel`].
pub mod channel {

    /// See [`rsocket_core::channel::arenas`].
    pub mod arenas {
        pub use rsocket_core::channel::arenas::each_mapping;
    }

    /// See [`rsocket_core::channel::link`].
    pub mod link {
        pub use rsocket_core::channel::link::distrust;
    }
}

/// See [`rsocket_core::config`].
pub mod config {
    pub use rsocket_core::config::{Config, DIRECTORY, FIELDS};

    /// See [`rsocket_core::config::policy`].
    pub mod policy {
        pub use rsocket_core::config::policy::{
            fork_safe, native_rdma, rsockets, sandboxed, seccomp, strict,
        };
    }

    /// See [`rsocket_core::config::sizes`].
    pub mod sizes {
        pub use rsocket_core::config::sizes::Size;
    }
}

/// See [`rsocket_core::conn`].
pub mod conn {

    /// See [`rsocket_core::conn::fork_group`].
    pub mod fork_group {
        pub use rsocket_core::conn::fork_group::{get, range};
    }

    /// See [`rsocket_core::conn::handshake`].
    pub mod handshake {
        pub use rsocket_core::conn::handshake::{concerns, sets_options};
    }

    /// See [`rsocket_core::conn::slot`].
    pub mod slot {
        pub use rsocket_core::conn::slot::SlotId;
    }

    /// See [`rsocket_core::conn::timers`].
    pub mod timers {
        pub use rsocket_core::conn::timers::concerns;
    }
}

/// See [`rsocket_core::datagram`].
pub mod datagram {
    pub use rsocket_core::datagram::{created, is};

    /// See [`rsocket_core::datagram::names`].
    pub mod names {
        pub use rsocket_core::datagram::names::{connect, disconnect};
    }

    /// See [`rsocket_core::datagram::receive`].
    pub mod receive {
        pub use rsocket_core::datagram::receive::{Received, receive};
    }

    /// See [`rsocket_core::datagram::send`].
    pub mod send {
        pub use rsocket_core::datagram::send::send;
    }
}

/// See [`rsocket_core::descriptors`].
pub mod descriptors {
    pub use rsocket_core::descriptors::{
        Entry, any, claim, connection, end, entry, find, forget, forget_copy, fresh, let_go, mine,
        put, tracked,
    };
}

/// See [`rsocket_core::exec_handover`].
pub mod exec_handover {
    pub use rsocket_core::exec_handover::{
        Will, announced, give_back, inherit, leaves_anything, prepare, show,
    };

    /// See [`rsocket_core::exec_handover::target`].
    pub mod target {
        pub use rsocket_core::exec_handover::target::{Program, Verdict, judge};
    }
}

/// See [`rsocket_core::handover`].
pub mod handover {
    pub use rsocket_core::handover::fds_in_flight;

    /// See [`rsocket_core::handover::pipe`].
    pub mod pipe {
        pub use rsocket_core::handover::pipe::Pipe;
    }
}

/// See [`rsocket_core::headroom`].
pub mod headroom {
    pub use rsocket_core::headroom::{is_crowded, make_room, used_up};
}

/// See [`rsocket_core::iomap`].
pub mod iomap {
    pub use rsocket_core::iomap::{Memory, map, unmap, write};
}

/// See [`rsocket_core::libdir`].
pub mod libdir {
    pub use rsocket_core::libdir::{directory, is_right, with_variable};
}

/// See [`rsocket_core::native`].
pub mod native {
    pub use rsocket_core::native::{
        accept, before_data, begun, bind, by_rdma, connect, error, listen, local_name, peer_name,
        set_size, shutdown, size,
    };

    /// See [`rsocket_core::native::info`].
    pub mod info {
        pub use rsocket_core::native::info::{segment, tcp_info};
    }

    /// See [`rsocket_core::native::rdma`].
    pub mod rdma {
        pub use rsocket_core::native::rdma::{
            accepted, bind, connect, connect_instead, error, listen, names,
        };
    }
}

/// See [`rsocket_core::process`].
pub mod process {
    pub use rsocket_core::process::{leaving, report, vanishing, watch_forks};
}

/// See [`rsocket_core::readiness`].
pub mod readiness {

    /// See [`rsocket_core::readiness::epoll`].
    pub mod epoll {
        pub use rsocket_core::readiness::epoll::{
            Change, Ctl, Pwait, Wait, created, ctl, dissolve, duplicated, error_taken,
            found_unread, is_set, leave_to_kernel, mode_changed, polled, said_anew, starved, wait,
        };
    }

    /// See [`rsocket_core::readiness::poll`].
    pub mod poll {
        pub use rsocket_core::readiness::poll::poll;
    }

    /// See [`rsocket_core::readiness::select`].
    pub mod select {
        pub use rsocket_core::readiness::select::select;
    }
}

/// See [`rsocket_core::rules`].
pub mod rules {
    pub use rsocket_core::rules::Rules;
}

/// See [`rsocket_core::socket`].
pub mod socket {
    pub use rsocket_core::socket::{
        Listeners, Route, about_to_listen, accept_deferred, accepted, attaching, before_exec,
        connected, connecting, created, created_datagram, duplicated, enter_receive, enter_send,
        enter_wait, exec_failed, fingerprint_bytes, fingerprints, forget_fingerprint, fork_failed,
        give_away, has_shut, is_new, leave_error, leave_receive, leave_send, leave_wait, listening,
        low_water, not_passed, on_device, option_asked, option_was_set, passing, passing_listener,
        pending_error, receive, receive_at_once, receive_patiently, recheck_after, refuse,
        refuse_for_good, refuse_sending, send, send_at_once, send_patiently, send_residual,
        set_listeners, shutdown, tapped, timeout_set, unattached, unread, unsent, waited,
        waits_on_listener, watching, without_tcp,
    };

    /// See [`rsocket_core::socket::adopted`].
    pub mod adopted {
        pub use rsocket_core::socket::adopted::{
            Came, came, each_socket, is_connected, left_to_kernel, listener, tcp_domain,
        };
    }

    /// See [`rsocket_core::socket::heard`].
    pub mod heard {
        pub use rsocket_core::socket::heard::{closed, error, state};
    }

    /// See [`rsocket_core::socket::inq`].
    pub mod inq {
        pub use rsocket_core::socket::inq::{beside_tcp, changed, concerns, hint, is_told};
    }

    /// See [`rsocket_core::socket::options`].
    pub mod options {
        pub use rsocket_core::socket::options::{
            Before, changes_sending, harmless, heeded, refuse_for, would_change_nothing,
        };
    }

    /// See [`rsocket_core::socket::prospect`].
    pub mod prospect {
        pub use rsocket_core::socket::prospect::{Prospect, prospect};
    }

    /// See [`rsocket_core::socket::sendfile`].
    pub mod sendfile {
        pub use rsocket_core::socket::sendfile::to_device;
    }

    /// See [`rsocket_core::socket::settings`].
    pub mod settings {
        pub use rsocket_core::socket::settings::resolve;
    }

    /// See [`rsocket_core::socket::splice`].
    pub mod splice {
        pub use rsocket_core::socket::splice::{from_pipe, goes_by_kernel, to_pipe};
    }

    /// See [`rsocket_core::socket::stamps`].
    pub mod stamps {
        pub use rsocket_core::socket::stamps::{changed, concerns, wanted};
    }

    /// See [`rsocket_core::socket::timing`].
    pub mod timing {
        pub use rsocket_core::socket::timing::{changed, facts_changed};
    }

    /// See [`rsocket_core::socket::urgent`].
    pub mod urgent {
        pub use rsocket_core::socket::urgent::{is_refused, refused, stands_before_mark};
    }
}
