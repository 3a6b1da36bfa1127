"""A forking echo server: `ADDRESS PORT CONNECTIONS`. Each connection is a child's; the parent
closes its copy."""
import socketserver
import sys


class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)


class Server(socketserver.ForkingTCPServer):
    allow_reuse_address = True


with Server((sys.argv[1], int(sys.argv[2])), Echo) as server:
    for _ in range(int(sys.argv[3])):
        server.handle_request()
