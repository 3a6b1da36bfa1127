#!/usr/bin/env bash
# redis-server and redis-benchmark, with one client and with fifty.
. "$(dirname "$0")/common.sh"
need redis-server redis-benchmark=redis-tools /usr/bin/python3=python3
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  free_port port
  start server "${P[@]}" redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$dir" \
    --daemonize no >"$dir/server.log" 2>&1
  if ! wait_port "$port" "$server"; then fail start "$(tail -3 "$dir/server.log")"; continue; fi
  n=20000
  for c in 1 50; do
    if limit 90 "${P[@]}" redis-benchmark -h 127.0.0.1 -p "$port" -c $c -n $n -t get,set --csv >"$dir/out" 2>&1 &&
      [ "$(grep -c '^"[GS]ET"' "$dir/out")" = 2 ] && ! grep -qi error "$dir/out"; then
      ok "benchmark -c $c ($(awk -F'"' '/^"[GS]ET"/ { printf "%s%s %.0f/s", s, $2, $4; s = ", " }' "$dir/out"))"
    else
      fail "benchmark -c $c" "$(tail -5 "$dir/out")"
    fi
  done
  # Values of many sizes, pipelined, come back as they went in.
  "$PYTHON" - "$dir" <<'PY'
import random, sys
rnd = random.Random(4)
def cmd(*a):
    out = b"*%d\r\n" % len(a)
    for x in a:
        out += b"$%d\r\n" % len(x) + x + b"\r\n"
    return out
ask = want = b""
for i in range(300):
    v = rnd.randbytes(rnd.choice([0, 1, 50, 1000, 20000, 300000 if i % 50 == 0 else 7]))
    ask += cmd(b"set", b"k%d" % i, v) + cmd(b"get", b"k%d" % i)
    want += b"+OK\r\n$%d\r\n" % len(v) + v + b"\r\n"
open(sys.argv[1] + "/ask", "wb").write(ask + cmd(b"quit"))
open(sys.argv[1] + "/want", "wb").write(want + b"+OK\r\n")
PY
  limit 30 "${P[@]}" "$PYTHON" "$HERE/pipe.py" 127.0.0.1 "$port" <"$dir/ask" >"$dir/got" 2>"$dir/err"
  check "pipelined values" "$(cmp "$dir/want" "$dir/got" 2>&1) $(tail -1 "$dir/err")" cmp -s "$dir/want" "$dir/got"
  [ "$QUICK" = 1 ] || idle "$server"
  stop "$server" TERM || fail stop "the server did not end"
  carried
done
exit $BAD
