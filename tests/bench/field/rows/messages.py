"""ZeroMQ, and Erlang's distribution."""

import os

from ladder.run import Failed, free_port

from ..bed import FIELD, told
from ..row import Row
from .talks import talk


def _node(name, port, call):
    """A node that listens there, or on any port."""
    where = ("-kernel", "inet_dist_listen_min", port, "inet_dist_listen_max", port) if port else ()
    return (
        "erl",
        "-noinput",
        "-noshell",
        "-name",
        f"{name}@127.0.0.1",
        "-setcookie",
        "field",
        *where,
        "-eval",
        call,
    )


def _erlang(bed):
    names, port = free_port(), free_port()
    bed.prepare("erlc", "-o", bed.dir, os.path.join(FIELD, "talks", "dist.erl"))
    # Nodes must not find those of others, and the directory of names is no part of what is
    # measured.
    bed.environment |= {
        "ERL_EPMD_PORT": str(names),
        "ERL_LIBS": "",
        "HOME": bed.dir,
        "ERL_FLAGS": f"-pa {bed.dir}",
    }
    directory = bed.server(names, "env", "-u", "LD_PRELOAD", "epmd", "-address", "127.0.0.1")
    node = bed.server(port, *_node("there", port, "dist:serve()."))
    out = bed.client(*_node("here", None, f"dist:ask('there@127.0.0.1', {bed.whole_seconds})."))
    if node.wait(30):
        raise Failed(f"the node failed: {bed.tail('server.log')}")
    bed.servers.remove(node)
    directory.kill()
    directory.wait()
    bed.servers.remove(directory)
    return told(out)


ROWS = (
    Row("zmq-req", "pyzmq, REQ and REP, 64 B", talk("zmq_rate.py", "req"), pip=("pyzmq",)),
    Row("zmq-push", "pyzmq, PUSH and PULL, 64 B", talk("zmq_rate.py", "push"), pip=("pyzmq",)),
    Row(
        *("erlang", "Erlang's distribution, 64 B there and back", _erlang),
        needs=("erl=erlang-base", "epmd=erlang-base", "erlc=erlang-base"),
    ),
)
