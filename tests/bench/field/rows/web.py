"""nginx, HAProxy, node and gunicorn, asked by wrk."""

import os
import signal

from ladder import programs
from ladder.run import free_port

from ..bed import interpreter
from ..row import BUSY, Row

PROGRAMS = os.path.join(os.environ["ROOT"], "tests", "programs")

HAPROXY = """global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  http-reuse always
frontend f
  bind 127.0.0.1:{front}
  default_backend b
backend b
  server s 127.0.0.1:{back}
"""


def _haproxy(bed, size, connections):
    nginx, back = programs.nginx_server(bed, size, False, keeps=True)
    front = free_port()
    with open(bed.path("haproxy.cfg"), "w") as f:
        f.write(HAPROXY.format(front=front, back=back))
    between = bed.server(front, "haproxy", "-db", "-q", "-f", bed.path("haproxy.cfg"))
    values = programs.wrk(bed, f"http://127.0.0.1:{front}/file", connections)
    bed.stop(between, signal.SIGUSR1)
    bed.stop(nginx)
    return values


def _asked(bed, path, connections, *command):
    """`command` is a server; a word `PORT` in it is where it shall listen."""
    port = free_port()
    server = bed.server(port, *(w.replace("PORT", str(port)) for w in command))
    values = programs.wrk(bed, f"http://127.0.0.1:{port}{path}", connections)
    bed.stop(server)
    return values


def _node(bed):
    return _asked(
        bed,
        "/bytes/1024",
        8,
        "node",
        os.path.join(PROGRAMS, "node_http.js"),
        "server",
        "127.0.0.1",
        "PORT",
    )


def _gunicorn(bed):
    where = ("--chdir", PROGRAMS, "-b", "127.0.0.1:PORT", "--log-level", "warning")
    return _asked(
        bed,
        "/1024",
        8,
        interpreter(),
        "-m",
        "gunicorn",
        "-k",
        "gevent",
        "-w",
        "1",
        *where,
        "app:app",
    )


ROWS = (
    Row(
        *(
            "nginx",
            "nginx and wrk, 16 kept connections, 1 KiB",
            lambda bed: programs.nginx(bed, 1 << 10, 16, False),
        ),
        needs=("nginx", "wrk"),
    ),
    Row(
        "haproxy",
        "wrk, HAProxy, nginx: 16 kept connections, 1 KiB",
        lambda bed: _haproxy(bed, 1 << 10, 16),
        needs=("haproxy", "nginx", "wrk"),
    ),
    # A connection that stands still once does so in one of some thousand answers.
    Row(
        *(
            "haproxy-longest",
            "wrk, HAProxy, nginx: 20 kept connections, 1 MiB, the longest answer",
            lambda bed: _haproxy(bed, 1 << 20, 20),
        ),
        **dict(unit="ms", key="longest", less=True, kinds=("idle",), most=100, above_tcp=True),
        needs=("haproxy", "nginx", "wrk"),
    ),
    Row(
        "node",
        "node http and wrk, 8 kept connections, 1 KiB",
        _node,
        needs=("node=nodejs", "wrk"),
        strict=BUSY,
    ),
    Row(
        *("gunicorn", "gunicorn with gevent, and wrk, 8 kept connections, 1 KiB", _gunicorn),
        **dict(needs=("wrk",), pip=("gunicorn", "gevent", "packaging")),
    ),
)
