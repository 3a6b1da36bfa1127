#!/usr/bin/env bash
# Programs whose waits go past every hook: they never hang, and are told of no event but their own.
# Such a connection stays on TCP, and says why; one that is waited for by libc's calls in the same
# manner leaves it.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
if [ "$(uname -m)" != x86_64 ]; then
  say "SKIP unseen: its system calls have other numbers here"
  exit 0
fi
CLIENT='import socket, sys, time
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
for i in range(600):
    if i == 100: time.sleep(0.6)
    c.sendall(bytes([i % 251]) * 1000)
    got = b""
    while len(got) < 1000:
        part = c.recv(1000 - len(got))
        if not part: sys.exit("the end")
        got += part
    if got != bytes([i % 251]) * 1000: sys.exit("other bytes")
print("all as sent")'
# shellcheck disable=SC2046
for m in $(if [ $# -gt 0 ]; then echo "$@"; else echo tcp default eager; fi); do
  for how in wait all dry tick look; do
    mode "$m"
    tmpdir dir
    start server "${P[@]}" "$PYTHON" "$HERE/unseen.py" $how "$dir/port"
    for ((i = 0; i < 500; i++)); do [ -s "$dir/port" ] && break; nap 0.02; done
    said=$(limit 30 "${P[@]}" "$PYTHON" -c "$CLIENT" "$(cat "$dir/port")" 2>&1)
    check "$how by number: every byte" "$said" same "$said" "all as sent"
    check "$how by number: the server ends as it should" "it does not" gone "$server" 10
    stop "$server"
    [ "$m" = tcp ] && continue
    if [ $how = look ]; then
      check "$how by number: leaves TCP" "$(stat_reasons "$STATS")" [ "$(stat_sum bytes.sent.shm "$STATS")" -gt 0 ]
      continue
    fi
    check "$how by number: stays on TCP" "$(stat_reasons "$STATS")" [ "$(stat_sum bytes.sent.shm "$STATS")" = 0 ]
    check "$how by number: says why" "$(stat_reasons "$STATS")" [ "$(stat_sum on_tcp.unseen_wait "$STATS")" -ge 1 ]
  done
done
exit $BAD
