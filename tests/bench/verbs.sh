#!/usr/bin/env bash
# In the virtual machine: the rounds of scripts/bench-verbs. Writes a line `DEVICE CELL LIBRARY
# FIGURE` for each run into $VM_OUT/figures, FIGURE in µs (latencies) or Gbit/s, `-` where the
# program failed. LIBRARY is `ours`, and `upstream` or, with RSOCKET_BESIDE, `before`.
. "$(dirname "$0")/../vm/guest.sh"
OURS=$TARGET/release/librsocket.so
UPSTREAM=$(dpkg -L librdmacm1 | grep '/rsocket/librspreload.so$')
[ -f "$OURS" ] && [ -f "$LIB" ] && [ -n "$UPSTREAM" ] || die "a library is missing"
other=upstream
[ -z "${RSOCKET_BESIDE:-}" ] || other=before
tmpdir tmp
port=7000
note() { echo "$1 $2 $3 $4" | tee -a "$VM_OUT/figures"; }

# with LIBRARY OURS UPSTREAM : sets WITH to what goes before a command that is to use it. OURS is
# the file's name in our builds, UPSTREAM its path, if it is not what the command uses by itself.
with() {
  WITH=(env)
  case $1 in
    upstream) [ -z "$3" ] || WITH+=("LD_PRELOAD=$3") ;;
    before) WITH+=("LD_PRELOAD=$RSOCKET_BESIDE/$(basename "$2")" RSOCKET_TRANSPORT=rdma) ;;
    ours) WITH+=("LD_PRELOAD=$2" RSOCKET_TRANSPORT=rdma) ;;
  esac
}
# rstreams LIBRARY ARG... : sets OUT to the last line of the client.
rstreams() {
  local WITH addr rc server
  with "$1" "$OURS" ''
  shift
  addr=$(address "$dev") port=$((port + 1))
  start server timeout -k 5 120 "${WITH[@]}" rstream -b "$addr" -p $port "$@" >"$tmp/server" 2>&1
  wait_listen $port "$server" 20 || { stop "$server"; return 1; }
  limit 110 "${WITH[@]}" rstream -s "$addr" -p $port "$@" >"$tmp/client" 2>&1
  rc=$?
  gone_child "$server" 10
  stop "$server"
  OUT=$(tail -n 1 "$tmp/client")
  return $rc
}
# rstream_cell CELL LIBRARY SIZE ARG... : rstream prints the time of a transfer to a hundredth of a
# µs, and the bandwidth to a hundredth of a Gbit/s. The latter is too coarse here: a bandwidth is
# worked out from the time.
rstream_cell() {
  local cell=$1 library=$2 size=$3 figure=-
  shift 3
  if rstreams "$library" -S "$size" "$@"; then
    figure=$(awk -v cell="$cell" -v size="$size" \
      'cell ~ /^latency/ { print $NF; next } $NF > 0 { print size * 8 / $NF / 1000; next } { print "-" }' <<<"$OUT")
  else
    say "# $dev $cell $library: $(tail -q -n 2 "$tmp/client" "$tmp/server" | tr '\n' ' ')"
    [ "$library" != ours ] || BAD=1
  fi
  note "$dev" "$cell" "$library" "$figure"
}
# iperf_cell LIBRARY
iperf_cell() {
  local WITH addr server figure
  with "$1" "$LIB" "$UPSTREAM"
  addr=$(address "$dev") port=$((port + 1))
  start server timeout -k 5 60 "${WITH[@]}" iperf3 -s -1 -B "$addr" -p $port >"$tmp/server" 2>&1
  if wait_listen $port "$server" 10; then
    figure=$(limit 40 "${WITH[@]}" iperf3 -c "$addr" -p $port -t 5 -J 2>"$tmp/client" |
      "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e9)' 2>/dev/null)
  fi
  stop "$server"
  [ -n "${figure:=}" ] && [ "$figure" != 0.0 ] || figure=-
  [ "$figure" != - ] || [ "$1" != ours ] || BAD=1
  note "$dev" iperf3 "$1" "$figure"
}

# cell NAME LIBRARY
cell() {
  case $1 in
    latency-64) rstream_cell "$@" 64 -C 1 -I 2000 ;;
    latency-64-blocking) rstream_cell "$@" 64 -C 1 -I 1000 -T b ;;
    latency-4096) rstream_cell "$@" 4096 -C 1 -I 1000 ;;
    bandwidth-64) rstream_cell "$@" 64 -C 10000 -I 1 ;;
    bandwidth-4096) rstream_cell "$@" 4096 -C 4000 -I 1 ;;
    bandwidth-65536) rstream_cell "$@" 65536 -C 500 -I 1 ;;
    bandwidth-1048576) rstream_cell "$@" 1048576 -C 40 -I 1 ;;
    bandwidth-65536-blocking) rstream_cell "$@" 65536 -C 500 -I 1 -T b ;;
    iperf3) # Upstream's does not end by itself where it does not run: once is enough to know.
      [ "$2" = upstream ] && [ -e "$tmp/fails.$dev" ] && return
      iperf_cell "$2"
      ! tail -n 1 "$VM_OUT/figures" | grep -q 'iperf3 upstream -' || touch "$tmp/fails.$dev" ;;
  esac
}

# The two runs of a pair follow each other at once: the machine's speed drifts within a round.
CELLS=${RSOCKET_CELLS:-latency-64 latency-64-blocking latency-4096 bandwidth-64 bandwidth-4096 bandwidth-65536 bandwidth-1048576
  bandwidth-65536-blocking iperf3}
for ((round = 1; round <= RSOCKET_ROUNDS; round++)); do
  libraries=("$other" ours)
  [ $((round % 2)) = 1 ] || libraries=(ours "$other")
  for dev in "${DEVICES[@]}"; do
    for name in $CELLS; do
      for library in "${libraries[@]}"; do cell "$name" "$library"; done
    done
  done
done
finish
