#!/usr/bin/env bash
# Servers whose listening socket came from another program. It came by vfork and exec, by
# multiprocessing's spawn and forkserver, in a message, from a launcher without the library. Also
# uvicorn with two workers. What they accept attaches as any server's. A connection that comes so
# stays on TCP, and says so.
. "$(dirname "$0")/common.sh"
need uvicorn /usr/bin/python3=python3
size=24000000 many=4 rounds=60
[ "$QUICK" = 1 ] && size=16000000 many=2 rounds=40

# mostly_shm NAME : since the counters were last read at least 95 % of all bytes went by shared
# memory. (Workers of uvicorn end by a signal, and write no counters: the client's say it.)
mostly_shm() {
  [ "$MODE" = tcp ] && return
  local shm tcp
  shm=$(($(stat_sum bytes.sent.shm "$STATS") + $(stat_sum bytes.received.shm "$STATS")))
  tcp=$(($(stat_sum bytes.sent.tcp "$STATS") + $(stat_sum bytes.received.tcp "$STATS")))
  check "$1: $shm bytes by shm, $tcp by tcp" "$(stat_reasons "$STATS")" test "$shm" -gt $((19 * tcp))
  rm -f "${STATS:?}"/*
}
uvicorn_test() {
  local server complaints
  free_port port
  (cd "$HERE" && exec env PYTHONDONTWRITEBYTECODE=1 "${P[@]}" "$(command -v uvicorn)" --workers 2 \
    --port "$port" --no-access-log app:asgi) </dev/null >"$dir/log" 2>&1 &
  server=$!
  watch "$server"
  wait_port "$port" "$server" 30 || { fail uvicorn "it is silent: $(tail -3 "$dir/log")"; return; }
  limit 120 "${P[@]}" "$PYTHON" "$HERE/http_client.py" "$port" 4 $rounds 700 60000 4000000 \
    >"$dir/out" 2>&1
  check "uvicorn: every byte" "$(tail -2 "$dir/out") $(tail -3 "$dir/log")" same $? 0
  stop "$server" TERM 30 || fail uvicorn "it did not end"
  complaints=$(grep -iE 'error|traceback' "$dir/log")
  check "uvicorn: no complaint" "$complaints" test -z "$complaints"
  mostly_shm uvicorn
}
# serves KIND CONNECTIONS : every byte comes back.
serves() {
  local kind=$1 many=$2
  free_port port
  start server "${P[@]}" "$PYTHON" "$HERE/inherited_server.py" "$kind" "$port" "$many" \
    >"$dir/log" 2>&1
  wait_port "$port" "$server" || { fail "$kind" "it is silent: $(tail -3 "$dir/log")"; return 1; }
  limit 120 "${P[@]}" "$PYTHON" "$HERE/echo_client.py" "$port" "$many" $size >"$dir/out" 2>&1
  check "$kind: every byte" "$(tail -2 "$dir/out") $(tail -2 "$dir/log")" same $? 0
  gone_child "$server" 20 || fail "$kind" "the server does not end: $(tail -2 "$dir/log")"
  stop "$server" TERM
}
# stays KIND REASON : one that is TCP's by right, and says why.
stays() {
  serves "$1" 1 || return
  [ "$MODE" = tcp ] && return
  check "$1: says why" "$(stat_reasons "$STATS")" test "$(stat_sum "on_tcp.$2" "$STATS")" -ge 1
  check "$1: nothing by shm" "" test "$(stat_sum bytes.sent.shm "$STATS")" = 0
  rm -f "${STATS:?}"/*
}
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  for kind in vfork fork spawn forkserver message activation; do
    serves $kind $many && mostly_shm $kind
  done
  uvicorn_test
  # Where TCP is excluded these could not speak at all.
  [ "$MODE" = shm ] && continue
  stays odd odd_option
  stays given not_handed_over
  stays sent not_handed_over
  stays inetd not_handed_over
done
exit $BAD
