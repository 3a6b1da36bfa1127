#!/usr/bin/env bash
# The calls of rsocket(7) over both devices: the C cases of tests/rsocket, which run over shared
# memory elsewhere. Two processes of one guest, or one that is connected to itself; time is that of
# a slow machine.
. "$(dirname "$0")/guest.sh"
tmpdir tmp
export RS_SLOW=${RS_SLOW:-30} RSOCKET_TRANSPORT=rdma

# topic DEVICE NAME [-6] : all cases of one file, one line for each; packets prove that they went
# over the device.
topic() {
  local dev=$1 t=$2 as="$1 $2" program before after name
  shift 2
  helper program "rs_$t"
  before=$(packets "$dev")
  mkdir -p "$tmp/stats" && rm -f "$tmp/stats"/*
  RS_ADDRESS=$(address "$dev") RS_ADDRESS6=$(address6 "$dev") RSOCKET_STATS="$tmp/stats/%p" \
    limit 400 "$program" "$@" >"$tmp/out" 2>&1
  after=$(packets "$dev")
  [ -s "$tmp/out" ] || fail "$as $*" "it said nothing"
  while read -r name; do
    if grep -q "^ok $name\$" "$tmp/out"; then ok "$as $name"; else fail "$as $name" "$(grep "^FAIL $name:" "$tmp/out")"; fi
  done < <(sed -n 's/^\(ok\|FAIL\) \([^ :]*\).*/\2/p' "$tmp/out" | awk '!seen[$0]++')
  grep -qvE '^(ok|FAIL) ' "$tmp/out" && fail "$as $*" "$(grep -vE '^(ok|FAIL) ' "$tmp/out" | tail -3)"
  check "$as $* went over the device ($((after - before)) packets)" "it did not" [ "$after" -gt "$before" ]
  check "$as $* not by TCP" "$(stat_sum bytes.sent.tcp "$tmp/stats") bytes" [ "$(stat_sum bytes.sent.tcp "$tmp/stats")" = 0 ]
}

topics=(options tcp_options flags epoll epoll_members waiting bytes gaps_streams unmet)
[ "$QUICK" = 1 ] && topics=(options tcp_options flags epoll epoll_members gaps_streams)
for dev in "${DEVICES[@]}"; do
  for t in "${topics[@]}"; do
    topic "$dev" "$t"
    # Which family it is makes no difference to what has come, nor to who is told.
    [[ $QUICK = 1 || $t = epoll* || $t = waiting || $t = bytes || $t = gaps_streams || $t = unmet ]] || topic "$dev" "$t" -6
  done
done
check "nothing left" "see above" none_left 20
finish
