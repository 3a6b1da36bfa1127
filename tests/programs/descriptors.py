"""descriptors.py WHAT PORT SOFT HARD : what a client may do with its descriptors.

The limits are SOFT and HARD. Each connection to the echo server moves 40 KB. WHAT is one of these.
count: how many connections there can be, and files after ten of them are closed. files: how many
there can be beside twenty connections, and other descriptors after ten of them are closed. lowest:
numbers are the lowest free ones. close: everything else is closed, in every way that there is.
exec: what children inherit.
"""
import ctypes, errno, json, os, resource, select, socket, subprocess, sys, threading

what, port, soft, hard = sys.argv[1], *map(int, sys.argv[2:])
os.closerange(3, 65536)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
libc = ctypes.CDLL(None, use_errno=True)


def echo(c, times):
    message = b"x" * 1300
    for _ in range(times):
        c.sendall(message)
        n = 0
        while n < len(message):
            n += len(c.recv(len(message) - n)) or sys.exit("the end")


def connect():
    c = socket.create_connection(("127.0.0.1", port), timeout=20)
    echo(c, 30)
    return c


def count():
    sockets = []
    try:
        while True:
            sockets.append(connect())
    except OSError as e:
        print(len(sockets), "connections, then", e.strerror)
    for _ in range(10):
        sockets.pop().close()
    files = []
    try:
        while True:
            files.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as e:
        print(len(files), "files, then", e.strerror)
    for c in sockets:
        echo(c, 3)
    print("all bytes as sent")


def number_of(make):
    made = []
    try:
        while True:
            made.append(make())
    except OSError as e:
        if e.errno != errno.EMFILE:
            raise
    return made


def files():
    sockets = [connect() for _ in range(20)]
    opened = number_of(lambda: os.open("/dev/null", os.O_RDONLY))
    print(len(opened), end=" ")
    kept = []
    for make in (
        lambda: os.dup(0),
        lambda: open("/dev/null"),
        lambda: os.memfd_create("x"),
        lambda: select.epoll(),
        lambda: socket.socket(socket.AF_UNIX),
        lambda: os.eventfd(0),
    ):
        for _ in range(10):
            os.close(opened.pop())
        more = number_of(make)
        print(len(more), end=" ")
        kept.append(more)
    print()
    for c in sockets:
        echo(c, 3)


def lowest():
    sockets = [connect() for _ in range(20)]
    first = sockets[0].fileno()
    print([c.fileno() - first for c in sockets] == list(range(20)))


def close():
    sockets = [connect() for _ in range(20)]
    first, last = sockets[0].fileno(), sockets[-1].fileno()
    for fd in range(last + 1, soft + 50):
        libc.close(fd)
    os.closerange(last + 1, hard)
    libc.close_range(last + 1, 0xFFFFFFFF, 0)
    libc.closefrom(last + 1)
    for c in sockets:
        echo(c, 30)
    for c in sockets[:10]:
        # A number beyond the limit, which no descriptor has.
        if libc.dup2(c.fileno(), soft) != -1 or ctypes.get_errno() != 9:
            sys.exit("dup2 to the limit")
    sockets.append(connect())
    print("all bytes as sent")


def children():
    """In a thread: what starts while connections attach has our limits, and no more files."""
    listing = "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"
    for how in ({}, {"preexec_fn": lambda: None}) * 3:
        script = f"ulimit -Sn; ulimit -Hn; exec {sys.executable} -c \"{listing}\""
        how = how | {"close_fds": False, "capture_output": True, "text": True}
        p = subprocess.run(["sh", "-c", script], **how)
        soft_now, hard_now, files = p.stdout.split("\n")[:3]
        # What was forked, not by vfork, is an heir: the library's own go with it, out of the way.
        files = [n for n in json.loads(files) if "preexec_fn" not in how or n < soft * 3 // 4]
        seen.append([soft_now, hard_now, str(files)])


seen = []
if what == "exec":
    thread = threading.Thread(target=children)
    thread.start()
    sockets = []
    while thread.is_alive():
        sockets.append(connect())
        if len(sockets) == 12:
            sockets.pop(0).close()
    thread.join()
    wanted = [str(soft), str(hard), "[0, 1, 2, 3]"]
    print("as without" if all(s == wanted for s in seen) and len(seen) == 6 else seen)
else:
    {"count": count, "lowest": lowest, "files": files, "close": close}[what]()
print("limits", resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard))
