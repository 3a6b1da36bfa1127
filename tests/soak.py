"""The servers, the clients and the driver of tests/soak.

    soak.py serve threads|forks|asyncio PORT
    soak.py talk PORT SEED ROUNDS    exchanges messages of random sizes; 0 if every byte came back
    soak.py drive SECONDS SEED WWW WEBPORT NGINX PID,PID,... KIND:PORT...

A client that is killed by the driver may end as it likes. Every other one must succeed, however
often it, or the server's process at its other end, was stopped meanwhile.
"""
import asyncio
import filecmp
import os
import random
import signal
import socket
import socketserver
import subprocess
import sys
import tempfile
import time


def broken(client, why):
    """As it is for a client that was killed; for another one the driver's caller looks here."""
    print(f"port {client[1]}: {why!r}", flush=True)


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        try:
            while data := self.request.recv(random.choice((300, 5000, 70000))):
                self.request.sendall(data)
        except ConnectionError as why:
            broken(self.client_address, why)


class Server(socketserver.TCPServer):
    allow_reuse_address = True
    request_queue_size = 64


class Threads(socketserver.ThreadingMixIn, Server):
    daemon_threads = True


class Forks(socketserver.ForkingMixIn, Server):
    max_children = 100

    def collect_children(self, *, blocking=False):
        """As the library does, and says how each child ended that did not end well."""
        while self.active_children:
            pid, status = os.waitpid(-1, 0 if blocking else os.WNOHANG)
            if not pid:
                return
            self.active_children.discard(pid)
            if status:
                print(f"a child of the server, {pid}, ended with status {status:#x}", flush=True)


async def echo(reader, writer):
    try:
        while data := await reader.read(70000):
            writer.write(data)
            await writer.drain()
    except ConnectionError as why:
        broken(writer.get_extra_info("peername"), why)
    finally:
        writer.close()


async def serve_asyncio(port):
    server = await asyncio.start_server(echo, "127.0.0.1", port)
    async with server:
        await server.serve_forever()


def serve(kind, port):
    def orderly(*_):
        # With what the library counts at the end.
        raise SystemExit(0)

    signal.signal(signal.SIGTERM, orderly)
    if kind == "asyncio":
        asyncio.run(serve_asyncio(port))
    with (Threads if kind == "threads" else Forks)(("127.0.0.1", port), Echo) as server:
        server.serve_forever(0.1)


def talk(port, seed, rounds):
    rnd = random.Random(seed)
    with socket.create_connection(("127.0.0.1", port), timeout=120) as s:
        s.settimeout(120)
        for i in range(rounds):
            message = rnd.randbytes(rnd.choice((1, 40, 900, 4096, 20000, 150000)))
            # All of it before any of it is read: less than both directions buffer.
            s.sendall(message)
            got = bytearray()
            while len(got) < len(message):
                more = s.recv(rnd.choice((1000, 100000)))
                if not more:
                    at = f"in round {i}, at {len(got)} of {len(message)}"
                    raise SystemExit(f"port {s.getsockname()[1]}: the stream has ended {at}")
                got += more
            if got != message:
                raise SystemExit(f"WRONG bytes in round {i}")
            if rnd.random() < 0.02:
                # A child has the connection too, for a moment, and ends without a word.
                child = os.fork()
                if child == 0:
                    os._exit(0)
                os.waitpid(child, 0)


def footprint(pid):
    """Descriptors, mappings, and KiB of memory, of one process."""
    with open(f"/proc/{pid}/smaps_rollup") as f:
        kib = next(int(line.split()[1]) for line in f if line.startswith("Rss:"))
    with open(f"/proc/{pid}/maps") as f:
        maps = sum(1 for _ in f)
    return len(os.listdir(f"/proc/{pid}/fd")), maps, kib


def children(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as f:
        return [int(p) for p in f.read().split()]


class Driver:
    def __init__(self, seconds, seed, www, web, nginx, servers, ports):
        self.rnd = random.Random(seed)
        self.seconds, self.www, self.web, self.nginx, self.servers = seconds, www, web, nginx, servers
        self.ports = dict(p.split(":") for p in ports)
        self.running = []
        self.done = self.killed = self.stopped = self.reloads = self.bad = 0
        self.tmp = tempfile.mkdtemp(dir=".")
        self.stops = []

    def fail(self, what):
        self.bad += 1
        print(f"FAIL soak {what}", flush=True)

    def new(self):
        run = [os.environ["RSRUN"]]
        n = self.done + len(self.running)
        err = open(f"{self.tmp}/{n}", "wb+")
        if self.rnd.random() < 0.25:
            name = f"file{self.rnd.randint(1, 3)}"
            got = f"{self.tmp}/{n}.got"
            # The first file warms the connection that the second one comes by.
            url = f"http://127.0.0.1:{self.web}/"
            args = run + ["curl", "-sS", "--max-time", "120", "-o", f"{got}0", url + "file1", "-o", got, url + name]
            kind = ("web", got, f"{self.www}/{name}")
        else:
            server = self.rnd.choice(sorted(self.ports))
            seed, rounds = self.rnd.randrange(1 << 30), self.rnd.choice((3, 30, 100))
            args = run + [sys.executable, __file__, "talk", self.ports[server], str(seed), str(rounds)]
            kind = (server, None, None)
        p = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=err, stderr=err)
        self.running.append({"p": p, "kind": kind, "err": err, "excused": False, "since": time.monotonic()})

    def reap(self):
        for c in list(self.running):
            code = c["p"].poll()
            if code is None:
                if time.monotonic() - c["since"] > 180:
                    self.fail(f"{c['kind'][0]}: a client hangs")
                    c["p"].kill()
                    c["excused"] = True
                continue
            self.running.remove(c)
            self.done += 1
            kind, got, want = c["kind"]
            c["err"].seek(0)
            said = c["err"].read().decode(errors="replace").strip().replace("\n", " | ")
            c["err"].close()
            os.unlink(c["err"].name)
            if code != 0 and not c["excused"]:
                self.fail(f"{kind}: exit {code}: {said[-300:]}")
            if "WRONG" in said or (got and code == 0 and not filecmp.cmp(got, want, shallow=False)):
                self.fail(f"{kind}: wrong bytes")
            for path in [got, f"{got}0"] if got else []:
                if os.path.exists(path):
                    os.unlink(path)

    def stop_for_a_while(self, pid):
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:
            return
        self.stopped += 1
        self.stops.append((time.monotonic() + self.rnd.uniform(0.05, 1.0), pid))

    def wake(self, all_of_them=False):
        for due, pid in list(self.stops):
            if all_of_them or time.monotonic() > due:
                self.stops.remove((due, pid))
                try:
                    os.kill(pid, signal.SIGCONT)
                except ProcessLookupError:
                    pass

    def mischief(self):
        what = self.rnd.random()
        if what < 0.25 and self.running:
            c = self.rnd.choice(self.running)
            c["excused"] = True
            c["p"].kill()
            self.killed += 1
        elif what < 0.60 and self.running:
            self.stop_for_a_while(self.rnd.choice(self.running)["p"].pid)
        elif what < 0.80:
            victim = self.rnd.choice(self.servers)
            self.stop_for_a_while(self.rnd.choice(children(victim) + [victim]))
        elif what < 0.85:
            os.kill(self.nginx, signal.SIGHUP)
            self.reloads += 1

    def quiet(self):
        """Lets all clients end and the servers settle."""
        self.wake(all_of_them=True)
        end = time.monotonic() + 240
        while self.running and time.monotonic() < end:
            self.reap()
            time.sleep(0.02)
        for c in self.running:
            self.fail(f"{c['kind'][0]}: a client hangs")
            c["p"].kill()
        end = time.monotonic() + 30
        while any(children(pid) for pid in self.servers) and time.monotonic() < end:
            time.sleep(0.1)

    def storm(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.wake()
            self.reap()
            if len(self.running) < 6:
                self.new()
            if self.rnd.random() < 0.2:
                self.mischief()
            time.sleep(self.rnd.uniform(0, 0.05))
        self.quiet()

    def run(self):
        self.storm(self.seconds * 0.4)
        before = [footprint(pid) for pid in self.servers]
        self.storm(self.seconds * 0.6)
        after = [footprint(pid) for pid in self.servers]
        print(f"soak: {self.done} clients, {self.killed} killed, {self.stopped} stops, {self.reloads} reloads")
        if not self.bad:
            print("ok soak every byte came back")
        for name, i, room in (("descriptors", 0, 12), ("mappings", 1, 40), ("memory in KiB", 2, 24 * 1024)):
            grown = [(a[i], b[i]) for a, b in zip(before, after) if b[i] > a[i] + room]
            if grown:
                self.fail(f"{name} grew: {grown}")
            else:
                print(f"ok soak {name} are flat: {[(a[i], b[i]) for a, b in zip(before, after)]}")
        return self.bad


def main():
    if sys.argv[1] == "serve":
        serve(sys.argv[2], int(sys.argv[3]))
    elif sys.argv[1] == "talk":
        talk(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
    else:
        seconds, seed, www, web, nginx, servers = sys.argv[2:8]
        pids = [int(p) for p in servers.split(",")]
        driver = Driver(float(seconds), int(seed), www, int(web), int(nginx), pids, sys.argv[8:])
        sys.exit(1 if driver.run() else 0)


main()
