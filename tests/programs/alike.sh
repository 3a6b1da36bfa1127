#!/usr/bin/env bash
# Connections that say the same, but for a seed in the last message, 64 at a time, through a
# rewritten destination and a rewritten source. They come from so few ports that each is used again
# as soon as the kernel allows, or a second later (`late`). No byte comes to another connection,
# whatever becomes of the SYNs.
# Says how many connections attached, were ambiguous (the visitor proved nothing), or lapsed (no
# visitor came in time). Says how many did not know their handshake (a SYN may have been lost), and
# how many a second there were.
#
#   COUNT=1000000 tests/programs/alike.sh [-c CASE,...] [MODE...]
#
# Cases: undisturbed. lost: one SYN in ten. late: each by up to 20 ms, one in twenty by so much that
# the kernel has sent another one. netem: every packet is late, and some are lost.
. "$(dirname "$0")/common.sh"
. "$HERE/topology.sh"
. "$HERE/topology_crosswire.sh"
need /usr/bin/python3=python3 iptables
cases=undisturbed,lost,late,netem
while getopts c: o; do
  case $o in c) cases=$OPTARG ;; *) exit 2 ;; esac
done
shift $((OPTIND - 1))
MODE=tcp
[ -f "$LIB" ] || build_lib
LIBRARY=$LIB
build_crosswire
count=${COUNT:-$([ "$QUICK" = 1 ] && echo 1000 || echo 4000)}

undisturbed() { outcomes undisturbed 99; }
lost() {
  in_router nft -f - <<'NFT' || { fail lost "no such rules here"; return; }
table ip loss {
  chain syns { type filter hook forward priority 0;
    tcp flags & (syn|ack) == syn numgen random mod 10 0 counter drop;
  }
}
NFT
  outcomes lost 80
  check "lost: some were" "none" eval \
    'in_router nft list table ip loss | grep -q "counter packets [1-9]"'
}
# A port that is free at once may send its next SYN before the other end's FIN has come. The router
# takes a SYN that it holds back for one of the old connection, and rewrites nothing that follows:
# the new connection is reset, whatever carries its bytes. So a port rests for a second here.
late() {
  PORTS=2048
  ports $PORTS $PORTS
  if ! late_syns 20 20; then
    say "SKIP $NAME $MODE late: no queue of packets here"
    return
  fi
  outcomes late 80
  on_time_again
  check "late: some were" "$(cat "$WORK/late")" grep -q 'late [1-9].* overtaken [1-9]' "$WORK/late"
}
netem() {
  if ! in_router tc qdisc add dev pA root netem delay 3ms 2ms loss 1% 2>/dev/null; then
    say "SKIP $NAME $MODE netem: the kernel has none"
    return
  fi
  outcomes netem 80
}

# outcomes WHAT LEAST : LEAST of a hundred connections attach, and nearly as many at the end that
# accepts. The other end may close before it has read the answer.
outcomes() {
  local asked served
  victims "$1" "$count"
  check "$1: no name is left" "$(ls "$MEET")" test -z "$(ls "$MEET")"
  say "   $1: $((count * 1000 / (TOOK + 1))) a second, each port about $((count / PORTS)) times"
  [ "$MODE" != tcp ] || return 0
  asked=$(outcome B) served=$(outcome A)
  check "$1: connecting: $asked" "$(why)" test "$(attached_at B)" -ge $((count * $2 / 100))
  check "$1: accepting: $served" "$(why)" test "$(attached_at A)" -ge $((count * ($2 - 1) / 100))
}

for MODE in $(modes_of "${@:-eager default}"); do
  for c in ${cases//,/ }; do
    case $c in undisturbed | lost | late | netem) ;; *) die "no such case: $c" ;; esac
    topology net || { say "SKIP $NAME: no network namespaces here"; exit 0; }
    if [ "$NAT" = 0 ]; then
      say "SKIP $NAME: no address translation here"
      exit 0
    fi
    tmpdir STATS
    PORTS=256
    few_ports $PORTS
    "$c"
    unmake
  done
done
exit $BAD
