"""PostgreSQL with pgbench, and MariaDB with sysbench. Their tables are made once, without the
library, and kept."""

import glob
import os
import pwd
import shutil
import signal
import time

from ladder.machine import bench
from ladder.programs import found
from ladder.run import Failed, free_port

from ..row import BUSY, BUSY_AND_ONE, Row

POSTGRES = ("/usr/lib/postgresql/*/bin/postgres=postgresql", "setpriv=util-linux")
MARIADB = ("mariadbd=mariadb-server", "mariadb-install-db=mariadb-server", "sysbench")


def kept(bed, name, make):
    """The directory of that name among what runs keep; `make(bed, directory)` fills it where it is
    not there yet."""
    path = bench(f"field-{name}")
    if not os.path.isdir(path):
        new = f"{path}.new"
        shutil.rmtree(new, ignore_errors=True)
        os.mkdir(new, 0o700)
        make(bed, new)
        os.rename(new, path)
    return path


def plain(bed, *command, **how):
    """A command that prepares: neither preloaded nor beside busy loops."""
    return bed.prepare("env", "-u", "LD_PRELOAD", "-u", "RSOCKET_STATS", *command, **how)


# ---------------------------------------------------------------- PostgreSQL


def _bin(program):
    return os.path.join(sorted(glob.glob("/usr/lib/postgresql/*/bin"))[-1], program)


def _as_postgres(bed):
    """It does not run as root; both ends are one user's."""
    if os.getuid() == 0:
        bed.wrapper = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]


def _postgres(bed, data):
    port = free_port()
    server = bed.server(
        port,
        *(_bin("postgres"), "-D", data, "-p", port, "-c", "listen_addresses=127.0.0.1"),
        *("-c", "unix_socket_directories=", "-c", "fsync=off", "-c", "autovacuum=off"),
    )
    # It listens before it can answer, and after a hard end it mends its tables in between.
    end = time.monotonic() + 60
    ready = (_bin("pg_isready"), "-h", "127.0.0.1", "-p", port)
    while "- accepting connections" not in plain(bed, *ready, good=(0, 1, 2)):
        if time.monotonic() > end:
            raise Failed(f"postgres is not ready: {bed.tail('server.log')}")
        time.sleep(0.1)
    return port, server


def _to(port):
    return ("-h", "127.0.0.1", "-p", port, "-U", "tester")


def _make_postgres(bed, data):
    if os.getuid() == 0:
        user = pwd.getpwnam("postgres")
        os.chown(data, user.pw_uid, user.pw_gid)
    plain(
        bed, _bin("initdb"), "-D", data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--locale=C"
    )
    library = bed.environment.pop("LD_PRELOAD", None)
    port, server = _postgres(bed, data)
    bed.prepare(_bin("pgbench"), *_to(port), "-i", "-q", "-s", 5, "postgres")
    bed.stop(server, signal.SIGINT)
    if library:
        bed.environment["LD_PRELOAD"] = library


def _p99(bed):
    """Of the transactions that pgbench has logged, in µs."""
    took = []
    for name in glob.glob(bed.path("log.*")):
        with open(name) as f:
            took.extend(int(line.split()[2]) for line in f)
    return {"p99": sorted(took)[len(took) * 99 // 100]} if took else {}


def _pgbench(*how):
    def cell(bed):
        _as_postgres(bed)
        port, server = _postgres(bed, kept(bed, "postgres", _make_postgres))
        out = bed.client(
            *(_bin("pgbench"), *_to(port), "-n", "-T", bed.whole_seconds, *how),
            *("-l", "--sampling-rate=0.1", f"--log-prefix={bed.path('log')}", "postgres"),
        )
        bed.stop(server, signal.SIGINT)
        if "number of failed transactions: 0 " not in out:
            raise Failed(f"pgbench: {out[-300:]}".replace("\n", " | "))
        return {"rate": found(r"tps = ([\d.]+)", out, "pgbench") / 1e3, **_p99(bed)}

    return cell


def _postgres_row(name, *how, **more):
    return Row(
        f"pgbench-{name}",
        f"pgbench {' '.join(map(str, how))}",
        _pgbench(*how),
        needs=POSTGRES,
        **more,
    )


# ---------------------------------------------------------------- MariaDB


def _mariadb(bed, data):
    port = free_port()
    return port, bed.server(
        port,
        *(
            "mariadbd",
            "--no-defaults",
            f"--datadir={data}",
            f"--port={port}",
            "--bind-address=127.0.0.1",
        ),
        *(
            f"--socket={bed.path('sock')}",
            f"--pid-file={bed.path('pid')}",
            "--skip-grant-tables",
            "--skip-name-resolve",
        ),
        *(
            "--skip-log-bin",
            "--innodb-flush-log-at-trx-commit=0",
            *(("--user=root",) if os.getuid() == 0 else ()),
        ),
    )


def _sysbench(port, test, *how):
    to = ("--mysql-host=127.0.0.1", f"--mysql-port={port}", "--mysql-user=root", "--mysql-db=test")
    return ("sysbench", test, *to, "--table-size=10000", "--percentile=99", *how)


def _make_mariadb(bed, data):
    user = ("--user=root",) if os.getuid() == 0 else ()
    plain(
        bed,
        "mariadb-install-db",
        "--no-defaults",
        f"--datadir={data}",
        "--auth-root-authentication-method=normal",
        *user,
    )
    library = bed.environment.pop("LD_PRELOAD", None)
    port, server = _mariadb(bed, data)
    bed.prepare(*_sysbench(port, "oltp_point_select", "prepare"))
    bed.stop(server)
    if library:
        bed.environment["LD_PRELOAD"] = library


def _maria(test, threads):
    def cell(bed):
        port, server = _mariadb(bed, kept(bed, "mariadb", _make_mariadb))
        out = bed.client(
            *_sysbench(port, test, f"--threads={threads}", f"--time={bed.whole_seconds}", "run")
        )
        bed.stop(server)
        return {
            "rate": found(r"transactions: +\d+ +\(([\d.]+) per sec", out, "sysbench") / 1e3,
            "p99": found(r"99th percentile: +([\d.]+)", out, "sysbench") * 1e3,
        }

    return cell


def _maria_row(name, test, threads):
    title = f"MariaDB, sysbench {test}, {threads} threads"
    return Row(
        f"mariadb-{name}-{threads}",
        title,
        _maria(test, threads),
        needs=MARIADB,
        strict=BUSY_AND_ONE if (name, threads) == ("point", 1) else (),
    )


ROWS = (
    *(_postgres_row(f"S-{n}", "-S", "-c", n, strict=BUSY if n == 8 else ()) for n in (1, 8, 32)),
    *(_postgres_row(f"S-prepared-{n}", "-S", "-M", "prepared", "-c", n) for n in (1, 8, 32)),
    _postgres_row("tpcb", "-c", 8),
    _postgres_row("C", "-S", "-C", "-c", 2),
    *(_maria_row("point", "oltp_point_select", n) for n in (1, 8, 32)),
    *(_maria_row("read", "oltp_read_only", n) for n in (1, 8, 32)),
)
