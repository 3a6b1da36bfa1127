"""gRPC without generated code: `grpc_talk.py serve PORT-FILE` or `grpc_talk.py ask PORT ROUNDS`.
Unary calls, and streams of both directions, of bytes that are what their number says."""
import os
import sys
from concurrent import futures

import grpc


def body(i, size):
    return (b"%d." % i * (size // 2 + 1))[:size]


def echo(request, _):
    return request


def chat(requests, _):
    yield from requests


def down(request, _):
    count, size = map(int, request.split())
    for i in range(count):
        yield body(i, size)


def up(requests, _):
    total = 0
    for i, r in enumerate(requests):
        if r != body(i, 30_000):
            return b"other bytes in request %d" % i
        total += len(r)
    return b"%d" % total


def serve(port_file):
    server = grpc.server(futures.ThreadPoolExecutor(8))
    how = {
        "echo": grpc.unary_unary_rpc_method_handler(echo),
        "chat": grpc.stream_stream_rpc_method_handler(chat),
        "down": grpc.unary_stream_rpc_method_handler(down),
        "up": grpc.stream_unary_rpc_method_handler(up),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", how),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with open(port_file + ".new", "w") as f:
        f.write(str(port))
    os.rename(port_file + ".new", port_file)
    sys.stdin.read()
    server.stop(5).wait()


def ask(port, rounds):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        unary, chatting = channel.unary_unary("/t/echo"), channel.stream_stream("/t/chat")
        for i in range(rounds):
            want = body(i, 1 + i * 37 % 20_000)
            if unary(want, timeout=60) != want:
                sys.exit(f"unary {i}: other bytes")
        want = [body(i, 1 + i * 91 % 50_000) for i in range(rounds)]
        if list(chatting(iter(want), timeout=120)) != want:
            sys.exit("chat: other bytes")
        got = list(channel.unary_stream("/t/down")(b"%d 60000" % rounds, timeout=120))
        if got != [body(i, 60_000) for i in range(rounds)]:
            sys.exit("down: other bytes")
        said = channel.stream_unary("/t/up")((body(i, 30_000) for i in range(rounds)), timeout=120)
        if said != b"%d" % (30_000 * rounds):
            sys.exit(f"up: {said!r}")
    print("all as sent")


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    ask(int(sys.argv[2]), int(sys.argv[3]))
