"""inherited_server.py KIND PORT COUNT : an echo server whose listening socket was made by another program. Ends after COUNT connections.

KIND: vfork (subprocess with pass_fds), fork (the same with a preexec_fn), spawn, forkserver (multiprocessing), message (SCM_RIGHTS to a
program that is no relative), activation (LISTEN_FDS, from a launcher without the library).
"""
import array, multiprocessing, os, socket, subprocess, sys, threading


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


def main():
    kind, port, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if kind == "number":
        return serve(socket.socket(fileno=port), count)
    if kind == "activated":
        return serve(socket.socket(fileno=3), count)
    if kind == "receiver":
        s = socket.socket(fileno=port)
        _, control, _, _ = s.recvmsg(1, socket.CMSG_SPACE(4))
        return serve(socket.socket(fileno=array.array("i", control[0][2])[0]), count)
    if kind == "activation" and "PRELOAD" not in os.environ:
        # The launcher itself goes without the library.
        library = os.environ.pop("LD_PRELOAD", "")
        os.execvpe(sys.executable, [sys.executable, *sys.argv], os.environ | {"PRELOAD": library})
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
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        child = subprocess.Popen([sys.executable, __file__, "receiver", str(theirs.fileno()), str(count)], pass_fds=[theirs.fileno()])
        socket.send_fds(ours, [b"x"], [listener.fileno()])
        child.wait()
    if kind == "activation":
        os.dup2(listener.fileno(), 3)
        os.set_inheritable(3, True)
        preload = {"LD_PRELOAD": os.environ["PRELOAD"]} if os.environ["PRELOAD"] else {}
        os.execvpe(sys.executable, [sys.executable, __file__, "activated", "0", str(count)], os.environ | preload | {"LISTEN_FDS": "1"})


if __name__ == "__main__":
    main()
