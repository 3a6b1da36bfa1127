#!/usr/bin/env bash
# Datagrams: over soft-RoCE by queue pairs, over soft-iWARP, which has no datagrams, by UDP.
# Upstream's udpong with our library at both ends, the cases of tests/rsocket/datagrams.c, and
# frames that make no sense.
. "$(dirname "$0")/guest.sh"
OURS=$TARGET/release/librsocket.so
[ -f "$OURS" ] || die "no library at $OURS"
helper CASES datagrams
helper WAITING datagrams_waiting
helper GAPS gaps_datagrams
helper STRANGE strange_frames
tmpdir tmp
port=7800

# counted NAME : that counter, over all processes of the last run.
counted() { stat_sum "$1" "$tmp/stats"; }
fresh() { rm -rf "$tmp/stats" && mkdir "$tmp/stats"; }

# right_way DEVICE PACKETS NAME : the datagrams went where they should; PACKETS is what the device
# had counted before.
right_way() {
  local dev=$1 before=$2 name=$3 grown rdma udp
  grown=$(($(packets "$dev") - before))
  rdma=$(counted messages.sent.rdma) udp=$(counted datagrams.sent.udp)
  if [ "$dev" = rxe0 ]; then
    if [ "$rdma" -ge 20 ] && [ "$grown" -ge "$rdma" ] && [ "$(counted messages.received.rdma)" -gt 0 ]; then
      ok "$name ($grown packets, $rdma datagrams by RDMA, $udp by UDP)"
    else fail "$name" "$grown packets, $rdma datagrams by RDMA, $udp by UDP"; fi
  elif [ "$rdma" = 0 ] && [ "$udp" -gt 0 ]; then ok "$name ($udp datagrams by UDP)"
  else fail "$name" "$rdma datagrams by RDMA, $udp by UDP"; fi
}

# pong DEVICE COUNT SIZE ADDRESS OPTION... : a server and a client with the same options, each with
# our library. The two meet by UDP. Their threads that look up the path may get a processor only
# when most is said: such a run is made again, twice.
pong() {
  local dev=$1 addr=$4 name before tries
  name="udpong $dev $addr -S $3 ${*:5}"
  for tries in 1 2 3; do
    before=$(packets "$dev")
    udpong_pair "$@" || return
    [ "$dev" != rxe0 ] || [ "$(counted messages.sent.rdma)" -ge 20 ] || continue
    break
  done
  right_way "$dev" "$before" "$name"
}
udpong_pair() {
  local dev=$1 count=$2 size=$3 addr=$4 server rc
  shift 4
  port=$((port + 1))
  fresh
  start server env "LD_PRELOAD=$OURS" "RSOCKET_STATS=$tmp/stats/%p" timeout -k 5 90 udpong -b "$addr" -p $port "$@" >"$tmp/server" 2>&1
  wait_udp $port "$server" 30 || { fail "$name" "no server: $(tail -3 "$tmp/server")"; stop "$server"; return 1; }
  limit 40 env "LD_PRELOAD=$OURS" "RSOCKET_STATS=$tmp/stats/%p" udpong -s "$addr" -p $port -C "$count" -S "$size" "$@" >"$tmp/client" 2>&1
  rc=$?
  stop "$server"
  [ $rc = 0 ] || { fail "$name" "exit $rc: $(tail -q -n 3 "$tmp/client" "$tmp/server")"; return 1; }
  grep -q '^custom .*[0-9]s ' "$tmp/client" || { fail "$name" "no result: $(tail -3 "$tmp/client")"; return 1; }
}

# udpong sends again what is not echoed within a millisecond, and never stops answering answers that
# come late. Where everything is slow, a few echoes are many datagrams, and many echoes too many.
sizes=(16 1000)
[ "$QUICK" = 1 ] && sizes=(1000)
for dev in "${DEVICES[@]}"; do
  for size in "${sizes[@]}"; do
    pong "$dev" 40 "$size" "$(address "$dev")" -T b -T e
    pong "$dev" 40 "$size" "$(address "$dev")" -T a -T e
    pong "$dev" 1000 "$size" "$(address "$dev")" -T b
    [ "$QUICK" = 1 ] || pong "$dev" 1000 "$size" "$(address "$dev")" -T n
  done
  pong "$dev" 40 500 "$(address6 "$dev")" -T b -T e
done
check "nothing left" "see above" none_left 10

# The cases, between two processes and within one. Datagrams that are longer than a packet, and the
# plain ones, go by UDP.
for dev in "${DEVICES[@]}"; do
  for family in -4 -6; do
    addr=$(address "$dev") arg=()
    [ $family = -6 ] && { addr=$(address6 "$dev"); arg=(-6); }
    [ "$QUICK" = 1 ] && [ $family = -6 ] && continue
    fresh
    before=$(packets "$dev")
    RS_ADDRESS=$addr RS_SECONDS=200 RSOCKET_STATS=$tmp/stats/%p limit 500 "$CASES" "${arg[@]}" >"$tmp/out" 2>&1
    RS_ADDRESS=$addr RS_SECONDS=200 RSOCKET_STATS=$tmp/stats/%p limit 300 "$GAPS" "${arg[@]}" >>"$tmp/out" 2>&1
    # Not counted: there are streams among these.
    RS_ADDRESS=$addr RS_SECONDS=200 limit 300 "$WAITING" "${arg[@]}" >>"$tmp/out" 2>&1
    [ -s "$tmp/out" ] || fail "cases $dev $family" "they said nothing"
    while read -r verdict rest; do
      case $verdict in
        ok) ok "$dev $rest" ;;
        FAIL) fail "$dev ${rest%%:*}" "${rest#*: }" ;;
        *) fail "cases $dev $family" "$verdict $rest" ;;
      esac
    done <"$tmp/out"
    # 5.4 of the list of upstream's gaps is that its datagrams cannot go over RoCE.
    right_way "$dev" "$before" "gap_5_04 cases $dev $family went the right way"
  done
done
check "nothing left of the cases" "see above" none_left 10

# Frames straight to the queue pair, by a sender that is no rsocket.
fresh
addr=$(address rxe0)
RSOCKET_STATS=$tmp/stats/%p LD_PRELOAD='' limit 100 "$STRANGE" "$addr" "$OURS" >"$tmp/out" 2>&1
rc=$?
check "strange frames are ignored" "exit $rc: $(tail -5 "$tmp/out")" [ $rc = 0 ]
check "strange frames were counted" "$(counted datagrams.ignored)" [ "$(counted datagrams.ignored)" -ge 20 ]
check "nothing left of the frames" "see above" none_left 10
finish
