#!/usr/bin/env bash
# A hostile process of another user in the directory to meet in: it fills it, squats, says nothing,
# guesses, repeats, calls at everybody, and is killed. No byte and no descriptor goes to it, every
# byte of its neighbours' arrives, they are not held up, and nothing is left when it has gone.
. "$(dirname "$0")/../programs/common.sh"
HERE=$ROOT/tests/programs
. "$HERE/bridge.sh"
need_cc
need ip=iproute2 nft=nftables /usr/bin/python3=python3 setpriv=util-linux
on_exit() { cleanup; remove_bridge; }
MODE=tcp
if ! bridge; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
count=${COUNT:-400}
tmpdir work
tmpdir place
chmod 755 "$work"
chmod 1777 "$place"
cc -O2 -Wall -Wextra -Werror -pthread -o "$work/crosswire" "$HERE/crosswire.c" || die "crosswire.c does not compile"

# asked WHAT : connections from $B to $A, 16 at a time; sets ATTACHED and MS, which it took.
asked() {
  local server out began
  rm -f "$work/port" "$work/in" "$STATS"/*
  mkfifo "$work/in"
  in_ "$A" "${P[@]}" RSOCKET_MEET="$place" ADDRESS=10.78.0.2 PORT=80 "$work/crosswire" serve "$work/port" <"$work/in" 2>"$work/served" &
  server=$!
  exec 7>"$work/in"
  for ((i = 0; i < 1000; i++)); do [ -s "$work/port" ] && break; sleep 0.01; done
  began=$(date +%s%3N)
  out=$(limit 120 "${AS[@]}" ip netns exec "$B" "${P[@]}" RSOCKET_MEET="$place" ADDRESS=10.78.0.2 "$work/crosswire" ask 80 "$count" 16 2>&1)
  MS=$(($(date +%s%3N) - began))
  echo >&7
  exec 7>&-
  wait "$server"
  check "$1: $count connections" "$out $(cat "$work/served")" same "$out" "$count"
  ATTACHED=$(($(stat_sum attached.shm "$STATS") / 2))
}
mode tcp
chmod 1777 "$STATS"
asked "by TCP"
tcp=$MS
mode eager
chmod 1777 "$STATS"
asked "alone"
check "alone: $ATTACHED attached in $MS ms, $tcp over TCP" "" test "$ATTACHED" -ge $((count * 9 / 10))
for what in fill squat silent call; do
  start neighbour "${AS[@]}" setpriv --reuid=65533 --regid=65533 --clear-groups /usr/bin/python3 "$ROOT/tests/hostile/neighbour.py" "$place" "$what" >"$work/said" 2>&1
  neighbour=$!
  for ((i = 0; i < 500; i++)); do grep -q ready "$work/said" && break; sleep 0.02; done
  check "$what: it is there" "$(cat "$work/said")" grep -q ready "$work/said"
  asked "$what"
  # It may keep its neighbours from meeting; then they are what they are without the directory.
  check "$what: $ATTACHED attached in $MS ms, $tcp over TCP" "" test "$MS" -le $((3 * tcp + 2000))
  as_root kill -TERM "$neighbour"
  wait "$neighbour"
  told=$(grep told "$work/said")
  check "$what: it got no descriptor (${told:-killed})" "$(cat "$work/said")" test -n "$told" -a -z "${told##*descriptors 0}"
  as_root find "$place" -mindepth 1 -delete
done

# It was killed, and its names are there; so is a name of a process that we killed.
start neighbour "${AS[@]}" setpriv --reuid=65533 --regid=65533 --clear-groups /usr/bin/python3 "$ROOT/tests/hostile/neighbour.py" "$place" few >"$work/said" 2>&1
neighbour=$!
for ((i = 0; i < 500; i++)); do grep -q ready "$work/said" && break; sleep 0.02; done
as_root kill -KILL "$neighbour"
wait "$neighbour" 2>/dev/null
left=$(ls "$place" | wc -l)
sleep 31
asked "after its end"
now=$(ls "$place" | wc -l)
check "after its end: $left names were left, $now are" "" test "$left" -ge 60 -a "$now" -le $((left / 20))
exit $BAD
