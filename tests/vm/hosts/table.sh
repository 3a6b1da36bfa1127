#!/usr/bin/env bash
# Two guests, each running this file: the table of programs (tests/programs/rows.sh), servers on host 2, clients on host 1, the default policy.
# Connections begin on TCP and leave it for RDMA; every byte is compared. Alone: `[RSOCKET_TABLE_ROWS=REGEX] tests/vm/run two table`.
. "$(dirname "$0")/../guest.sh"
[ -n "${VM_HOST:-}" ] || die "this needs two guests"
HERE=$ROOT/tests/programs
. "$HERE/rows.sh"
# Emulated: small sizes. The bytes of a connection are enough for an attach, which takes a few round trips: few connections share them.
BIG=$((24 << 20)) MIDDLE=$((8 << 20)) TLS=$((4 << 20)) SECS=3 MPS=50 REQUESTS=1000 CROWD=5 ECHO=800000 ROUNDS=2
# What is quick enough in an emulated host; RSOCKET_TABLE_ROWS=. runs all.
rows=(http-1k http-big http-100 iperf3 iperf3-P4 iperf3-R iperf3-bidir redis-cli redis-c1 nginx-keepalive asyncio selectors-epoll tls)
[ "$QUICK" = 1 ] && rows=(http-100 redis-c1 nginx-keepalive asyncio tls)
# For one who looks for a fault: only these.
if [ -n "${RSOCKET_TABLE_ROWS:-}" ]; then
  rows=()
  for row in "${ROWS[@]}"; do [[ $row =~ $RSOCKET_TABLE_ROWS ]] && rows+=("$row"); done
fi
tmpdir TOP
# shellcheck disable=SC2034
MODE=default DATA=$TOP/data ADDR=$(address rxe0 2) ADDR_HERE=$(address rxe0) PORT=8100
make_data "${rows[@]}"
# The end that accepted and has never said anything cannot prove who it is (docs/limits.md): what goes one way only stays on TCP.
declare -A ONE_WAY=([nc-openbsd]=1 [nc-traditional]=1 [ncat]=1 [iperf3]=1 [iperf3-P4]=1 [iperf3-R]=1 [iperf3-bidir]=1 [sockperf-tp]=1)
# A child that ends by _exit writes no report: here the clients' counters have to do.
declare -A UNCOUNTED=([socketserver-fork]=1)
declare -A CELL

# proved ROW : by this host's counters; sets TEXT.
proved() {
  local rdma tcp least=${LEAST[$1]:-20000}
  rdma=$(counted rdma) tcp=$(counted tcp)
  TEXT="$(human "$rdma") rdma, $(human "$tcp") tcp"
  if [ "$VM_HOST" = 2 ] && [ -n "${UNCOUNTED[$1]:-}" ]; then return 0
  elif [ -n "${SHORT[$1]:-}" ]; then [ "$rdma" = 0 ] && [ "$tcp" -gt 0 ] || because "not on TCP: $TEXT"
  elif [ -n "${ONE_WAY[$1]:-}" ]; then [ $((rdma + tcp)) -ge "$least" ] || because "too few bytes: $TEXT"
  else [ "$rdma" -ge $((least / 4)) ] || because "hardly over RDMA: $TEXT ($(stat_reasons "$STATS"))"; fi
}

for row in "${rows[@]}"; do
  PORT=$((PORT + 3)) DIR=$TOP/$row SERVERS=() STOP=TERM rc=0 t=$SECONDS
  mkdir -p -m 1777 "$DIR"
  tmpdir STATS
  P=(env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$STATS/%p")
  {
    if [ "$VM_HOST" = 2 ]; then
      "${row}_serve" && wait_port "$PORT" "${SERVERS[0]}" 60 || because "no server: $(tail -q -n 3 "$DIR"/server.*)" || rc=1
      tell "serves.$row" $rc
      hear "asked.$row" 240 >/dev/null || rc=1
      if declare -F "${row}_end" >/dev/null; then "${row}_end" || rc=1; else stop_servers || rc=1; fi
      stop_servers || rc=1
    else
      [ "$(hear "serves.$row" 120)" = 0 ] && "${row}_ask" || rc=1
      stop_servers || rc=1
      tell "asked.$row"
    fi
    [ $rc = 0 ] && { proved "$row" || rc=1; }
  } 2>"$DIR/why"
  if [ $rc = 0 ]; then CELL[$row]=$TEXT; ok "host $VM_HOST $row ($TEXT, $((SECONDS - t)) s)"
  else CELL[$row]=FAILS; fail "host $VM_HOST $row" "$(head -c 1000 "$DIR/why")"; fi
  rm -rf "$DIR"
done
if [ "$VM_HOST" = 1 ]; then
  say "# the client's end, over RoCE between two hosts, by the default policy"
  for row in "${rows[@]}"; do say "# $(printf '%-21s %s' "$row" "${CELL[$row]}")"; done
fi
finish
