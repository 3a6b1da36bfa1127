"""Asks a server of ../app.py: `asgi_client.py PORT CONNECTIONS REQUESTS`. Each connection is kept
and its answers are compared."""
import http.client
import sys

sys.path.insert(0, __file__.rsplit("/", 2)[0])
from app import body  # noqa: E402

port, connections, requests = map(int, sys.argv[1:])
open_ones = [http.client.HTTPConnection("127.0.0.1", port, timeout=60) for _ in range(connections)]
for i in range(requests):
    for k, c in enumerate(open_ones):
        size = 1 + (i * 7919 + k * 104729) % 200_000
        c.request("GET", f"/{size}")
        got = c.getresponse().read()
        if got != body(size):
            sys.exit(f"request {i} of connection {k}: {len(got)} bytes, other than {size}")
print("all as sent")
