#!/usr/bin/env bash
# A hostile process of another user in the directory to meet in: it fills it, squats, says nothing,
# guesses, repeats, calls at everybody, and is killed. No byte and no descriptor goes to it, every
# byte of its neighbours' arrives, they are not held up, and nothing is left when it has gone.
. "$(dirname "$0")/../programs/common.sh"
. "$HERE/topology.sh"
. "$HERE/topology_crosswire.sh"
need /usr/bin/python3=python3 setpriv=util-linux
MODE=tcp
[ -f "$LIB" ] || build_lib
LIBRARY=$LIB
if ! topology net; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
count=${COUNT:-400}
build_crosswire

# asked WHAT : connections of the ends on one bridge, 16 at a time; sets ATTACHED and TOOK.
asked() {
  path bridge A 4 8080
  alike "$1" "$count" 16
  [ "$MODE" = tcp ] || ATTACHED=$(have_attached)
}
# hostile WHAT : it is there, as another user. leaves SIGNAL : and no more.
hostile() {
  : >"$WORK/hostile"
  start HOSTILE setpriv --reuid=65533 --regid=65533 --clear-groups \
    "$PYTHON" "$ROOT/tests/hostile/neighbour.py" "$MEET" "$1" >"$WORK/hostile" 2>&1
  until_true grep -q ready "$WORK/hostile"
  check "$1: it is there" "$(cat "$WORK/hostile")" grep -q ready "$WORK/hostile"
}
leaves() { stop "$HOSTILE" "$1" 20 2>/dev/null; }
tmpdir STATS
asked "by TCP"
tcp=$TOOK
MODE=eager
asked "alone"
check "alone: $ATTACHED attached in $TOOK ms, $tcp over TCP" "" \
  test "$ATTACHED" -ge $((count * 9 / 10))
for what in fill squat silent call; do
  hostile "$what"
  asked "$what"
  # It may keep its neighbours from meeting; then they are what they are without the directory.
  check "$what: $ATTACHED attached in $TOOK ms, $tcp over TCP" "" \
    test "$TOOK" -le $((3 * tcp + 2000))
  leaves TERM
  told=$(grep told "$WORK/hostile")
  check "$what: it got no descriptor (${told:-killed})" "$(cat "$WORK/hostile")" \
    test -n "$told" -a -z "${told##*descriptors 0}"
  find "$MEET" -mindepth 1 -delete
done

# It was killed, and its names are there; so is a name of a process that we killed.
hostile few
leaves KILL
left=$(ls "$MEET" | wc -l)
sleep 31
asked "after its end"
now=$(ls "$MEET" | wc -l)
check "after its end: $left names were left, $now are" "" \
  test "$left" -ge 60 -a "$now" -le $((left / 20))
unmake
exit $BAD
