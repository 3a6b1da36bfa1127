#!/usr/bin/env bash
# Two guests, each running this file: the table of programs (tests/programs/rows.sh), servers on
# host 2, clients on host 1. By the default policy connections begin on TCP and leave it for RDMA;
# every byte is compared. Alone: `[RSOCKET_TABLE_ROWS=REGEX] tests/vm/run two table`. With REGEX it
# is those of all rows (RSOCKET_TABLE_SCP=MiB is what scp carries). Those that are in RDMA_ROWS run
# also with RSOCKET_TRANSPORT=rdma, over both devices.
#
# alone
. "$(dirname "$0")/../guest.sh"
[ -n "${VM_HOST:-}" ] || die "this needs two guests"
HERE=$ROOT/tests/programs
. "$HERE/rows.sh"
# Emulated: small sizes. The bytes of a connection are enough for an attach, which takes a few round
# trips: few connections share them.
BIG=$((24 << 20)) LONG=$((8 << 20)) MIDDLE=$((8 << 20)) TLS=$((4 << 20)) SECS=$((3 * SLOW)) MPS=50 REQUESTS=1000 CROWD=5 ECHO=2400000 SELECTOR_BYTES=2400000 ROUNDS=2
SCP=$((${RSOCKET_TABLE_SCP:-8} << 20)) UPGRADES=1 SHARED=$VM_SIGNALS
# What is quick enough in an emulated host; RSOCKET_TABLE_ROWS=. runs all.
rows=(http-1k http-big http-100 iperf3 iperf3-P4 iperf3-R iperf3-bidir redis-cli redis-c1 nginx-keepalive asyncio selectors-epoll tls ssh nginx-upgrade fork-echo inetd)
only_rdma=()
[ "$QUICK" = 1 ] && rows=(http-100 redis-c1 nginx-keepalive asyncio tls)
if [ -n "${RSOCKET_TABLE_ROWS:-}" ]; then
  rows=()
  for row in "${ROWS[@]}" "${FAMILY_ROWS[@]}"; do [[ $row =~ $RSOCKET_TABLE_ROWS ]] && rows+=("$row"); done
  for row in "${RDMA_ROWS[@]}"; do [[ $row =~ $RSOCKET_TABLE_ROWS ]] && only_rdma+=("$row"); done
fi
# Of the same name on both hosts, whose memory it is.
TOP=/tmp/table
mkdir -m 1777 "$TOP"
DATA=$TOP/data PORT=8100
make_data "${rows[@]}"
# A process in a sandbox, and one without the library, writes no report: here the clients' counters
# have to do.
declare -A UNCOUNTED=([ssh]=1 [scp]=1 [inetd-static]=1)
declare -A CELL

# proved ROW : by this host's counters; sets TEXT.
proved() {
  local shm rdma tcp least=${LEAST[$1]:-20000}
  shm=$(counted shm) rdma=$(counted rdma) tcp=$(counted tcp)
  TEXT="$(human "$rdma") rdma, $(human "$tcp") tcp"
  [ "$shm" = 0 ] || because "over shared memory, to another host: $(human "$shm")" || return
  if [ "$VM_HOST" = 2 ] && [ -n "${UNCOUNTED[$1]:-}" ]; then return 0
  elif [ "$MODE" = rdma ]; then
    TEXT="$(human "$rdma") rdma"
    [ "$rdma" -ge $((least / 2)) ] && [ "$tcp" = 0 ] || because "not by RDMA alone: $TEXT, $(human "$tcp") tcp"
  elif [ -n "${SHORT[$1]:-}" ]; then [ "$rdma" = 0 ] && [ "$tcp" -gt 0 ] || because "not on TCP: $TEXT"
  elif [ -n "${MAY_LEAVE[$1]:-}" ]; then [ $((rdma + tcp)) -ge "$least" ] || because "too few bytes: $TEXT"
  else [ "$rdma" -ge $((least / 4)) ] || because "hardly over RDMA: $TEXT ($(stat_reasons "$STATS"))"; fi
}

# column NAME MODE DEVICE ROW... : those rows; one line for each at either end.
column() {
  local name=$1 row rc t before
  # shellcheck disable=SC2034
  MODE=$2 ADDR=$(address "$3" 2) ADDR_HERE=$(address "$3")
  local device=$3
  shift 3
  for row in "$@"; do
    # shellcheck disable=SC2034
    PORT=$((PORT + 3)) DIR=$TOP/$row SERVERS=() STOP=TERM rc=0 t=$SECONDS before=$(packets "$device")
    mkdir -p -m 1777 "$DIR"
    tmpdir STATS
    P=(env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$STATS/%p")
    [ "$MODE" = default ] || P+=("RSOCKET_TRANSPORT=$MODE")
    {
      if [ "$VM_HOST" = 2 ]; then
        "${row}_serve" && up "${SERVERS[0]}" || because "no server: $(tail -q -n 3 "$DIR"/server.*)" || rc=1
        tell "serves.$name.$row" $rc
        hear "asked.$name.$row" 400 >/dev/null || rc=1
        if declare -F "${row}_end" >/dev/null; then "${row}_end" || rc=1; else stop_servers || rc=1; fi
        stop_servers || rc=1
      else
        [ "$(hear "serves.$name.$row" 120)" = 0 ] && "${row}_ask" || rc=1
        stop_servers || rc=1
        tell "asked.$name.$row"
      fi
      [ $rc = 0 ] && { proved "$row" || rc=1; }
      [ $rc != 0 ] || [ "$MODE" = default ] || [ "$(packets "$device")" -gt "$before" ] || because "no packet through $device" || rc=1
    } 2>"$DIR/why"
    if [ $rc = 0 ]; then CELL[$name $row]=$TEXT; ok "host $VM_HOST $name $row ($TEXT, $((SECONDS - t)) s)"
    else CELL[$name $row]=FAILS; fail "host $VM_HOST $name $row" "$(head -c 1000 "$DIR/why")"; fi
    rm -rf "$DIR"
  done
}

column roce default rxe0 "${rows[@]}"
column roce-rdma rdma rxe0 "${only_rdma[@]}"
column iwarp-rdma rdma siw0 "${only_rdma[@]}"
if [ "$VM_HOST" = 1 ]; then
  say "# the client's end, between two hosts: over RoCE by the default policy; and with RSOCKET_TRANSPORT=rdma"
  for row in "${rows[@]}"; do
    say "# $(printf '%-21s %-30s' "$row" "${CELL[roce $row]}") ${CELL[roce-rdma $row]:-} ${CELL[iwarp-rdma $row]:-}"
  done
fi
finish
