#!/usr/bin/env bash
# Children of a preloaded program that use another C library (musl: all of Alpine): they run,
# without the library. `$LIB` in the path of the library is what keeps it from them, and keeps
# nothing from those that use glibc.
. "$(dirname "$0")/common.sh"
need_cc
need musl-gcc=musl-tools
tmpdir dir
cd "$dir" || exit 1
printf '#include <stdio.h>\nint main(void) { puts("hello"); return 0; }\n' >hello.c
musl-gcc -o hello hello.c || die "hello.c does not compile for musl"
DESTDIR=$dir/stage "$ROOT/scripts/install" --no-build --prefix /opt/rs >said 2>&1 || die "$(cat said)"
run=stage/opt/rs/bin/rsrun
# shellcheck disable=SC2016
preload=$("$run" sh -c 'echo "$LD_PRELOAD"')
# shellcheck disable=SC2016
check "rsrun names the library with \$LIB" "$preload" has "$preload" '/opt/rs/$LIB/rsocket/librspreload.so'
check "and glibc finds it" "$(LD_PRELOAD=$preload cat /proc/self/maps)" has "$(LD_PRELOAD=$preload cat /proc/self/maps)" librspreload.so

# By fork and exec, by vfork (Python's subprocess), by posix_spawn, by system.
spawn='import os, sys; p = os.posix_spawn("./hello", ["hello"], os.environ); sys.exit(os.waitpid(p, 0)[1])'
vfork='import subprocess, sys; sys.exit(subprocess.run(["./hello"]).returncode)'
system='import os, sys; sys.exit(os.system("./hello"))'
exec='import os, socket; s = socket.create_server(("127.0.0.1", 0)); os.execv("./hello", ["hello"])'
said=$("$run" sh -c './hello; exit $?' 2>&1)
check "a shell's child" "exit $?: $said" test "$said" = hello
for how in spawn vfork system exec; do
  said=$("$run" "$PYTHON" -c "${!how}" 2>&1)
  check "by $how" "exit $?: $said" test "$said" = hello
done

# What uses glibc goes on where it was, across exec: both names of the library are known to mean the
# same file.
cat >heir.py <<'PY'
import os, socket, sys
if len(sys.argv) > 1:  # the next program, which has one end as its standard input and output
    while data := os.read(0, 65536): os.write(1, data)
    sys.exit(0)
l = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(l.getsockname()); a, _ = l.accept()
for i in range(100):
    c.sendall(b"x" * 4000); a.recv(4000, socket.MSG_WAITALL)
    a.sendall(b"y" * 4000); c.recv(4000, socket.MSG_WAITALL)
if os.fork() == 0:
    c.close(); os.dup2(a.fileno(), 0); os.dup2(a.fileno(), 1)
    os.execv(sys.executable, [sys.executable, __file__, "next"])
a.close()
for i in range(200):
    c.sendall(b"z" * 4000); assert c.recv(4000, socket.MSG_WAITALL) == b"z" * 4000
c.close(); os.wait(); print("done")
PY
mkdir stats
said=$(limit 60 "$run" -S "$dir/stats/%p" "$PYTHON" heir.py 2>&1)
check "exec with \$LIB: every byte arrives" "$said" test "$said" = done
check "and the connection stays where it was" "$(grep -hv ' 0$' stats/*)" test "$(stat_sum on_tcp.executed stats)" = 0
check "over shared memory" "$(grep -hv ' 0$' stats/*)" test "$(stat_sum bytes.received.shm stats)" -gt 1500000
exit $BAD
