#!/usr/bin/env bash
# A program that worked still works: the same command with and without the library has the same
# output and exit code. Modes: default, shm, eager, disabled (RSOCKET_DISABLE=1). `tcp` compares a
# command with itself, which checks this script.
. "$(dirname "$0")/common.sh"
need_cc
need /usr/bin/python3=python3 git unshare=util-linux openssl setpriv=util-linux readelf=binutils
tmpdir dir
cd "$dir" || exit 1
export HOME=$dir GIT_AUTHOR_DATE='2024-01-01T00:00:00Z' GIT_COMMITTER_DATE='2024-01-01T00:00:00Z'
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.org GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.org
gcc -O2 -o sandbox "$HERE/sandbox.c" && gcc -O2 -o daemon "$HERE/daemon.c" || die "the helpers do not compile"

# alike NAME SCRIPT : bash -c SCRIPT, once without and once with the library; output, errors and
# exit code compared.
alike() {
  local n=$1 s=$2 rc1 rc2
  rm -rf work && mkdir work
  (cd work && limit 60 bash -c "$s") >want.out 2>want.err </dev/null
  rc1=$?
  rm -rf work && mkdir work
  (cd work && limit 60 "${P[@]}" bash -c "$s") >got.out 2>got.err </dev/null
  rc2=$?
  if [ $rc1 = $rc2 ] && cmp -s want.out got.out && cmp -s want.err got.err; then ok "$n"
  else fail "$n" "exit $rc2, not $rc1; $(diff want.out got.out | head -3) $(diff want.err got.err | head -3)"; fi
}

# echo_server [COMMAND...] : an ordinary or preloaded server for the C clients, its port in $port,
# its id in $server
echo_server() {
  free_port port
  start server "$@" "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" server 127.0.0.1 "$port" >server.out 2>&1
  wait_port "$port" "$server" || fail "echo server" "$(tail -3 server.out)"
}

for m in $(if [ $# -gt 0 ]; then echo "$@"; else echo tcp default shm disabled; fi); do
  if [ "$m" = disabled ]; then mode default; MODE=disabled; P+=(RSOCKET_DISABLE=1); else mode "$m"; fi
  alike "200 processes in a shell loop" 'for i in $(seq 200); do /bin/echo $i | cat; done; /bin/false; echo $?'
  alike "a pipeline of twenty" 's=cat; for i in $(seq 20); do s="$s | cat"; done; seq 10000 | eval "$s" | sha256sum'
  alike "subshells, traps, here-documents" 'x=$(trap "echo t" EXIT; cat <<< hello); echo $x; (exit 7); echo $?; wait; kill -TERM $$'
  alike "python: ssl, subprocess, threads" "$PYTHON"' -c "
import ssl, subprocess, threading, socket, hashlib, multiprocessing
print(ssl.create_default_context().verify_mode, subprocess.run([\"echo\", \"hi\"], capture_output=True).stdout)
r = []
t = [threading.Thread(target=lambda i=i: r.append(hashlib.sha256(b\"%d\" % i).hexdigest())) for i in range(20)]
[x.start() for x in t]; [x.join() for x in t]
print(sorted(r)[0])
a, b = socket.socketpair(); a.sendall(b\"x\" * 1000); print(len(b.recv(2000)))
with multiprocessing.get_context(\"fork\").Pool(3) as p: print(p.map(abs, range(-5, 5)))
"'
  alike "python: exit codes and exceptions" "$PYTHON"' -c "import sys; sys.exit(3)"; echo $?; '"$PYTHON"' -c "1/0"; echo $?'
  alike "python: xmlrpc over loopback" "$PYTHON"' -c "
import threading, xmlrpc.server, xmlrpc.client
s = xmlrpc.server.SimpleXMLRPCServer((\"127.0.0.1\", 0), logRequests=False)
s.register_function(lambda d: d[::-1], \"rev\")
threading.Thread(target=s.serve_forever, daemon=True).start()
p = xmlrpc.client.ServerProxy(\"http://127.0.0.1:%d\" % s.server_address[1])
print(all(p.rev(str(i) * 9000) == (str(i) * 9000)[::-1] for i in range(50)))
s.shutdown()
"'
  alike "git: init, commit, clone, log" 'git init -q -b main a && cd a && for i in 1 2 3; do seq $i 20000 > f$i; git add .; git commit -q -m "c $i"; done; cd .. && git clone -q a b && git -C b log --format=%H && git -C b fsck --no-progress && git clone -q --no-local a c && cmp a/f3 c/f3'
  # The server of this one hands its connection on by exec: not where policy excludes TCP.
  [ "$MODE" = shm ] || alike "git: clone over git://" 'git init -q -b main a && cd a && seq 200000 > f && git add . && git commit -q -m x && cd .. && touch a/.git/git-daemon-export-ok
    '"$PYTHON"' - <<"PY"
import os, signal, socket, subprocess, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); port = s.getsockname()[1]; s.close()
d = subprocess.Popen(["git", "daemon", "--reuseaddr", "--listen=127.0.0.1", "--port=%d" % port, "--base-path=" + os.getcwd()],
                     stderr=subprocess.DEVNULL, start_new_session=True)
for _ in range(100):
    if subprocess.run(["git", "ls-remote", "git://127.0.0.1:%d/a" % port], capture_output=True).returncode == 0: break
    time.sleep(0.05)
print(subprocess.run(["git", "clone", "-q", "git://127.0.0.1:%d/a" % port, "d"]).returncode)
os.killpg(d.pid, signal.SIGTERM); d.wait()
PY
    cmp a/f d/f && git -C d log --format=%H'
  alike "gcc: compile and run" 'printf "#include <stdio.h>\nint main(void){puts(\"compiled\");return 5;}\n" > x.c && gcc -O2 -pipe -o x x.c && ./x; echo $?'
  if [ "$(id -u)" = 0 ] || [ "$(cat /proc/sys/kernel/unprivileged_userns_clone 2>/dev/null || echo 1)" = 1 ]; then
    alike "unshare -U" 'unshare -U true; echo $?; unshare -U -r id -u'
  fi
  alike "closed standard descriptors" 'f() { "$@" 0<&- 1>&- 2>&-; echo $?; }; f /bin/true; f cat; f '"$PYTHON"' -c "import os; os.write(5, b\"x\")"; f bash -c "exec 9>file; echo kept >&9"; cat file; (ls /proc/self/fd 0<&- 2>&-) | sort -n | head -3'
  alike "what a program sees of its descriptors" 'ls /proc/self/fd; ulimit -n 64; ls /proc/self/fd; '"$PYTHON"' -c "
import os, resource, socket
l = []
try:
    while True: l.append(os.dup(0))
except OSError as e: print(e.errno, l[0])
os.closerange(3, 64); print(os.dup(0))
s = socket.socket(); print(s.fileno())"'
  alike "openssl: server and client" 'openssl req -x509 -newkey rsa:2048 -nodes -keyout k -out c -days 2 -subj /CN=localhost 2>/dev/null
    '"$PYTHON"' - <<"PY"
import socket, ssl, threading
sc = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER); sc.load_cert_chain("c", "k")
cc = ssl.create_default_context(cafile="c")
l = socket.create_server(("127.0.0.1", 0))
def serve():
    s, _ = l.accept()
    with sc.wrap_socket(s, server_side=True) as t:
        while d := t.recv(30000): t.sendall(d)
threading.Thread(target=serve, daemon=True).start()
with cc.wrap_socket(socket.create_connection(l.getsockname()), server_hostname="localhost") as c:
    print(c.version()); good = 0
    for i in range(300):
        d = bytes([i % 256]) * (1 + i * 30); c.sendall(d); got = b""
        while len(got) < len(d): got += c.recv(40000)
        good += got == d
    print(good)
PY'
  if [ "$(id -u)" = 0 ]; then
    alike "setpriv: another user" 'setpriv --reuid=65534 --regid=65534 --clear-groups id -u'
    free_port port
    limit 20 "${P[@]}" ./daemon "$port" "$dir/ids"
    check "daemon forks away" "exit $?" test $? = 0
    for _ in $(seq 100); do [ -s ids ] && break; nap 0.05; done
    check "daemon that calls setuid" "$(cat ids)" same "$(cat ids 2>/dev/null)" "uid 1 euid 1 gid 1 groups 0 root again -1"
    head -c 3000000 /dev/zero | tr '\0' 'z' >zs
    limit 30 "${P[@]}" "$PYTHON" "$HERE/closing_pipe.py" 127.0.0.1 "$port" <zs >zs.back 2>zs.err
    check "daemon serves" "$(cmp zs zs.back 2>&1) $(tail -1 zs.err)" cmp -s zs zs.back
    printf q | limit 10 "${P[@]}" "$PYTHON" "$HERE/closing_pipe.py" 127.0.0.1 "$port" >/dev/null 2>&1
    rm -f ids
  fi
  for warm in 0 3000000; do
    # Sandboxed before it could attach, a connection stays on TCP: not where policy excludes TCP.
    [ "$MODE" = shm ] && [ $warm = 0 ] && continue
    only_one=()
    [ "$MODE" != shm ] || only_one=(once)
    for how in prctl prctl-number seccomp tsync libseccomp landlock; do
      echo_server
      # Nor can a second one be made inside.
      limit 30 "${P[@]}" ./sandbox "$port" $warm $how "${only_one[@]}"
      rc=$?
      if [ $rc = 77 ]; then say "SKIP $NAME $MODE sandbox by $how: none here"
      else check "sandbox by $how after $warm bytes, both ends preloaded" "exit $rc (159 is SIGSYS)" test $rc = 0; fi
      stop "$server" INT
    done
  done
  if [ "$MODE" != shm ]; then
    # Started in a sandbox by another program, a connection stays on TCP.
    ./sandbox within true
    if [ $? = 77 ]; then say "SKIP $NAME $MODE a program that is started in a Landlock domain: none here"
    else
      echo_server
      limit 30 ./sandbox within "${P[@]}" ./sandbox "$port" 3000000 stay
      rc=$?
      check "a client in a Landlock domain, its server outside" "exit $rc" test $rc = 0
      stop "$server" INT
      echo_server ./sandbox within
      limit 30 "${P[@]}" ./sandbox "$port" 3000000 stay
      rc=$?
      check "a server in a Landlock domain, its client outside" "exit $rc" test $rc = 0
      stop "$server" INT
    fi
  fi
  alike "words to a peer that has closed" "$PYTHON $HERE/late_words.py"
  if [ "$MODE" = shm ]; then
    # TCP takes them, to say that no process reads them; it has not carried them.
    tmpdir late
    "${P[@]}" "RSOCKET_STATS=$late/%p" "$PYTHON" "$HERE/late_words.py" >late.out
    check "words to a peer that has closed went nowhere" \
      "$(stat_sum bytes.sent.shm "$late") by shm, $(stat_sum bytes.sent.tcp "$late") by tcp, $(stat_sum bytes.sent.unread "$late") unread" \
      test "$(stat_sum bytes.sent.shm "$late") $(stat_sum bytes.sent.tcp "$late") $(stat_sum bytes.sent.unread "$late")" = "600000 0 1000"
  fi
  # Nothing that our library links against may be missing where there is no RDMA.
  [ "$MODE" = tcp ] || check "needs no RDMA library" "$(readelf -d "$LIB" | grep NEEDED)" \
    test -z "$(readelf -d "$LIB" | grep NEEDED | grep -E 'verbs|rdma|mlx|nl-')"
done
exit $BAD
