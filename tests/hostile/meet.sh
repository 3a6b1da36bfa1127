#!/usr/bin/env bash
# A hostile process in the directory where ends of different network namespaces meet, of another
# user and of the victims' own. It floods the directory with names, squats, says nothing, calls at
# every process, removes names, is killed again and again. Thousands of connections are right
# meanwhile, to the byte, and the hostile process is told nothing. They are held up by no more than
# others beside it that go over TCP, and do no more for it than is said. Nothing of theirs is left,
# nor of what was killed.
#   tests/hostile/meet.sh [COUNT [eager|default]]
. "$(dirname "$0")/../programs/common.sh"
NAME=hostile-meet
. "$HERE/topology.sh"
. "$HERE/topology_crosswire.sh"
need /usr/bin/python3=python3 setpriv=util-linux
count=${1:-$([ "$QUICK" = 1 ] && echo 1500 || echo 3000)}
theirs=${2:-eager} # The victims' mode.
case $theirs in eager | default) ;; *) die "no such mode: $theirs" ;; esac
MODE=tcp
build_crosswire
[ -f "$LIB" ] || build_lib
cp "$LIB" "$work/" && LIBRARY=$work/$(basename "$LIB")

# hostile END WHAT... : it is there, at PLACE, where that end sees the directory. AS goes before it.
PLACE=/run/rsocket/meet AS=()
hostile() {
  local end=$1 ENTER
  shift
  entering "$end"
  : >"$WORK/hostile"
  start HOSTILE "${ENTER[@]}" "${AS[@]}" "$PYTHON" "$ROOT/tests/hostile/meet.py" "$PLACE" "$@" \
    >"$WORK/hostile" 2>&1
  until_true grep -q there "$WORK/hostile" || fail "hostile $*" "$(tail -3 "$WORK/hostile")"
}
# leaves NAME WHAT... : it ends, was met where it wanted to be, and was told nothing. In a flood it
# is chance whether a victim comes across the names at which it squats.
leaves() {
  finish HOSTILE TERM
  local said what word
  said=$(tail -1 "$WORK/hostile")
  for what in "${@:2}"; do
    case $what in
      squat | silent)
        [[ " $* " == *" flood "* ]] && continue
        word=visitors
        ;;
      visit) word=visits ;;
      *) continue ;;
    esac
    check "$1: $what has $word" "$said" grep -q "$word [1-9]" "$WORK/hostile"
  done
  check "$1: $said" "$said" grep -q ' told 0 ' "$WORK/hostile"
}

# attack NAME END LEAST WHAT... : LEAST of a hundred connections attach all the same. Others go over
# TCP at the same time, beside the same neighbour.
attack() {
  local name=$1 end=$2 least=$3 met
  shift 3
  hostile "$end" "$@"
  MODE=$theirs
  beside "$name, beside it" "$count" victims "$name" "$count"
  met=$(have_attached)
  check "$name: $((met * 100 / count)) of 100 attached; $(why)" "$met did" \
    test "$met" -ge $((least * count / 100))
  # They are short: most of their time is that of meeting, for each by itself.
  check "$name: $TOOK ms, over TCP $TCP_TOOK ms" "slower" test "$TOOK" -le $((TCP_TOOK * 3 + 5000))
  works "$name"
  leaves "$name" "$@"
}
# works NAME : what is done for what the neighbour puts there. A look is for 256 names; beyond them
# one name in 2.5 microseconds is looked at, but for the first look of each thread. One offer in
# vain is followed by another one, 24 times at most.
works() {
  local names calls knocks most
  names=$(stat_sum attach.names "$STATS/A") calls=$(stat_sum attach.calls "$STATS/A")
  knocks=$(stat_sum attach.knocks "$STATS/A")
  most=$((64 * 2048 + knocks * 256 + TOOK * 400))
  check "$1: $((names / count)) names looked at for a connection" "$names, $most may be" \
    test "$names" -le $most
  check "$1: $((calls * 10 / count)) calls for ten connections" "$calls" \
    test "$calls" -le $((24 * count))
}

topology all || { say "SKIP $NAME: no namespaces here"; exit 0; }
tmpdir STATS
more_ports
attack "nobody" M 90
check "nobody: nothing is left" "$(ls "$MEET")" test -z "$(ls "$MEET")"
# The names are made by the end that connects: its user is that of B.
for end in M B; do
  whose=$([ $end = M ] && echo "another user" || echo "the same user")
  attack "$whose, visit" $end 60 visit
  # A squatter that answers wrongly at many names uses up what a process bears: the rest is TCP's.
  attack "$whose, squat" $end 0 squat visit
  find "$MEET" -mindepth 1 -delete
  attack "$whose, silent" $end 0 silent
  find "$MEET" -mindepth 1 -delete
  attack "$whose, flood" $end 0 flood squat visit
  find "$MEET" -mindepth 1 -delete
done
attack "the same user, remove" B 0 remove
attack "another user, remove" M 60 remove
# Killed at any moment, and another one comes.
MODE=$theirs
(
  trap - EXIT INT TERM
  while sleep 0.2; do
    kill -KILL -- "-$(cat "$WORK/now" 2>/dev/null)" 2>/dev/null
    hostile M squat visit
    # Whole at once: a shell that is killed in between leaves the file of before.
    echo "$HOSTILE" >"$WORK/next" && mv "$WORK/next" "$WORK/now"
  done
) >"$WORK/killing" 2>&1 &
killer=$!
watch $killer
until_true test -s "$WORK/now"
victims "killed again and again" "$count"
{ kill -KILL $killer && wait $killer; } 2>/dev/null
kill -KILL -- "-$(cat "$WORK/now")" 2>/dev/null
check "killed again and again: it was there" "$(cat "$WORK/killing")" test -s "$WORK/now"
unmake

# Names whose owner was killed stay. Root's processes take them away, when they are old enough.
MODE=tcp
topology net || die "no namespaces here"
MODE=$theirs PLACE=$MEET AS=(setpriv --reuid=65533 --regid=65533 --clear-groups)
hostile M few
stop "$HOSTILE" KILL 2>/dev/null
left=$(ls "$MEET" | wc -l)
sleep 31
victims "after its end" 400
now=$(ls "$MEET" | wc -l)
check "after its end: $left names were left, $now are" "" \
  test "$left" -ge 60 -a "$now" -le $((left / 20))
unmake
exit $BAD
