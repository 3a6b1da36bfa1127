"""Standard input to a TCP connection and back to standard output, both at once, like nc."""
import socket
import sys
import threading

s = socket.create_connection((sys.argv[1], int(sys.argv[2])))


def feed():
    while data := sys.stdin.buffer.read1(100000):
        s.sendall(data)


t = threading.Thread(target=feed, daemon=True)
t.start()
while data := s.recv(70000):
    sys.stdout.buffer.write(data)
sys.stdout.buffer.flush()
