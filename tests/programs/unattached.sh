#!/usr/bin/env bash
# Where TCP is excluded no call waits for ever for a peer that never attaches: both directions fail when the patience of
# five seconds is over, blocking or by poll and epoll, and nothing of it looks like the end of the stream.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
mode shm
free_port port
start server "$PYTHON" -c 'import socket, sys, time
l = socket.create_server(("127.0.0.1", int(sys.argv[1])))
kept = []
while True: kept.append(l.accept())' "$port"
for ((i = 0; i < 250; i++)); do port_busy "$port" && break; sleep 0.02; done
tmpdir out
pids=()
for how in send recv poll epoll; do
  limit 40 "${P[@]}" "$PYTHON" "$HERE/unattached.py" "$port" $how >"$out/$how" 2>&1 &
  pids+=($!)
done
wait "${pids[@]}"
for how in send recv poll epoll; do
  said=$(cat "$out/$how")
  read -r _ ready told seconds <<<"${said//without asking/ready}"
  check "$how fails after five seconds" "$said" test "$ready/$told" = ready/ETIMEDOUT -a "${seconds:-0}" -ge 4 -a "${seconds:-99}" -le 15
done
stop "$server"
exit $BAD
