#!/usr/bin/env bash
# In the virtual machine: the rounds of scripts/bench-verbs. Writes a line `DEVICE CELL LIBRARY FIGURE` for each run into
# $VM_OUT/figures, FIGURE in µs (latencies) or Gbit/s, `-` where the program failed.
. "$(dirname "$0")/../vm/guest.sh"
OURS=$TARGET/release/librsocket.so
UPSTREAM=$(dpkg -L librdmacm1 | grep '/rsocket/librspreload.so$')
[ -f "$OURS" ] && [ -f "$LIB" ] && [ -n "$UPSTREAM" ] || die "a library is missing"
tmpdir tmp
port=7000
note() { echo "$1 $2 $3 $4" | tee -a "$VM_OUT/figures"; }

# rstreams LIBRARY ARG... : sets OUT to the last line of the client.
rstreams() {
  local with=(env) addr rc server
  [ "$1" = upstream ] || with=(env "LD_PRELOAD=$OURS")
  shift
  addr=$(address "$dev") port=$((port + 1))
  start server timeout -k 5 120 "${with[@]}" rstream -b "$addr" -p $port "$@" >"$tmp/server" 2>&1
  wait_listen $port "$server" 20 || { stop "$server"; return 1; }
  limit 110 "${with[@]}" rstream -s "$addr" -p $port "$@" >"$tmp/client" 2>&1
  rc=$?
  gone_child "$server" 10
  stop "$server"
  OUT=$(tail -n 1 "$tmp/client")
  return $rc
}
# rstream_cell CELL FIELD LIBRARY ARG... : FIELD counts from the end: 0 is µs for each transfer, 1 is Gbit/s.
rstream_cell() {
  local cell=$1 field=$2 library=$3 figure=-
  shift 3
  if rstreams "$library" "$@"; then figure=$(awk -v f="$field" '{ print $(NF - f) }' <<<"$OUT")
  else
    say "# $dev $cell $library: $(tail -q -n 2 "$tmp/client" "$tmp/server" | tr '\n' ' ')"
    [ "$library" = upstream ] || BAD=1
  fi
  note "$dev" "$cell" "$library" "$figure"
}
# iperf_cell LIBRARY
iperf_cell() {
  local with=(env "LD_PRELOAD=$UPSTREAM") addr server figure
  [ "$1" = upstream ] || with=(env "LD_PRELOAD=$LIB" RSOCKET_TRANSPORT=rdma)
  addr=$(address "$dev") port=$((port + 1))
  start server timeout -k 5 60 "${with[@]}" iperf3 -s -1 -B "$addr" -p $port >"$tmp/server" 2>&1
  if wait_listen $port "$server" 10; then
    figure=$(limit 40 "${with[@]}" iperf3 -c "$addr" -p $port -t 5 -J 2>"$tmp/client" |
      "$PYTHON" -c 'import json, sys; print(json.load(sys.stdin)["end"]["sum_received"]["bits_per_second"] / 1e9)' 2>/dev/null)
  fi
  stop "$server"
  [ -n "${figure:=}" ] && [ "$figure" != 0.0 ] || figure=-
  [ "$figure" != - ] || [ "$1" = upstream ] || BAD=1
  note "$dev" iperf3 "$1" "$figure"
}

for ((round = 1; round <= RSOCKET_ROUNDS; round++)); do
  for dev in "${DEVICES[@]}"; do
    libraries=(upstream ours)
    [ $((round % 2)) = 1 ] || libraries=(ours upstream)
    for library in "${libraries[@]}"; do
      rstream_cell latency-64 0 $library -S 64 -C 1 -I 2000
      rstream_cell latency-64-blocking 0 $library -S 64 -C 1 -I 1000 -T b
      rstream_cell latency-4096 0 $library -S 4096 -C 1 -I 1000
      rstream_cell bandwidth-64 1 $library -S 64 -C 10000 -I 1
      rstream_cell bandwidth-4096 1 $library -S 4096 -C 4000 -I 1
      rstream_cell bandwidth-65536 1 $library -S 65536 -C 500 -I 1
      rstream_cell bandwidth-1048576 1 $library -S 1048576 -C 40 -I 1
      rstream_cell bandwidth-65536-blocking 1 $library -S 65536 -C 500 -I 1 -T b
      # Upstream's does not end by itself where it does not run: once is enough to know.
      [ $library = upstream ] && [ -e "$tmp/fails.$dev" ] || iperf_cell $library
      ! tail -n 1 "$VM_OUT/figures" | grep -q 'iperf3 upstream -' || touch "$tmp/fails.$dev"
    done
  done
done
finish
