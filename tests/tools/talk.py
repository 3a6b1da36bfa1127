"""An echo server, and a client that checks what comes back.

    talk.py serve PORT                     serves, each connection in a thread, until it is killed
    talk.py talk PORT ROUNDS SIZE [FIFO]   exchanges; says `ready`; waits for a line from FIFO,
                                           exchanges once more
"""
import os
import socket
import sys
import threading

# TALK_AT=ADDRESS: where it serves, or the address that it talks to.
AT = os.environ.get("TALK_AT", "127.0.0.1")


def change_user():
    """TALK_AS=UID: the user as which the process goes on that has made the connection."""
    if "TALK_AS" in os.environ:
        os.seteuid(int(os.environ["TALK_AS"]))


def serve(port):
    listener = socket.create_server((AT, port), backlog=64)

    def echo(connection):
        change_user()
        with connection:
            try:
                while data := connection.recv(65536):
                    connection.sendall(data)
            except OSError:
                pass

    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


def exchange(connection, message):
    connection.sendall(message)
    got = b""
    while len(got) < len(message):
        more = connection.recv(65536)
        if not more:
            raise SystemExit("the stream has ended")
        got += more
    if got != message:
        raise SystemExit("wrong bytes")


def talk(port, rounds, size, stay):
    # TALK_FROM=PORT: where the connection comes from, for tests that must know.
    source = ("127.0.0.1", int(os.environ["TALK_FROM"])) if "TALK_FROM" in os.environ else None
    with socket.create_connection((AT, port), timeout=30, source_address=source) as connection:
        change_user()
        pattern = bytes(range(251)) * (size // 251 + 2)
        for i in range(rounds):
            exchange(connection, pattern[i % 251 :][:size])
        print("ready", flush=True)
        if stay:
            with open(stay) as fifo:
                fifo.readline()
            exchange(connection, b"goodbye")
    print("done", flush=True)


if sys.argv[1] == "serve":
    serve(int(sys.argv[2]))
else:
    try:
        talk(int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5] if len(sys.argv) > 5 else None)
    except OSError as e:
        raise SystemExit(f"{type(e).__name__}: {e}")
