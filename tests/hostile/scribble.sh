#!/usr/bin/env bash
# A peer with a valid attachment that writes random bytes over all memory that it shares with its
# victim. The victim neither crashes nor hangs nor touches anything beyond its buffers, and its
# other connections go on.
#
#   tests/hostile/scribble.sh [ROUNDS [SEED]]
#
# Each round has a new victim: one that has caught a peer at it attaches to no peer any more. A seed
# gives the same acts again, though not at the same moments.
. "$(dirname "$0")/../tools/common.sh"
HERE=$ROOT/tests/hostile
need_cc
tmpdir dir
cd "$dir" || exit 1
gcc -O2 -Wall -Wextra -pthread -o scribble "$HERE/scribble.c" || die "scribble.c does not compile"
rounds=${1:-$([ "$QUICK" = 1 ] && echo 4 || echo 40)}
seed=${2:-$((RANDOM * 32768 + RANDOM))}
say "seed $seed"
ms=1000
is_attached() { "$RSSTAT" -s attached -p "$1" | grep -q " attached "; }
caught=0 attached=0 crashed=0
for ((r = 0; r < rounds; r++)); do
  free_port port
  rm -f stats.*
  start victim env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$dir/stats.victim" ./scribble victim "$port" 2>victim.err
  wait_port "$port" "$victim" || die "the victim does not listen"
  start good env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$dir/stats.honest" ./scribble honest "$port" 300000 >good.out 2>good.err
  until_true 10 is_attached "$good"
  start bad env "LD_PRELOAD=$LIB" ./scribble hostile "$port" $ms $((seed + r)) >bad.out 2>bad.err
  gone_child "$bad" 60 || fail "round $r" "the hostile peer does not end"
  wait "$bad" 2>/dev/null || crashed=$((crashed + 1))
  grep -q '^hostile' bad.out || fail "round $r: hostile" "never attached: $(cat bad.err)"
  kill -TERM "$good" 2>/dev/null
  gone_child "$good" 60
  wait "$good"
  rc=$?
  [ $rc = 0 ] || fail "round $r: the honest peer" "exit $rc: $(cat good.err)"
  attached=$((attached + $(awk '$1 == "bytes.sent.shm" && $2 > 100000 { n++ } END { print n + 0 }' stats.honest)))
  # Still there, and still serving.
  ./scribble honest "$port" 50 >after.out 2>&1 || fail "round $r: the victim afterwards" "$(cat after.out victim.err)"
  kill -TERM "$victim" 2>/dev/null
  gone_child "$victim" 30 || fail "round $r: the victim" "does not end"
  wait "$victim"
  rc=$?
  [ $rc = 0 ] || fail "round $r: the victim" "exit $rc (139 is a crash, 3 is late): $(cat victim.err)"
  caught=$((caught + $(awk '$1 == "on_tcp.inconsistent" && $2 > 0 { n++ } END { print n + 0 }' stats.victim)))
  [ $BAD = 0 ] || { say "seed $((seed + r))"; break; }
done
[ $BAD = 1 ] || ok "$rounds victims lived, $caught caught their peer at it ($crashed of the peers crashed themselves)"
check "the peers did harm" "no victim noticed anything" test $((caught * 4)) -ge "$rounds"
# On a busy machine two ends may miss each other, and stay on TCP.
check "honest connections were attached meanwhile" "$attached of $rounds" test $((attached * 2)) -ge "$rounds"
exit $BAD
