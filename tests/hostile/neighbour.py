#!/usr/bin/env python3
"""A hostile neighbour in the directory to meet in, which has its own copy of the protocol.

  neighbour.py DIRECTORY fill      names that nobody is behind, links, pipes and files of such names
  neighbour.py DIRECTORY squat     listens under names of every bucket, answers guesses and echoes
  neighbour.py DIRECTORY silent    listens under such names, and says nothing
  neighbour.py DIRECTORY few       is about to be killed
  neighbour.py DIRECTORY call      calls at all names, again and again, with what others have said

Prints "ready"; at SIGTERM what it was told: the number of messages, and of descriptors.
"""
import array, os, select, signal, socket, struct, sys, time

VERSION = 6
place, what = sys.argv[1:3]
messages = fds = 0
heard = []


def name(bucket, port=0):
    return "rs%04x-%02x+%04x-%s" % (VERSION, bucket, port, os.urandom(8).hex())


def leave(*_):
    print("told", messages, "descriptors", fds, flush=True)
    os._exit(0)


signal.signal(signal.SIGTERM, leave)


def take(s):
    """One message; what comes along is counted, and closed."""
    global messages, fds
    data, control, _, _ = s.recvmsg(512, socket.CMSG_SPACE(4 * 4), socket.MSG_DONTWAIT)
    for level, kind, text in control:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            got = array.array("i")
            got.frombytes(text[: len(text) - len(text) % 4])
            fds += len(got)
            for fd in got:
                os.close(fd)
    if data:
        messages += 1
        heard.append(data)
        del heard[:-50]
    return data


def proof(tagged):
    """One with an element that is a point (the group's generator), and a tag that is a guess."""
    element = bytes.fromhex("e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76")
    space = os.stat("/proc/self/ns/pid").st_ino
    who = struct.pack("=QQII", os.stat("/proc/self").st_ino, space, os.getpid(), 0)
    return struct.pack("=IHH", 0x72735066, VERSION, tagged) + who + element + os.urandom(32)


def listeners(count):
    made = []
    for n in range(count):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        at = os.path.join(place, name(n % 256))
        s.bind(at)
        os.chmod(at, 0o666)
        s.listen(4)
        made.append(s)
    return made


def fill():
    os.chdir(place)
    for n in range(1500):
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        s.bind(name(n % 256))
        s.close()
    for n in range(256):
        os.symlink("/dev/null", name(n))
        os.mkfifo(name(n))
        open(name(n), "w").close()
    print("ready", flush=True)
    signal.pause()


def squat(speaks):
    open_ones = {s.fileno(): s for s in listeners(512)}
    poll = select.epoll()
    for fd in open_ones:
        poll.register(fd, select.EPOLLIN)
    visitors = {}
    print("ready", flush=True)
    while True:
        for fd, _ in poll.poll():
            try:
                if fd in open_ones:
                    s, _ = open_ones[fd].accept()
                    s.setblocking(False)
                    visitors[s.fileno()] = s
                    poll.register(s.fileno(), select.EPOLLIN)
                    continue
                s = visitors[fd]
                data = take(s)
                if not data:
                    raise OSError
                if speaks:
                    s.send([proof(1), data, data[48:], proof(0), os.urandom(160)][messages % 5])
            except OSError:
                s = visitors.pop(fd, None)
                if s:
                    poll.unregister(fd)
                    s.close()


def call():
    print("ready", flush=True)
    while True:
        for n in os.listdir(place):
            s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
            try:
                s.connect(os.path.join(place, n))
                hint, which = os.urandom(2)
                head = struct.pack("=IHHQQ", 0x72734B6E, VERSION, 0, 7, 7)
                hello = head + struct.pack("=IIQQ", 4242, 64 | hint % 64, 4242, 0)
                again = heard[0] if heard else b"?"
                s.send([hello + proof(0), hello, again, os.urandom(100)][which % 4])
                if select.select([s], [], [], 0.002)[0]:
                    take(s)
                    s.send(hello + proof(1))
            except OSError:
                pass
            s.close()
        time.sleep(0.001)


def few():
    kept = listeners(80)
    print("ready", flush=True)
    signal.pause()


{
    "few": few,
    "fill": fill,
    "squat": lambda: squat(True),
    "silent": lambda: squat(False),
    "call": call,
}[what]()
