"""Asks an echo server: `echo_ask.py PORT [MEGABYTES]`: 600 small messages, a pause among them, then
so much at once, both ways at a time. Says "all as sent", or what was not."""
import hashlib
import random
import socket
import sys
import threading
import time

c = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
for i in range(600):
    if i == 100:
        time.sleep(0.3)
    c.sendall(bytes([i % 251]) * 1000)
    got = b""
    while len(got) < 1000:
        part = c.recv(1000 - len(got))
        if not part:
            sys.exit("the end")
        got += part
    if got != bytes([i % 251]) * 1000:
        sys.exit("other bytes")
much = random.Random(1).randbytes(int(sys.argv[2]) << 20) if len(sys.argv) > 2 else b""
sender = threading.Thread(target=c.sendall, args=(much,))
sender.start()
digest, left = hashlib.sha256(), len(much)
while left:
    part = c.recv(min(left, 65536))
    if not part:
        sys.exit(f"the end, {left} bytes early")
    digest.update(part)
    left -= len(part)
sender.join()
c.shutdown(socket.SHUT_WR)
if c.recv(1):
    sys.exit("more than was sent")
print("all as sent" if digest.digest() == hashlib.sha256(much).digest() else "other bytes in bulk")
