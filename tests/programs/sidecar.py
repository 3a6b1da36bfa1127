#!/usr/bin/env python3
"""A sidecar as service meshes have it: connections come by REDIRECT, and SO_ORIGINAL_DST says where
to. It passes them on to that port on loopback.  sidecar.py PORT WANTED-ADDRESS WANTED-PORT"""
import selectors
import signal
import socket
import struct
import sys
import threading

SO_ORIGINAL_DST = 80


def pass_on(source, sink):
    try:
        while data := source.recv(1 << 16):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        # wrk resets what it has when its time is up: so is the other one.
        sink.close()


def serve(client, wanted):
    said = client.getsockopt(socket.SOL_IP, SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from(">2xH4s", said)
    if (socket.inet_ntoa(address), port) != wanted:
        print(f"another destination: {socket.inet_ntoa(address)}:{port}", file=sys.stderr)
        return
    with client, socket.create_connection(("127.0.0.1", port)) as server:
        back = threading.Thread(target=pass_on, args=(server, client))
        back.start()
        pass_on(client, server)
        back.join()


def main():
    wanted = (sys.argv[2], int(sys.argv[3]))
    with socket.create_server(("", int(sys.argv[1])), backlog=64) as listener:
        stop, stopped = socket.socketpair()
        signal.signal(signal.SIGTERM, lambda *_: stopped.send(b"x"))
        ready = selectors.DefaultSelector()
        ready.register(listener, selectors.EVENT_READ)
        ready.register(stop, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is stop:
                    return
                threading.Thread(
                    target=serve, args=(listener.accept()[0], wanted), daemon=True).start()


main()
