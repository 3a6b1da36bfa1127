"""A WSGI application, and one for ASGI: /N answers N bytes that depend on N alone; POST answers
what was sent (WSGI alone)."""


def body(n):
    block = bytes((n * 31 + i * 7) % 251 for i in range(4096))
    return (block * (n // 4096 + 1))[:n]


def app(environ, start_response):
    if environ["REQUEST_METHOD"] == "POST":
        answer = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
    else:
        answer = body(int(environ["PATH_INFO"].strip("/") or 0))
    start_response("200 OK", [("Content-Type", "application/octet-stream"), ("Content-Length", str(len(answer)))])
    return [answer]


async def asgi(scope, receive, send):
    if scope["type"] != "http":
        return
    answer = body(int(scope["path"].strip("/") or 0))
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", str(len(answer)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": answer})
