"""How a cell runs its programs: with the library or without, on ports of its own, ended by id, and
what carried their bytes."""

import os
import random
import shutil
import signal
import subprocess
import tempfile
import time

TAKEN = set()


class Failed(Exception):
    """A program did not do what it should: the row shows no figure."""


def _used_ports():
    used = set()
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name) as f:
                next(f)
                used.update(int(line.split()[1].rsplit(":", 1)[1], 16) for line in f)
        except OSError:
            pass
    return used


def free_port():
    """Below the range that the kernel hands out itself, never the same twice."""
    used = _used_ports() | TAKEN
    while True:
        port = random.randrange(10000, 30000)
        if port not in used:
            TAKEN.add(port)
            return port


def _listens(port):
    want = f"{port:04X}"
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            with open(name) as f:
                for line in f:
                    part = line.split()
                    if part[3] == "0A" and part[1].rsplit(":", 1)[1] == want:
                        return True
        except OSError:
            pass
    return False


class Bed:
    """The surroundings of one cell. `library`: LD_PRELOAD, or None; `transport`: RSOCKET_TRANSPORT,
    or None for the default."""

    def __init__(self, library=None, transport="shm", seconds=1.0, pinned=None):
        self.library, self.transport, self.seconds, self.pinned = library, transport, seconds, pinned
        self.dir = tempfile.mkdtemp(prefix="rsocket-bench.")
        os.chmod(self.dir, 0o1777)
        self.stats = os.path.join(self.dir, "stats")
        os.mkdir(self.stats)
        os.chmod(self.stats, 0o1777)
        self.servers = []
        self.environment = dict(os.environ)
        for name in list(self.environment):
            if name.startswith(("RSOCKET_", "RS_")) or name == "LD_PRELOAD":
                del self.environment[name]
        if library is not None:
            if library:
                self.environment["LD_PRELOAD"] = library
            if transport:
                self.environment["RSOCKET_TRANSPORT"] = transport
            self.environment["RSOCKET_STATS"] = os.path.join(self.stats, "%p")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for p in self.servers:
            self._kill(p)
        shutil.rmtree(self.dir, ignore_errors=True)

    def path(self, name):
        return os.path.join(self.dir, name)

    def _command(self, command):
        return (["taskset", "-c", str(self.pinned)] if self.pinned is not None else []) + [str(c) for c in command]

    @staticmethod
    def _kill(p):
        if p.poll() is None:
            try:
                os.killpg(p.pid, signal.SIGKILL)
            except OSError:
                pass
        p.wait()

    def server(self, port, *command):
        log = open(self.path("server.log"), "ab")
        p = subprocess.Popen(
            self._command(command), env=self.environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )
        log.close()
        self.servers.append(p)
        end = time.monotonic() + 15
        while not _listens(port):
            if p.poll() is not None or time.monotonic() > end:
                raise Failed(f"{command[0]} does not listen: {self.tail('server.log')}")
            time.sleep(0.01)
        return p

    def tail(self, name):
        try:
            with open(self.path(name), errors="replace") as f:
                return f.read()[-300:].replace("\n", " | ")
        except OSError:
            return ""

    def stop(self, p, sig=signal.SIGTERM):
        """The server's own orderly end, so that it writes what it counted. One that a signal other
        than `sig` has ended has failed, whatever its client says."""
        ended = p.poll() is not None
        if not ended:
            os.kill(p.pid, sig)
        try:
            p.wait(60)
        except subprocess.TimeoutExpired:
            self._kill(p)
            raise Failed(f"{p.args[0]} did not end: {self.tail('server.log')}") from None
        self.servers.remove(p)
        if p.returncode < 0 and (ended or p.returncode != -sig):
            raise Failed(self._fallen(p))

    def _fallen(self, p):
        name = signal.strsignal(-p.returncode)
        carrier = "kernel TCP" if self.library is None else f"the library, {self.transport or 'by default'}"
        return f"SERVER DIED over {carrier}: {' '.join(p.args[:6])}: {name}: {self.tail('server.log')}"

    def client(self, *command, limit=90, good=(0,), cut=False):
        """What it says. With `cut` one that is not ready in time is ended, and what it has said by
        then is the answer."""
        p = subprocess.Popen(
            self._command(command),
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        try:
            out, err = p.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            self._kill(p)
            if not cut:
                raise Failed(f"{command[0]}: not ready after {limit} s") from None
            return "".join(p.communicate())
        for server in self.servers:
            if server.poll() is not None and server.returncode < 0:
                raise Failed(self._fallen(server))
        if p.returncode not in good:
            raise Failed(f"{' '.join(map(str, command))}: exit {p.returncode}: {(out + err)[-300:]}".replace("\n", " | "))
        return out + err

    def counted(self, name):
        total = 0
        for f in os.listdir(self.stats):
            with open(os.path.join(self.stats, f)) as lines:
                for words in map(str.split, lines):
                    if len(words) == 2 and words[0] == name:
                        total += int(words[1])
        return total

    def carried(self):
        """With TCP excluded, bytes must have gone over shared memory and none by TCP; by default
        policy they must have been counted."""
        if self.library is None:
            return
        moved = {w: self.counted(f"bytes.sent.{w}") + self.counted(f"bytes.received.{w}") for w in ("shm", "rdma", "tcp")}
        if self.transport == "shm" and (not moved["shm"] or moved["tcp"]):
            raise Failed(f"carried by shared memory {moved['shm']} bytes, by TCP {moved['tcp']}")
        if not sum(moved.values()):
            raise Failed("no byte was counted: the library was not there")


def fields(text):
    """`name number name number ...` in the last line."""
    words = text.strip().splitlines()[-1].split()
    return {words[i]: float(words[i + 1]) for i in range(0, len(words) - 1, 2)}
