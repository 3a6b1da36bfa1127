#!/usr/bin/env bash
# iperf3: one way, the other way, both ways, four streams.
. "$(dirname "$0")/common.sh"
need iperf3
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  secs=1
  for how in '' -R --bidir '-P 4'; do
    free_port port
    start server "${P[@]}" iperf3 -s -1 -B 127.0.0.1 -p "$port" >"$dir/server" 2>&1
    if ! wait_port "$port" "$server"; then fail "start ${how:-forward}" "$(tail -3 "$dir/server")"; continue; fi
    # shellcheck disable=SC2086
    limit 40 "${P[@]}" iperf3 -c 127.0.0.1 -p "$port" -t $secs -J $how >"$dir/out" 2>"$dir/err"
    rc=$?
    if [ $rc = 0 ] && rate=$("$PYTHON" - "$dir/out" 2>&1 <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
if "error" in r:
    sys.exit(r["error"])
e = r["end"]
sums = [k for k in e if k.startswith("sum_received")]
for k in sums:
    if not e[k]["bytes"]:
        sys.exit(k + ": nothing arrived")
print(", ".join("%.1f Gbit/s" % (e[k]["bits_per_second"] / 1e9) for k in sums))
PY
    ); then ok "${how:-forward} ($rate)"; else fail "${how:-forward}" "exit $rc: $rate $(grep error "$dir/out" | tail -2) $(tail -2 "$dir/err")"; fi
    gone_child "$server" 5 || fail "server after ${how:-forward}" "it did not end"
    wait "$server"
    rc=$?
    [ $rc = 0 ] || fail "server after ${how:-forward}" "exit $rc: $(tail -3 "$dir/server")"
  done
  carried
done
exit $BAD
