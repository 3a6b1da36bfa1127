#!/usr/bin/env bash
# Servers that give each connection to a process of its own. They do so by fork alone, and by fork
# and exec, the new program with the library and without it. One client talks to all of them and
# compares every byte.
. "$(dirname "$0")/common.sh"
need_cc
need socat busybox=busybox-static /usr/bin/python3=python3
size=8000000 many=8
[ "$QUICK" = 1 ] && size=2000000 many=4
tmpdir work
cc -O2 -Wall -Wextra -Werror -o "$work/inherit" "$HERE/inherit.c" || die "inherit.c does not compile"
printf '#!/bin/sh\nexec cat\n' >"$work/script" && chmod 755 "$work/script"
file -L "$(command -v busybox)" 2>/dev/null | grep -q dynamically && die "busybox is not static"

# serve NAME BLOCKS|'' COMMAND... : starts the server, asks it, ends it.
serve() {
  local name=$1 blocks=$2 server rc
  shift 2
  start server "${P[@]}" "$@" >"$dir/server.log" 2>&1
  wait_port "$port" "$server" || { fail "$name" "it does not listen: $(tail -3 "$dir/server.log")"; return; }
  # shellcheck disable=SC2086
  limit 120 "${P[@]}" "$PYTHON" "$HERE/echo_client.py" "$port" $many $size $blocks >"$dir/out" 2>&1
  rc=$?
  check "$name" "exit $rc: $(tail -2 "$dir/out") $(tail -2 "$dir/server.log")" same $rc 0
  stop "$server" TERM || fail "$name" "the server did not end"
}
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  free_port port
  serve "a child for each connection, in C" '' "$work/inherit" "$port" echo
  free_port port
  before=$(stat_sum bytes.received.shm "$STATS")
  serve "socketserver.ForkingTCPServer" '' "$PYTHON" "$HERE/forking_server.py" "$port"
  # Its children end by _exit. The client alone received half of what this is.
  here=$(($(stat_sum bytes.received.shm "$STATS") - before))
  [ "$MODE" = tcp ] || check "who ends by _exit reports" "$here bytes reported" test $here -gt $((many * size * 3 / 2))
  free_port port
  serve "socat EXEC: through a socket pair" '' socat "TCP-LISTEN:$port,bind=127.0.0.1,fork,backlog=64" EXEC:cat
  free_port port
  serve "socat EXEC: on the connection itself" '' socat "TCP-LISTEN:$port,bind=127.0.0.1,fork,backlog=64" EXEC:cat,nofork
  # As inetd: right after accept, and in the midst of a connection.
  for blocks in 0 40; do
    free_port port
    serve "exec after $blocks blocks: a program with the library" $blocks "$work/inherit" "$port" exec cat
    free_port port
    serve "exec after $blocks blocks: a script" $blocks "$work/inherit" "$port" exec "$work/script"
    [ "$m" = shm ] && continue  # without the library there is only TCP
    free_port port
    serve "exec after $blocks blocks: a static program" $blocks "$work/inherit" "$port" exec busybox cat
    free_port port
    serve "exec after $blocks blocks: a cleared environment" $blocks "$work/inherit" "$port" exec env -i cat
  done
  carried
  # Where TCP is excluded all of it, whatever became of the process, went by shared memory.
  if [ "$m" = shm ]; then
    tcp=$(($(stat_sum bytes.sent.tcp "$STATS") + $(stat_sum bytes.received.tcp "$STATS")))
    check "no byte over TCP" "$tcp bytes; $(stat_reasons "$STATS")" same "$tcp" 0
  fi
done
exit $BAD
