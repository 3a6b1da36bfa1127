#!/usr/bin/env bash
# Two guests, each running this file: upstream's rstream between them, and what a guest that loses
# power looks like to the other. Alone: `tests/vm/run two upstream`.
#
# dies: 2
. "$(dirname "$0")/../guest.sh"
[ -n "${VM_HOST:-}" ] || die "this needs two guests"
tmpdir tmp
here="host $VM_HOST"
peer=$((3 - VM_HOST))

tell "up.$VM_HOST"
hear "up.$peer" >/dev/null || { fail "$here" "no other host"; finish; }
for dev in "${DEVICES[@]}"; do
  busybox ping -c 1 -W 30 "$(address "$dev" $peer)" >"$tmp/ping" 2>&1
  rc=$?
  check "$here ping by $dev's network" "$(tail -n 2 "$tmp/ping")" [ $rc = 0 ]
done

received() { rdma statistic show link rxe0/1 | sed -n 's/.* rcvd_pkts \([0-9]*\).*/\1/p'; }
silent() { ! busybox ping -c 1 -W 2 "$(address rxe0 2)" >/dev/null 2>&1; }

# stream SIZE : host 1 serves. Both halves look at their own counter.
stream() {
  local size=$1 name="$here rstream rxe0 -S $1" before after rc server
  local args=(-p 7471 -S "$size" -C 20 -I 5 -T b)
  before=$(packets rxe0)
  if [ "$VM_HOST" = 1 ]; then
    start server timeout -k 5 60 rstream -b "$(address rxe0)" "${args[@]}" >"$tmp/rstream" 2>&1
    wait_listen 7471 "$server" && tell "ready.$size"
    wait "$server"
  else
    hear "ready.$size" >/dev/null
    limit 60 rstream -s "$(address rxe0 1)" "${args[@]}" >"$tmp/rstream" 2>&1
  fi
  rc=$?
  after=$(packets rxe0)
  if [ $rc != 0 ]; then fail "$name" "exit $rc: $(tail -3 "$tmp/rstream")"
  elif [ "$after" -le "$before" ]; then fail "$name" "no packet went through rxe0"
  else ok "$name ($((after - before)) packets)"; fi
}
stream 64
stream 65536

# Host 2 loses power in the middle of a stream to it. Upstream never finds out over rxe: it asks for
# seven retries, which soft-RoCE takes as "for ever". Here it is seen that the host is gone without
# a word.
args=(-p 7471 -S 4096 -C 1000000 -I 5 -T b)
if [ "$VM_HOST" = 2 ]; then
  start server rstream -b "$(address rxe0)" "${args[@]}" >"$tmp/rstream" 2>&1
  wait_listen 7471 "$server" && tell ready.power
  hear streaming >/dev/null && lose_power
  fail "$here loses power" "$(tail -3 "$tmp/rstream")"
  finish
fi
hear ready.power >/dev/null
before=$(packets rxe0)
start client rstream -s "$(address rxe0 2)" "${args[@]}" >"$tmp/rstream" 2>&1
for ((i = 0; i < 150; i++)); do
  [ "$(packets rxe0)" -gt $((before + 100)) ] && break
  nap 0.2
done
check "$here streams" "$(tail -3 "$tmp/rstream")" [ "$i" -lt 150 ]
tell streaming
# Nothing is acknowledged any more, so the sender soon stands still.
for ((i = 0; i < 30; i++)); do
  before=$(received)
  sleep 1
  [ "$(received)" = "$before" ] && break
done
check "$here hears nothing after the loss of power" "packets still come" [ "$i" -lt 30 ]
check "$here gets no answer" "host 2 answers" silent
check "$here has its connection still" "$(tail -3 "$tmp/rstream")" [ "$(qps rxe0)" = 1 ]
stop "$client" KILL
check "$here nothing left" "see above" none_left 30
finish
