#!/usr/bin/env bash
# sockperf over TCP: round trips as fast as they go, and a stream.
. "$(dirname "$0")/common.sh"
need sockperf
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  # A hundred thousand round trips of each size; what needs longer to go wrong is for stress and
  # soak.
  secs=1
  free_port port
  start server "${P[@]}" sockperf server --tcp -i 127.0.0.1 -p "$port" >"$dir/server" 2>&1
  if ! wait_port "$port" "$server"; then fail start "$(tail -3 "$dir/server")"; continue; fi
  for size in 14 1000 16000; do
    if limit 30 "${P[@]}" sockperf ping-pong --tcp -i 127.0.0.1 -p "$port" -t $secs --mps=5000000 --msg-size=$size >"$dir/out" 2>&1 &&
      grep -q 'dropped messages = [01]; # duplicated messages = 0; # out-of-order messages = 0' "$dir/out"; then
      ok "ping-pong $size bytes (half round trip $(sed -n 's/.*percentile 50.000 = *//p' "$dir/out") us)"
    else
      fail "ping-pong $size bytes" "$(tail -4 "$dir/out")"
    fi
  done
  if limit 30 "${P[@]}" sockperf throughput --tcp -i 127.0.0.1 -p "$port" -t $secs --mps=max --msg-size=16000 >"$dir/out" 2>&1 &&
    grep -q 'BandWidth is' "$dir/out"; then
    ok "throughput ($(sed -n 's/.*BandWidth is //p' "$dir/out"))"
  else
    fail throughput "$(tail -4 "$dir/out")"
  fi
  stop "$server" INT || fail stop "the server did not end"
  carried
done
exit $BAD
