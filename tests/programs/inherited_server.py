"""inherited_server.py KIND PORT COUNT : an echo server whose listening socket another program made.

Ends after COUNT connections. KIND:
  vfork        subprocess with pass_fds
  fork         the same with a preexec_fn
  spawn, forkserver    multiprocessing
  message      SCM_RIGHTS to a program that is no relative
  activation   LISTEN_FDS, from a launcher without the library
  odd          as vfork, with an option that only TCP can honour
And the kinds that get a connection:
  given        as vfork
  sent         as message
  inetd        from a launcher without the library, as standard input and output
"""
import array, multiprocessing, os, socket, subprocess, sys, threading

SO_TIMESTAMPING = 37


def echo(c):
    with c:
        while data := c.recv(65536):
            c.sendall(data)


def serve(listener, count):
    threads = []
    for _ in range(count):
        threads.append(threading.Thread(target=echo, args=(listener.accept()[0],)))
        threads[-1].start()
    for t in threads:
        t.join()


def run(*arguments, **how):
    sys.exit(subprocess.run([sys.executable, __file__, *map(str, arguments)], **how).returncode)


def receive(channel):
    _, control, _, _ = channel.recvmsg(1, socket.CMSG_SPACE(4))
    return socket.socket(fileno=array.array("i", control[0][2])[0])


def send_to_another(role, s, count):
    """By a message to a program that is no relative."""
    ours, theirs = socket.socketpair(socket.AF_UNIX)
    command = [sys.executable, __file__, role, str(theirs.fileno()), str(count)]
    child = subprocess.Popen(command, pass_fds=[theirs.fileno()])
    socket.send_fds(ours, [b"x"], [s.fileno()])
    s.close()
    sys.exit(child.wait())


def without_library():
    """This program again, without the library, which is for the program that it starts."""
    library = os.environ.pop("LD_PRELOAD", "")
    os.execvpe(sys.executable, [sys.executable, *sys.argv], os.environ | {"PRELOAD": library})


def main():
    kind, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "number":
        return serve(socket.socket(fileno=port), count)
    if kind == "activated":
        return serve(socket.socket(fileno=3), count)
    if kind == "receiver":
        return serve(receive(socket.socket(fileno=port)), count)
    if kind == "connection":
        return echo(socket.socket(fileno=port))
    if kind == "connection receiver":
        return echo(receive(socket.socket(fileno=port)))
    if kind in ("activation", "inetd") and "PRELOAD" not in os.environ:
        without_library()
    listener = socket.create_server(("127.0.0.1", port), backlog=64)
    if kind == "vfork":
        run("number", listener.fileno(), count, pass_fds=[listener.fileno()])
    if kind == "fork":
        run("number", listener.fileno(), count, pass_fds=[listener.fileno()], preexec_fn=lambda: None)
    if kind in ("spawn", "forkserver"):
        child = multiprocessing.get_context(kind).Process(target=serve, args=(listener, count))
        child.start()
        child.join()
    if kind == "message":
        send_to_another("receiver", listener, count)
    if kind == "odd":
        listener.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPING, 64)
        run("number", listener.fileno(), count, pass_fds=[listener.fileno()])
    if kind == "given":
        c, _ = listener.accept()
        run("connection", c.fileno(), 1, pass_fds=[c.fileno()])
    if kind == "sent":
        send_to_another("connection receiver", listener.accept()[0], 1)
    preload = {"LD_PRELOAD": os.environ["PRELOAD"]} if os.environ.get("PRELOAD") else {}
    if kind == "inetd":
        c, _ = listener.accept()
        run("connection", 0, 1, stdin=c, stdout=c, env=os.environ | preload)
    if kind == "activation":
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)
        environment = os.environ | preload | {"LISTEN_FDS": "1"}
        os.execvpe(sys.executable, [sys.executable, __file__, "activated", "0", str(count)], environment)


if __name__ == "__main__":
    main()
