"""gRPC without generated code, 64 B: `grpc_rate.py serve PORT`, `grpc_rate.py ask PORT SECONDS
unary|stream`.

Unary calls one after the other, or messages to and fro on one stream, each after the answer to the
one before. Prints `rate N p99 NS`.
"""

import signal
import sys
from concurrent import futures
from queue import SimpleQueue

import grpc
from talking import rated

BODY = b"b" * 64


def echo(request, _):
    return request


def chat(requests, _):
    yield from requests


def serve(port):
    server = grpc.server(futures.ThreadPoolExecutor(4))
    how = {
        "echo": grpc.unary_unary_rpc_method_handler(echo),
        "chat": grpc.stream_stream_rpc_method_handler(chat),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t", how),))
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    signal.sigwait([signal.SIGTERM])
    server.stop(5).wait()


def ask(port, seconds, how):
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        unary = channel.unary_unary("/t/echo")
        if how == "unary":
            rated(seconds, lambda: unary(BODY, timeout=60), BODY)
            return
        queue = SimpleQueue()
        answers = channel.stream_stream("/t/chat")(iter(queue.get, None))
        rated(seconds, lambda: queue.put(BODY) or next(answers), BODY)
        queue.put(None)


if sys.argv[1] == "serve":
    # Before there are threads, all of which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    serve(int(sys.argv[2]))
else:
    ask(int(sys.argv[2]), float(sys.argv[3]), sys.argv[4])
