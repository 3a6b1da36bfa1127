"""Keeps packets that the kernel queues, and lets each go on later.

    late_syns.py QUEUE MOST ONE_IN    up to MOST milliseconds, and one in ONE_IN for 1.5 seconds

Says `there` when it does, and at SIGTERM how many were late and how many of them so much.
"""
import heapq
import os
import random
import select
import signal
import socket
import struct
import sys
import time

NETLINK_NETFILTER = 12
SUBSYS_QUEUE, PACKET, VERDICT, CONFIG = 3, 0, 1, 2
CFG_CMD, CFG_PARAMS, PACKET_HDR, VERDICT_HDR = 1, 2, 1, 2
BIND, COPY_META, ACCEPT = 1, 1, 1
REQUEST, ACK, ERROR = 1, 4, 2

queue, most, one_in = (int(a) for a in sys.argv[1:])
netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
netlink.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
netlink.bind((0, 0))
counts = {"late": 0, "overtaken": 0}


def say(what, attribute, value, flags=REQUEST):
    """One message with one attribute."""
    value = struct.pack("=HH", 4 + len(value), attribute) + value
    value += bytes(-len(value) % 4)
    body = struct.pack(">BBH", 0, 0, queue) + value
    kind = SUBSYS_QUEUE << 8 | what
    netlink.send(struct.pack("=IHHII", 16 + len(body), kind, flags, 0, 0) + body)


def agree(what, attribute, value):
    say(what, attribute, value, REQUEST | ACK)
    answer = netlink.recv(65536)
    _, kind = struct.unpack_from("=IH", answer)
    (error,) = struct.unpack_from("=i", answer, 16)
    if kind != ERROR or error:
        sys.exit(f"the kernel says {os.strerror(-error)}")


def packets(data):
    """The number of each packet in what the kernel has said."""
    while len(data) >= 20:
        length, kind = struct.unpack_from("=IH", data)
        at = 20
        while kind == SUBSYS_QUEUE << 8 | PACKET and at + 4 <= length:
            size, attribute = struct.unpack_from("=HH", data, at)
            if attribute == PACKET_HDR:
                yield struct.unpack_from(">I", data, at + 4)[0]
            at += max(4, size + 3 & ~3)
        data = data[length + 3 & ~3:]


def end(*_):
    print(" ".join(f"{k} {v}" for k, v in counts.items()), flush=True)
    os._exit(0)


signal.signal(signal.SIGTERM, end)
agree(CONFIG, CFG_CMD, struct.pack(">BBH", BIND, 0, 0))
agree(CONFIG, CFG_PARAMS, struct.pack(">IB", 0, COPY_META))
print("there", flush=True)
kept = []
while True:
    now = time.monotonic()
    while kept and kept[0][0] <= now:
        say(VERDICT, VERDICT_HDR, struct.pack(">II", ACCEPT, heapq.heappop(kept)[1]))
    wait = max(0, kept[0][0] - now) if kept else None
    if not select.select([netlink], [], [], wait)[0]:
        continue
    for number in packets(netlink.recv(65536)):
        overtaken = random.randrange(one_in) == 0
        counts["late"] += 1
        counts["overtaken"] += overtaken
        delay = 1.5 if overtaken else random.random() * most / 1000
        heapq.heappush(kept, (now + delay, number))
