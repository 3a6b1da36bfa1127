#!/usr/bin/env bash
# Upstream's fork mode (RDMAV_FORK_SAFE=1 at both ends), with Debian's own librspreload at one end
# and ours at the other, in both directions. One server makes a child for each connection, another
# does not. And the programs that it must not touch: those without any library.
. "$(dirname "$0")/guest.sh"
helper ECHO echo
THEIRS=$(dpkg -L librdmacm1 | grep '/rsocket/librspreload.so$')
[ -n "$THEIRS" ] || die "librdmacm1 has no preload library"
tmpdir tmp
port=7850 dev=rxe0 addr=$(address rxe0)
bytes=400000
[ "$QUICK" = 1 ] && bytes=100000
# Upstream listens on the wildcard address, which fails as a whole where soft-iWARP shares TCP's
# ports.
rdma link delete siw0
siw() { ip -o link show | sed -n 's/^[0-9]*: \(w0\|eth1\)[@:].*/\1/p'; }
trap 'rdma link add siw0 type siw netdev "$(siw)"; on_exit' EXIT

# side WHO : what stands before a program. `named` is ours, which is told which peers speak fork
# mode; `ours` is not told, and `other` is told of others.
side() {
  local ours="env LD_PRELOAD=$LIB RDMAV_FORK_SAFE=1 RSOCKET_TRANSPORT=rdma,tcp RSOCKET_STATS=$tmp/stats/%p RSOCKET_LOG=warn"
  case $1 in
    upstream) echo "env LD_PRELOAD=$THEIRS RDMAV_FORK_SAFE=1" ;;
    named) echo "$ours RSOCKET_FORK_PEERS=10.0.0.0/8" ;;
    other) echo "$ours RSOCKET_FORK_PEERS=192.0.2.0/24,fd00::1" ;;
    ours) echo "$ours" ;;
    plain) echo env ;;
  esac
}
counted() { stat_sum "$1" "$tmp/stats"; }
# count_all : what `counted` would say, in variables of its caller.
count_all() {
  read -r greeted migrated rdma_sent rdma_received tcp_sent tcp_received < <(stat_sums "$tmp/stats" fork_safe.greeted \
    fork_safe.migrated bytes.sent.rdma bytes.received.rdma bytes.sent.tcp bytes.received.tcp)
}
# up PID : the server listens for TCP.
up() {
  local end=$((SECONDS + 30))
  until port_listens "$port"; do
    alive "$1" && [ $SECONDS -le $end ] || return 1
    nap 0.1
  done
}

# meet NAME WAY COUNT BYTES SIDES -- SERVER... -- CLIENT... : COUNT clients, the first alone, the
# others at the same time. WAY is how the bytes must have gone. BYTES is how many each side of ours
# must have sent and received for each, SIDES how many sides are ours. `server` and `client` before
# a command say whose library it has.
meet() {
  local name=$1 way=$2 count=$3 bytes=$4 sides=$5 server pid rc=0 before after i serve=() ask=() clients=()
  shift 6
  while [ "$1" != -- ]; do serve+=("$1"); shift; done
  shift
  ask=("$@")
  rm -rf "$tmp/stats" "$tmp"/client* && mkdir "$tmp/stats"
  before=$(packets $dev)
  start server timeout -k 5 120 "${serve[@]}" >"$tmp/server" 2>&1
  up "$server" || { fail "$name" "no server: $(tail -3 "$tmp/server")"; stop "$server"; return; }
  for ((i = 0; i < count; i++)); do
    limit 60 "${ask[@]}" >"$tmp/client.$i" 2>&1 &
    pid=$!
    if [ $i = 0 ]; then wait "$pid" || rc=$?; else clients+=("$pid"); fi
  done
  for pid in "${clients[@]}"; do wait "$pid" || rc=$?; done
  gone_child "$server" 20
  stop "$server" || { fail "$name" "the server does not end: $(tail -3 "$tmp/server")"; return; }
  after=$(packets $dev)
  local wanted=$((count * bytes * sides)) said greeted migrated rdma_sent rdma_received tcp_sent tcp_received
  said=$(grep -hv ' 0$' "$tmp"/stats/* 2>/dev/null)
  count_all
  if [ $rc != 0 ]; then fail "$name" "exit $rc: $(tail -q -n 5 "$tmp"/client* "$tmp/server") $said"
  elif [ "$way" = rdma ] && [ "$after" -le "$before" ]; then fail "$name" "no packet went through $dev"
  elif [ "$way" = rdma ] && [ "$sides" -gt 0 ] && [ "$migrated" -ne $((count * sides)) ]; then fail "$name" "not migrated: $said"
  elif [ "$way" = rdma ] && [ "$sides" -gt 0 ] && { [ "$rdma_sent" -ne $wanted ] || [ "$rdma_received" -ne $wanted ] ||
    [ "$tcp_sent" -ne 0 ] || [ "$tcp_received" -ne 0 ]; }; then fail "$name" "other bytes than $wanted: $said"
  elif [ "$way" = tcp ] && [ "$greeted$migrated" != 00 ]; then fail "$name" "fork mode was spoken: $said"
  else ok "$name ($((after - before)) packets)"; fi
}
sides() {
  local who n=0
  for who in "$@"; do case $who in ours | named | other) n=$((n + 1)) ;; esac; done
  echo $n
}
# echo_between SERVER CLIENT MODE WAY
echo_between() {
  port=$((port + 1))
  # shellcheck disable=SC2046
  meet "$3: $1 serves, $2 asks" "$4" 3 $bytes "$(sides "$1" "$2")" -- \
    $(side "$1") "$ECHO" "$3" "$addr" $port 3 -- $(side "$2") "$ECHO" client "$addr" $port $bytes
}
# python_between NAME WAY COUNT SERVER ROLE CLIENT ROLE : two roles of forkmode.py
python_between() {
  port=$((port + 1))
  # shellcheck disable=SC2046
  meet "$1" "$2" "$3" 0 0 -- $(side "$4") "$PYTHON" "$PROGRAMS" "$5" "$addr" $port "$3" -- \
    $(side "$6") "$PYTHON" "$PROGRAMS" "$7" "$addr" $port 1
}
PROGRAMS=$ROOT/tests/vm/forkmode.py

# full COMMAND... : not when quick.
full() { [ "$QUICK" = 1 ] || "$@"; }
# What upstream does with itself, first: the ground that all of this stands on.
full echo_between upstream upstream forking rdma
full echo_between named upstream server rdma
echo_between named upstream forking rdma
echo_between ours upstream forking rdma
full echo_between upstream named server rdma
echo_between upstream named forking rdma
echo_between named named forking rdma
full echo_between ours ours forking tcp
echo_between ours plain forking tcp
full echo_between other plain forking tcp
echo_between plain ours forking tcp
full echo_between plain other forking tcp

# Which end speaks first: upstream's server cannot wait for the client in poll, nor greet a client
# that listens first.
port=$((port + 1))
for who in named ours; do
  [ $who = named ] || [ "$QUICK" != 1 ] || continue
  # shellcheck disable=SC2046
  meet "gap_7_3_polls_before_it_reads: $who serves, upstream asks" rdma 3 $bytes 1 -- \
    $(side $who) "$PYTHON" "$PROGRAMS" polling "$addr" $port 3 -- $(side upstream) "$ECHO" client "$addr" $port $bytes
  port=$((port + 1))
done
# The five bytes of the greeting go one way only.
for who in "named upstream" "upstream named" "named named"; do
  # shellcheck disable=SC2046,SC2086
  {
    set -- $who
    n=$(sides $who)
    port=$((port + 1))
    meet "gap_7_3_server_speaks_first: $1 serves, $2 asks" first 3 0 "$n" -- env FIRST=1 $(side $1) "$ECHO" forking "$addr" $port 3 -- \
      env FIRST=1 $(side $2) "$ECHO" client "$addr" $port $bytes
    [ "$(counted fork_safe.migrated)" = $((3 * n)) ] && [ "$(counted bytes.sent.tcp)$(counted bytes.received.tcp)" = 00 ] ||
      fail "gap_7_3_server_speaks_first: $who" "migrated: $(counted fork_safe.migrated)"
  }
done
port=$((port + 1))
# shellcheck disable=SC2046
meet "gap_7_3_server_speaks_first, and knows nobody" tcp 3 0 1 -- env FIRST=1 $(side ours) "$ECHO" forking "$addr" $port 3 -- \
  env FIRST=1 $(side upstream) "$ECHO" client "$addr" $port $bytes
python_between "gap_7_3_four_zeros_of_an_ordinary_server" tcp 3 plain zeros named zeros-reader
full python_between "gap_7_1_parent_and_child_in_turns: TCP" tcp 3 plain turns plain turns-reader
by_rdma() { echo "env LD_PRELOAD=$LIB RSOCKET_TRANSPORT=rdma RSOCKET_STATS=$tmp/stats/%p"; }

# Sockets that are made with flags: Python's all are. (Its children end without saying what they
# moved; the parent's bridges do.)
port=$((port + 1))
name="gap_7_6_made_with_flags: forking.py serves, upstream asks"
# shellcheck disable=SC2046
meet "$name" first 3 0 1 -- $(side named) "$PYTHON" "$ROOT/tests/vm/forking.py" "$addr" $port 3 -- \
  $(side upstream) "$ECHO" client "$addr" $port $bytes
[ "$(counted attached.rdma)" = 3 ] || fail "$name" "$(counted attached.rdma) of 3 came by RDMA"

# silent NAME POLICY GREETED OTHERS : a client without any library that says nothing for long, and
# whether it gets upstream's four bytes. Meanwhile OTHERS of its host ask.
silent() {
  local name="$1: $2, $4" server client rc=0 n others=0
  port=$((port + 1))
  rm -rf "$tmp/stats" "$tmp"/client* && mkdir "$tmp/stats"
  # shellcheck disable=SC2046
  start server timeout -k 5 120 $(side "$2") "$ECHO" forking "$addr" $port 3 >"$tmp/server" 2>&1
  up "$server" || { fail "$name" "no server: $(tail -3 "$tmp/server")"; stop "$server"; return; }
  rm -f "$tmp/word"
  start client timeout -k 5 90 "$PYTHON" "$PROGRAMS" silent "$addr" $port "$3" "$tmp/word" >"$tmp/client" 2>&1
  for ((n = 0; n < 300; n++)); do grep -q connected "$tmp/client" && break; nap 0.1; done
  for n in 1 2; do
    # shellcheck disable=SC2046
    limit 60 $(side "$4") "$ECHO" client "$addr" $port $bytes >"$tmp/client.$n" 2>&1 || rc=$?
  done
  [ "$4" != upstream ] || others=2
  : >"$tmp/word"
  wait "$client" || rc=$?
  gone_child "$server" 20
  wait "$server" || rc=$?
  if [ $rc != 0 ]; then fail "$name" "exit $rc: $(tail -q -n 5 "$tmp"/client* "$tmp/server")"
  elif [ "$(counted fork_safe.greeted)" -ne $((others + $3)) ] || [ "$(counted fork_safe.migrated)" -ne $others ]; then
    fail "$name" "greeted $(counted fork_safe.greeted), migrated $(counted fork_safe.migrated)"
  else ok "$name"; fi
}
silent gap_7_4_greeted_and_silent named 1 upstream
full silent gap_7_4_greeted_and_silent other 0 plain

# Without the variable: a fork harms nothing on a connection by RDMA's own manager.
port=$((port + 1))
rm -rf "$tmp/stats" && mkdir "$tmp/stats"
before=$(packets $dev)
# shellcheck disable=SC2046
start server timeout -k 5 90 $(by_rdma) "$PYTHON" "$PROGRAMS" turns "$addr" $port 2 >"$tmp/server" 2>&1
rc=0
if wait_listen $port "$server" 40; then
  # shellcheck disable=SC2046
  for _ in 1 2; do limit 60 $(by_rdma) "$PYTHON" "$PROGRAMS" turns-reader "$addr" $port 1 >"$tmp/client" 2>&1 || rc=$?; done
else rc=97; fi
gone_child "$server" 20
wait "$server" || rc=$?
check "gap_7_1_parent_and_child_in_turns: RDMA" "exit $rc: $(tail -q -n 5 "$tmp/client" "$tmp/server")" \
  [ $rc = 0 -a "$(counted bytes.sent.tcp)$(counted bytes.received.tcp)" = 00 -a "$(packets $dev)" -gt "$before" ]
check "nothing left on $dev" "see above" none_left 20
finish
