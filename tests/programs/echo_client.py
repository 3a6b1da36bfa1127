"""echo_client.py PORT CONNECTIONS BYTES [BLOCKS [across]]: that many connections at a time to an
echo server at $ADDRESS, else on the loopback. Everything comes back as it went.

With BLOCKS the first byte says how many blocks of 64 KiB the server echoes before it becomes
another program. The client waits for all of them before it goes on, or (across) does not. Then
there are bytes on their way in both directions.
"""
import os, random, select, socket, sys, threading

port, connections, size = map(int, sys.argv[1:4])
blocks = int(sys.argv[4]) if len(sys.argv) > 4 else -1
across = sys.argv[5:6] == ["across"]
wrong = []


def exchange(s, rnd, n, piece, echoed_at_most=1 << 30):
    """Sends n bytes and reads as many, with up to a few hundred KiB on the way."""
    sent, got = bytearray(), bytearray()
    s.setblocking(False)
    while len(got) < n:
        more = len(sent) < n and len(sent) - len(got) < echoed_at_most
        r, w, _ = select.select([s], [s] if more else [], [], 60)
        if not r and not w:
            raise TimeoutError(f"{len(sent)} sent, {len(got)} back")
        if w:
            part = rnd.randbytes(min(rnd.randint(1, piece), n - len(sent)))
            sent += part[: s.send(part)]
        if r:
            part = s.recv(1 << 16)
            if not part:
                raise EOFError(f"{len(sent)} sent, {len(got)} back")
            got += part
    s.setblocking(True)
    if sent != got:
        at = next(i for i in range(n) if sent[i] != got[i])
        raise ValueError(f"byte {at} of {n}")


def one(number):
    rnd = random.Random(number)
    try:
        with socket.create_connection((os.environ.get("ADDRESS", "127.0.0.1"), port), timeout=60) as s:
            if blocks >= 0:
                s.sendall(bytes([blocks]))
                if not across:
                    exchange(s, rnd, blocks * 65536, 20000)
            exchange(s, rnd, size + (blocks * 65536 if across else 0), 20000, 300000)
            s.shutdown(socket.SHUT_WR)
            s.settimeout(60)
            rest = s.recv(100)
            if rest:
                raise ValueError(f"{len(rest)} bytes behind the end")
    except Exception as e:
        wrong.append(f"connection {number}: {type(e).__name__} {e}")


threads = [threading.Thread(target=one, args=(i,)) for i in range(connections)]
for t in threads:
    t.start()
for t in threads:
    t.join()
print(f"{connections - len(wrong)} of {connections} right", *wrong[:3], sep="; ")
sys.exit(bool(wrong))
