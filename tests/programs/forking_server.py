"""socketserver.ForkingTCPServer as an echo server on the given port."""
import signal, socketserver, sys


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True
    request_queue_size = 64


signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
with Server(("127.0.0.1", int(sys.argv[1])), Echo) as server:
    server.serve_forever(0.2)
