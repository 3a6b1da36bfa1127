#!/usr/bin/env bash
# Two guests, each running this file: datagrams between hosts. They go by queue pairs over
# soft-RoCE, by UDP over soft-iWARP. Upstream's udpong runs with our library at both ends. Then all
# sizes, what is too long, what is cut, repoll; and a socket of the kernel's that asks an rsocket.
# Host 1 serves. Alone: `tests/vm/run two datagrams`.
. "$(dirname "$0")/../guest.sh"
[ -n "${VM_HOST:-}" ] || die "this needs two guests"
OURS=$TARGET/release/librsocket.so
[ -f "$OURS" ] || die "no library at $OURS"
helper program hosts_datagrams
# shellcheck disable=SC2154 # tmpdir and helper make them
tmpdir tmp
here="host $VM_HOST"
mkdir "$tmp/stats"
# both A B C D : A is not below B, and C not below D.
both() { [ "$1" -ge "$2" ] && [ "$3" -ge "$4" ]; }

if [ "$VM_HOST" = 1 ]; then
  before=$(packets rxe0)
  for dev in "${DEVICES[@]}"; do
    addr=$(address "$dev" 1)
    start "pong_$dev" env "LD_PRELOAD=$OURS" udpong -b "$addr" -p 7174 -T b >"$tmp/pong_$dev" 2>&1
    start "cases_$dev" env "RSOCKET_STATS=$tmp/stats/%p" "$program" serve "$addr" 7900 >"$tmp/cases_$dev" 2>&1
    pong=pong_$dev cases=cases_$dev
    wait_udp 7174 "${!pong}" 60 && wait_udp 7900 "${!cases}" 60 ||
      fail "$here serves on $dev" "$(cat "$tmp/pong_$dev" "$tmp/cases_$dev")"
  done
  tell ready
  hear over 500 >/dev/null || fail "$here" "host 2 does not come to an end"
  for dev in "${DEVICES[@]}"; do
    pong=pong_$dev cases=cases_$dev
    stop "${!pong}"
    gone_child "${!cases}" 30 || { stop "${!cases}"; fail "$here $dev: the server ends when it is told" "it does not"; continue; }
    wait "${!cases}"
    check "$here $dev: the server saw nothing wrong" "$(cat "$tmp/cases_$dev")" [ $? = 0 ]
  done
  rdma=$(stat_sum messages.sent.rdma "$tmp/stats") grown=$(($(packets rxe0) - before))
  check "$here answered by RDMA ($rdma datagrams, $grown packets)" "too few" both "$rdma" 50 "$grown" "$rdma"
  check "$here nothing left" "see above" none_left 10
  finish
fi

hear ready 200 >/dev/null || { fail "$here" "host 1 does not serve"; finish; }
# right_way DEVICE NAME PACKETS LEAST : what this end sent since went where it should.
right_way() {
  local dev=$1 name=$2 grown rdma udp
  grown=$(($(packets rxe0) - $3))
  rdma=$(stat_sum messages.sent.rdma "$tmp/stats") udp=$(stat_sum datagrams.sent.udp "$tmp/stats")
  if [ "$dev" = rxe0 ]; then
    check "$here $dev: $name by RDMA ($rdma datagrams, $grown packets, $udp by UDP)" "too few" both "$rdma" "$4" "$grown" "$rdma"
  else check "$here $dev: $name by UDP ($udp datagrams)" "$rdma by RDMA" both 0 "$rdma" "$udp" 1; fi
}
for dev in "${DEVICES[@]}"; do
  addr=$(address "$dev" 1)
  # Not -T e, where it sends again whatever is not echoed within a millisecond: between emulated
  # hosts that can be everything, for ever. The cases below have their echoes.
  for options in "-C 1000 -S 1000 -T b" "-C 1000 -S 16 -T n"; do
    rm -f "$tmp/stats"/*
    before=$(packets rxe0)
    # shellcheck disable=SC2086
    limit 60 env "LD_PRELOAD=$OURS" "RSOCKET_STATS=$tmp/stats/%p" udpong -s "$addr" -p 7174 $options >"$tmp/client" 2>&1
    rc=$?
    check "$here $dev: udpong $options" "exit $rc: $(tail -3 "$tmp/client")" grep -q '^custom .*[0-9]s ' "$tmp/client"
    right_way "$dev" "udpong $options" "$before" 20
  done
  rm -f "$tmp/stats"/*
  before=$(packets rxe0)
  limit 200 env "RSOCKET_STATS=$tmp/stats/%p" "$program" rsocket "$addr" 7900 >"$tmp/cases" 2>&1
  for what in sizes "too long" cut repoll; do check "$here $dev: $what" "$(tail -2 "$tmp/cases")" grep -q "^$what\$" "$tmp/cases"; done
  right_way "$dev" "all sizes" "$before" 40
  LAST=1 limit 100 "$program" plain "$addr" 7900 >"$tmp/plain" 2>&1
  check "$here $dev: a plain UDP socket is answered" "$(tail -2 "$tmp/plain")" grep -q '^plain$' "$tmp/plain"
done
check "$here nothing left" "see above" none_left 10
tell over
finish
