"""An echo pair on asyncio: `server HOST PORT` or `client HOST PORT [CLIENTS]`. The client compares
every byte."""
import asyncio
import os
import random
import sys

CLIENTS = int(sys.argv[4]) if len(sys.argv) > 4 else int(os.environ.get("CLIENTS", 50))
MESSAGES = int(os.environ.get("MESSAGES", 60))


async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def server(host, port):
    async with await asyncio.start_server(serve, host, port) as s:
        await s.serve_forever()


async def client(host, port, number):
    rnd = random.Random(number)
    reader, writer = await asyncio.open_connection(host, port)
    for _ in range(MESSAGES):
        data = rnd.randbytes(rnd.choice([1, 10, 200, 3000, 40000]))
        writer.write(data)
        if await reader.readexactly(len(data)) != data:
            raise SystemExit(f"client {number}: other bytes came back")
    writer.write_eof()
    if await reader.read():
        raise SystemExit(f"client {number}: bytes after the end")
    writer.close()
    await writer.wait_closed()


async def clients(host, port):
    await asyncio.gather(*(client(host, port, i) for i in range(CLIENTS)))
    print(f"{CLIENTS} clients, all bytes as sent")


role, host, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
try:
    asyncio.run(server(host, port) if role == "server" else clients(host, port))
except KeyboardInterrupt:
    pass
