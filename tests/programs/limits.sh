#!/usr/bin/env bash
# What a host limits: descriptors, address space, the length of files, the memory of a cgroup; from
# the start, or taken away while programs run. The programs see what they would see with TCP, and
# every byte arrives. By the default policy: what there is no room for is TCP's.
. "$(dirname "$0")/common.sh"
need_cc
need prlimit=util-linux socat /usr/bin/python3=python3
size=3000000 many=6
[ "$QUICK" = 1 ] && size=800000 many=3
tmpdir work
# In C, since Python ignores the signal for a file that is too long.
cc -O2 -Wall -Wextra -Werror -o "$work/inherit" "$HERE/inherit.c" || die "inherit.c does not compile"
head -c $size /dev/urandom >"$work/file"

# server COMMAND... : begins with $LIMITS.
server() {
  free_port port
  start SERVER prlimit "${LIMITS[@]}" -- "${P[@]}" "${@//PORT/$port}" >"$dir/server.log" 2>&1
  wait_port "$port" "$SERVER" || { fail "$name" "it does not listen: $(tail -n 3 "$dir/server.log")"; return 1; }
}
served() { stop "$SERVER" "${1:-TERM}" || fail "$name" "the server did not end"; }
# echoes WORDS... : the clients', of echo_client.py, which must be able to say how it went.
echoes() {
  local rc
  limit 120 prlimit "${LIMITS[@]}" -- "${P[@]}" "$PYTHON" "$HERE/echo_client.py" "$port" $many $size "$@" 2>&1 | cat >"$dir/out"
  rc=${PIPESTATUS[0]}
  check "$name" "exit $rc: $(tail -n 2 "$dir/out") $(tail -n 2 "$dir/server.log")" same $rc 0
}

# From the start, at both ends.
files() {
  local most=$1 got
  LIMITS=("--fsize=$most")
  name="files of $most bytes: a process for each connection"
  server "$work/inherit" PORT echo && { echoes; served; }
  name="files of $most bytes: exec in the midst of a transfer"
  server "$work/inherit" PORT exec cat && { echoes 20 across; served; }
  name="files of $most bytes: a client in C, with a capture"
  server "$work/inherit" PORT echo || return
  got=$(RSOCKET_PCAP=$dir/pcap limit 60 prlimit "${LIMITS[@]}" -- "${P[@]}" socat -t 20 - "TCP:127.0.0.1:$port" <"$work/file" 2>"$dir/err" | sha256sum)
  check "$name" "$(tail -n 2 "$dir/err")" same "$got" "$(sha256sum <"$work/file")"
  served
}
space() {
  LIMITS=("--as=$1")
  name="address space of $1 bytes"
  server "$PYTHON" "$HERE/asyncio_echo.py" server 127.0.0.1 PORT || return
  asyncio
  served INT
}
descriptors() {
  LIMITS=("--nofile=$1")
  name="$1 descriptors"
  server "$PYTHON" "$HERE/asyncio_echo.py" server 127.0.0.1 PORT || return
  asyncio
  served INT
}
asyncio() {
  CLIENTS=$((many * 2)) MESSAGES=20 limit 120 prlimit "${LIMITS[@]}" -- "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" client 127.0.0.1 "$port" >"$dir/out" 2>&1
  check "$name" "exit $?: $(tail -n 2 "$dir/out") $(tail -n 3 "$dir/server.log")" \
    same "$(tail -n 1 "$dir/out")" "$((many * 2)) clients, all bytes as sent"
}

# While it runs: the server has served, and then has hardly more than it uses.
taken_away() {
  local what open space
  LIMITS=(--nofile=4000)
  for what in nofile as fsize; do
    name="$what is lowered between clients"
    server "$PYTHON" "$HERE/asyncio_echo.py" server 127.0.0.1 PORT || continue
    asyncio
    open=$(find "/proc/$SERVER/fd" -lname '*' -printf '%f\n' | sort -n | awk '$1 < 1000 { n = $1 } END { print n }')
    space=$(awk '$1 == "VmSize:" { print $2 * 1024 }' "/proc/$SERVER/status")
    case $what in
      nofile) prlimit --pid "$SERVER" --nofile=$((open + 6)) ;;
      as) prlimit --pid "$SERVER" --as=$((space + (20 << 20))) ;;
      fsize) prlimit --pid "$SERVER" --fsize=0 ;;
    esac
    asyncio
    served INT
  done
}

# A memory cgroup of our own: $CAGE, with files $LIMIT and $USAGE. False where there can be none.
cage() {
  local base
  for base in /sys/fs/cgroup/memory /sys/fs/cgroup; do
    [ -w "$base/cgroup.procs" ] || continue
    [ -e "$base/memory.limit_in_bytes" ] || echo +memory >"$base/cgroup.subtree_control" 2>/dev/null
    CAGE=$base/rsocket-test.$$
    mkdir "$CAGE" 2>/dev/null || continue
    if [ -e "$CAGE/memory.limit_in_bytes" ]; then LIMIT=$CAGE/memory.limit_in_bytes USAGE=$CAGE/memory.usage_in_bytes
    else LIMIT=$CAGE/memory.max USAGE=$CAGE/memory.current; fi
    [ -w "$LIMIT" ] && return 0
    rmdir "$CAGE"
  done
  CAGE=
  return 1
}
uncage() { [ -z "${CAGE:-}" ] || rmdir "$CAGE" 2>/dev/null; }
on_exit() { cleanup; uncage; }

# Short messages, and when a line comes long ones: every byte comes back.
talker() {
  cat <<'PY'
import os, socket, sys
s = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=60)
def ask(n):
    out, got = os.urandom(n), b""
    for at in range(0, n, 100000):
        s.sendall(out[at:at + 100000])
        while len(got) < min(at + 100000, n):
            part = s.recv(1 << 20)
            if not part: sys.exit(f"end after {len(got)} of {n}")
            got += part
    if got != out: sys.exit(f"{n} bytes are not as sent")
for i in range(300): ask(1000)
print("warm", flush=True)
sys.stdin.readline()
for i in range(6): ask(1000000)
print("all as sent")
PY
}
# The server's memory is all but used up: from the first connection on, or when one has attached.
memory() {
  local when line talk
  cage || { say "SKIP $NAME $MODE memory: no cgroup of one's own here"; return; }
  LIMITS=(--nofile=4000)
  talker >"$work/talker.py"
  for when in before after; do
    name="memory is used up $when the connection attaches"
    rm -f "$STATS"/*
    server "$PYTHON" "$HERE/asyncio_echo.py" server 127.0.0.1 PORT || continue
    echo 200000000 >"$LIMIT"
    echo "$SERVER" >"$CAGE/cgroup.procs"
    # What it had before is charged elsewhere: memory of its own, for a limit that can be neared.
    [ $when = after ] || echo $(($(cat "$USAGE") + (3 << 20))) >"$LIMIT"
    rm -f "$dir/go"
    mkfifo "$dir/go"
    "${P[@]}" "$PYTHON" "$work/talker.py" "$port" <"$dir/go" >"$dir/out" 2>&1 &
    talk=$!
    watch $talk
    exec 8>"$dir/go"
    for ((line = 0; line < 1000; line++)); do grep -q warm "$dir/out" && break; nap 0.02; done
    echo $(($(cat "$USAGE") + (3 << 20))) >"$LIMIT"
    # The library believes what it saw for a second.
    sleep 1.1
    echo go >&8
    exec 8>&-
    wait $talk
    check "$name: every byte" "exit $?: $(tail -n 2 "$dir/out")" same "$(tail -n 1 "$dir/out")" "all as sent"
    check "$name: the server lives" "it has ended" alive "$SERVER"
    served INT
    [ "$MODE" = tcp ] && continue
    check "$name: it said why" "$(stat_reasons "$STATS")" [ "$(stat_sum on_tcp.memory_limit "$STATS")" -ge 1 ]
    if [ $when = after ]; then
      check "$name: it was attached" "$(stat_reasons "$STATS")" [ "$(stat_sum bytes.received.shm "$STATS")" -ge 100000 ]
    fi
  done
  uncage
}

for m in "${@:-tcp default}"; do
  # shellcheck disable=SC2086
  for m in $m; do
    mode "$m"
    tmpdir dir
    files 0
    files 1000000
    files 100000000
    space 250000000
    descriptors 60
    taken_away
    memory
  done
done
exit $BAD
