#!/usr/bin/env bash
# Unmodified programs with RSOCKET_TRANSPORT=rdma at both ends, over both devices. Each must have
# had all its bytes carried by RDMA, and none by TCP, and leave nothing behind.
. "$(dirname "$0")/guest.sh"
helper ECHO echo
tmpdir tmp
port=7700
P=(env "LD_PRELOAD=$LIB" RSOCKET_TRANSPORT=rdma "RSOCKET_STATS=$tmp/stats/%p")

# begin DEVICE NAME : from here on the next `verdict` counts.
begin() {
  dev=$1 name="$2 over $1" addr=$(address "$1")
  port=$((port + 1))
  rm -rf "$tmp/stats" && mkdir "$tmp/stats"
  before=$(packets "$dev")
}
# verdict STATUS WHY BYTES : of what began, when all of its programs have ended. At least so many
# bytes must have been carried.
verdict() {
  local rdma tcp after
  after=$(packets "$dev")
  rdma=$(stat_sum bytes.sent.rdma "$tmp/stats")
  tcp=$(($(stat_sum bytes.sent.tcp "$tmp/stats") + $(stat_sum bytes.received.tcp "$tmp/stats")))
  if [ "$1" != 0 ]; then fail "$name" "exit $1: $2"
  elif [ "$after" -le "$before" ]; then fail "$name" "no packet went through the device"
  elif [ "$rdma" -lt "$3" ] || [ "$tcp" != 0 ]; then fail "$name" "$rdma bytes over RDMA (of $3), $tcp over TCP; $(stat_reasons "$tmp/stats")"
  elif ! none_left 10 >"$tmp/left"; then fail "$name" "left behind: $(head -n 5 "$tmp/left")"
  else ok "$name ($rdma bytes, $((after - before)) packets${4:+; $4})"; fi
}
# up PID LOG : the server listens.
up() {
  wait_listen "$port" "$1" 40 && return
  fail "$name" "no server: $(tail -n 3 "$2")"
  stop "$1"
  return 1
}

# Rows of the table of programs (tests/programs/rows.sh): bytes compared, and by each row's counters
# all over RDMA.
rows() {
  local rows='^(http-big|redis-cli|redis-c1|redis-P16|redis-c50|iperf3|iperf3-R|iperf3-P4)$' big=$((64 << 20)) seconds=2 before after
  [ "$1" = rxe0 ] || rows='^(http-big|redis-c1|iperf3)$' big=$((32 << 20))
  [ "$QUICK" = 1 ] && rows='^(http-big|redis-P16|iperf3-R)$' big=$((8 << 20)) seconds=1
  before=$(packets "$1")
  BIG=$big LONG=1048576 MIDDLE=1048576 SECS=$seconds REQUESTS=500 CROWD=10 limit 700 "$ROOT/tests/programs/table" -m rdma -a "$(address "$1")" "$rows" 2>&1 |
    tee "$tmp/table" | sed -un "s/^\(ok\|FAIL\) table rdma /\1 $SUITE $1: /p"
  ! grep -q '^FAIL ' "$tmp/table" || BAD=1
  grep -q '^ok ' "$tmp/table" || fail "$1" "no row passed: $(tail -n 3 "$tmp/table")"
  after=$(packets "$1")
  check "$1: the table's rows went over the device ($((after - before)) packets)" "they did not" [ "$after" -gt "$before" ]
  if none_left 20 >"$tmp/left"; then ok "$1: the table's rows left nothing"; else fail "$1: the table's rows left something" "$(head -n 5 "$tmp/left")"; fi
}

asyncio() {
  local server rc=0
  begin "$1" "asyncio"
  start server "${P[@]}" "$PYTHON" "$ROOT/tests/programs/asyncio_echo.py" server "$addr" "$port" >"$tmp/server" 2>&1
  up "$server" "$tmp/server" || return
  CLIENTS=20 MESSAGES=5 limit 90 "${P[@]}" "$PYTHON" "$ROOT/tests/programs/asyncio_echo.py" client "$addr" "$port" >"$tmp/client" 2>&1
  rc=$?
  grep -q '^20 clients, all bytes as sent' "$tmp/client" || rc=97
  stop "$server" INT || rc=99
  verdict $rc "$(tail -q -n 3 "$tmp/client" "$tmp/server")" 10000
}

# Each connection is accepted by one process and served by another.
forking() {
  local server rc=0 i clients=()
  begin "$1" "a forking server"
  start server "${P[@]}" "$PYTHON" "$ROOT/tests/vm/forking.py" "$addr" "$port" 6 >"$tmp/server" 2>&1
  up "$server" "$tmp/server" || return
  for i in 1 2 3; do limit 60 "${P[@]}" "$ECHO" client "$addr" "$port" 300000 >"$tmp/client" 2>&1 || rc=$?; done
  for i in 1 2 3; do
    limit 60 "${P[@]}" "$ECHO" client "$addr" "$port" 300000 >"$tmp/client.$i" 2>&1 &
    clients+=($!)
  done
  for i in "${clients[@]}"; do wait "$i" || rc=$?; done
  gone_child "$server" 20
  stop "$server" || rc=99
  verdict $rc "$(tail -q -n 3 "$tmp"/client* "$tmp/server")" 1800000
}

for device in "${DEVICES[@]}"; do
  for what in rows asyncio forking; do $what "$device"; done
done
finish
