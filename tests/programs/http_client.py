"""http_client.py PORT THREADS SECONDS|COUNT SIZE... : asks the server at $ADDRESS, else on the
loopback, for /SIZE again and again and compares every byte.

Each answer must be the one of app.py, complete; a request that fails is a failure. Ends after COUNT
rounds of all sizes ("12"), after a time ("2.5s"), or when its standard input ends ("eof").
"""
import http.client, os, sys, threading, time
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from app import body

port, count, until = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
bodies = [(n, body(n)) for n in map(int, sys.argv[4:])]
address = os.environ.get("ADDRESS", "127.0.0.1")
wrong, done, over = [], [0] * count, threading.Event()
fresh = os.environ.get("FRESH") == "1"  # a connection for each request


def one(i):
    c, rounds = None, 0
    try:
        while not over.is_set() and (not until.isdigit() or rounds < int(until)):
            rounds += 1
            for n, want in bodies:
                c = c or http.client.HTTPConnection(address, port, timeout=60)
                c.request("GET", f"/{n}", headers={"Connection": "close"} if fresh else {})
                r = c.getresponse()
                got = r.read()
                if r.status != 200 or got != want:
                    raise ValueError(f"/{n}: status {r.status}, {len(got)} bytes")
                done[i] += 1
                if fresh or r.will_close:
                    c.close()
                    c = None
    except Exception as e:
        wrong.append(f"{type(e).__name__} {e} after {done[i]} answers")


threads = [threading.Thread(target=one, args=(i,)) for i in range(count)]
for t in threads:
    t.start()
if until == "eof":
    sys.stdin.read()
    over.set()
elif until.endswith("s"):
    time.sleep(float(until[:-1]))
    over.set()
for t in threads:
    t.join()
print(f"{sum(done)} answers", *wrong[:3], sep="; ")
sys.exit(bool(wrong) or sum(done) == 0)
