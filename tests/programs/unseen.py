"""An echo server whose bytes go through libc and whose waits do not: `unseen.py HOW PORT-FILE`.
HOW:
  wait  only the wait is a system call by number (as Bun's is)
  all   epoll_create1 and epoll_ctl are, too (as those of Rust's rustix are)
  dry   as wait, and receives until nothing is left before it waits, as async runtimes do
  tick  as dry, and looks each millisecond whether anything is there
  look  does not wait at all"""
import ctypes
import os
import select
import socket
import struct
import sys

libc = ctypes.CDLL(None, use_errno=True)
CREATE1, CTL, PWAIT2 = 291, 233, 441


def call(*arguments):
    r = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in arguments])
    if r < 0:
        raise OSError(ctypes.get_errno(), "by number")
    return r


by_number = sys.argv[1] == "all"
dry = sys.argv[1] in ("dry", "tick")
ticks, looks = sys.argv[1] == "tick", sys.argv[1] == "look"
epoll = None if by_number else select.epoll()
number = call(CREATE1, 0) if by_number else epoll.fileno()
ours = {}


def add(s):
    ours[s.fileno()] = s
    s.setblocking(False)
    if by_number:
        call(CTL, number, 1, s.fileno(), ctypes.c_char_p(struct.pack("<Iq", select.EPOLLIN, s.fileno())))
    else:
        epoll.register(s.fileno(), select.EPOLLIN)


listener = socket.create_server(("127.0.0.1", 0))
add(listener)
with open(sys.argv[2] + ".new", "w") as f:
    f.write(str(listener.getsockname()[1]))
os.rename(sys.argv[2] + ".new", sys.argv[2])
room = ctypes.create_string_buffer(12 * 16)
pause = ctypes.c_char_p(struct.pack("<qq", 0, 1_000_000)) if ticks else None


def due():
    """The sockets that may be ready."""
    if looks:
        return list(ours.values())
    told = []
    for i in range(call(PWAIT2, number, room, 16, pause, None, 8)):
        # Python leaves the upper half of the data as it finds it.
        _, data = struct.unpack_from("<Ii", room, 12 * i)
        if data not in ours:
            sys.exit(f"an event for {data:#x}, which nobody asked for")
        told.append(ours[data])
    return list(ours.values()) if ticks else told


def serve(s):
    while True:
        try:
            said = s.recv(65536)
        except BlockingIOError:
            return
        if not said:
            del ours[s.fileno()]
            s.close()
            if len(ours) == 1:
                sys.exit(0)
            return
        s.sendall(said)
        if not dry:
            return


while True:
    for s in due():
        if s is not listener:
            serve(s)
            continue
        try:
            add(s.accept()[0])
        except BlockingIOError:
            pass
