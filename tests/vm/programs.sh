#!/usr/bin/env bash
# Unmodified programs with RSOCKET_TRANSPORT=rdma at both ends, over both devices. Each must have had all its bytes
# carried by RDMA, and none by TCP, and leave nothing behind.
. "$(dirname "$0")/guest.sh"
helper ECHO echo
tmpdir tmp
mkdir "$tmp/www"
port=7700
P=(env "LD_PRELOAD=$LIB" RSOCKET_TRANSPORT=rdma "RSOCKET_STATS=$tmp/stats/%p")

# begin DEVICE NAME : from here on the next `verdict` counts.
begin() {
  dev=$1 name="$2 over $1" addr=$(address "$1")
  port=$((port + 1))
  rm -rf "$tmp/stats" && mkdir "$tmp/stats"
  before=$(packets "$dev")
}
# verdict STATUS WHY BYTES : of what began, when all of its programs have ended. At least so many bytes must have been carried.
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

http() {
  local size=$((64 << 20)) server rc
  [ "$QUICK" = 1 ] && size=$((8 << 20))
  [ -s "$tmp/www/file" ] || head -c $size /dev/urandom >"$tmp/www/file"
  begin "$1" "http.server and curl"
  start server "${P[@]}" "$PYTHON" -m http.server "$port" --bind "$addr" --directory "$tmp/www" >"$tmp/server" 2>&1
  up "$server" "$tmp/server" || return
  limit 120 "${P[@]}" curl -sS -o "$tmp/got" "http://$addr:$port/file" >"$tmp/client" 2>&1 && cmp "$tmp/www/file" "$tmp/got" >>"$tmp/client" 2>&1
  rc=$?
  stop "$server" INT || rc=99
  verdict $rc "$(tail -n 3 "$tmp/client")" $size
  rm -f "$tmp/got"
}

redis() {
  local server n=1000 rc=0 rates
  [ "$QUICK" = 1 ] && n=300
  begin "$1" "redis"
  start server "${P[@]}" redis-server --port "$port" --bind "$addr" --save '' --appendonly no --dir "$tmp" \
    --daemonize no --protected-mode no >"$tmp/server" 2>&1
  up "$server" "$tmp/server" || return
  local ways=("-c 1" "-c 10" "-c 10 -P 16" "-c 50")
  [ "$QUICK" = 1 ] && ways=("-c 10" "-c 10 -P 16")
  for how in "${ways[@]}"; do
    # shellcheck disable=SC2086
    limit 60 "${P[@]}" redis-benchmark -h "$addr" -p "$port" $how -n $n -t set,get --csv >"$tmp/client" 2>&1
    rc=$?
    [ "$(grep -c '^"[GS]ET"' "$tmp/client")" = 2 ] || [ $rc != 0 ] || rc=98
    rates+=" $how: $(awk -F'"' '/^"[GS]ET"/ { printf "%s %.0f/s ", $2, $4 }' "$tmp/client")"
    [ $rc = 0 ] || { fail "$name $how" "exit $rc: $(tail -n 5 "$tmp/client")"; break; }
  done
  stop "$server" TERM || rc=99
  verdict $rc "$(tail -n 3 "$tmp/server")" 10000 "$rates"
}

iperf() {
  local server rc how ways=('' -R '-P 2') seconds=2
  [ "$QUICK" = 1 ] && ways=(-R) seconds=1
  for how in "${ways[@]}"; do
    begin "$1" "iperf3 $how"
    start server "${P[@]}" iperf3 -s -1 -B "$addr" -p "$port" >"$tmp/server" 2>&1
    up "$server" "$tmp/server" || continue
    # shellcheck disable=SC2086
    limit 60 "${P[@]}" iperf3 -c "$addr" -p "$port" -t $seconds $how >"$tmp/client" 2>&1
    rc=$?
    gone_child "$server" 20
    stop "$server" || rc=99
    verdict $rc "$(tail -q -n 3 "$tmp/client" "$tmp/server")" 100000 "$(sed -n 's/.* \([0-9.]* [MGK]bits\/sec\).*receiver/\1/p' "$tmp/client" | tail -n 1)"
  done
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
  for what in http redis iperf asyncio forking; do $what "$device"; done
done
finish
