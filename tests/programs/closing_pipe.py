"""Like pipe.py, but says when it has sent everything (half-close), so that the server ends."""
import socket
import sys
import threading

s = socket.create_connection((sys.argv[1], int(sys.argv[2])))


def feed():
    while data := sys.stdin.buffer.read1(100000):
        s.sendall(data)
    s.shutdown(socket.SHUT_WR)


t = threading.Thread(target=feed, daemon=True)
t.start()
while data := s.recv(70000):
    sys.stdout.buffer.write(data)
sys.stdout.buffer.flush()
