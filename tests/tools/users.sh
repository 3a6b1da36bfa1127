#!/usr/bin/env bash
# What another user of the same host can do to a connection: read nothing of it, and neither attach
# to it nor take its place.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3 setpriv=util-linux
if [ "$(id -u)" != 0 ]; then
  say "SKIP $NAME all of it: only root can be two other users"
  exit 0
fi
tmpdir dir
cd "$dir" || exit 1
# The library and the tools where every user may read them, the files where processes of any user
# put them by themselves.
mkdir lib && cp "$LIB" "$RSRUN" "$RSSTAT" lib/ && cp "$HERE/talk.py" lib/ && cp "$ROOT/tests/hostile/knock.py" lib/ && chmod -R a+rX lib
unset XDG_RUNTIME_DIR
TALK=("$PYTHON" "$dir/lib/talk.py")
alice=() mallory=()
as() { echo "setpriv --reuid=$1 --regid=$1 --clear-groups"; }
read -ra alice <<<"$(as 4711)"
read -ra mallory <<<"$(as 4712)"
mine=/dev/shm/rsocket-4711
rm -rf $mine /dev/shm/rsocket-4712
trap 'rm -rf /dev/shm/rsocket-4711 /dev/shm/rsocket-4712; on_exit' EXIT

serve server "${alice[@]}" lib/rsrun -S "$dir/stats.server"
converse client "${alice[@]}" lib/rsrun
check "the user's own connection" "$("${alice[@]}" lib/rsstat)" test "$("${alice[@]}" lib/rsstat | grep -c attached)" = 2
check "root sees it" "" test "$(lib/rsstat -P "$port" | grep -c attached)" = 2
check "another user does not" "$("${mallory[@]}" lib/rsstat)" test "$("${mallory[@]}" lib/rsstat)" = "no rsockets"
for f in "$mine" "$mine/$client.live"; do
  "${mallory[@]}" cat "$f" >read 2>&1
  check "cannot read ${f##*/}" "$(head -c 100 read)" grep -q "Permission denied" read
done
"${mallory[@]}" rm -rf "$mine" 2>/dev/null
check "cannot remove it" "$(ls $mine)" test -e "$mine/$client.live"
check "cannot open its shared memory" "" test -z "$("${mallory[@]}" sh -c "ls /proc/$client/fd /proc/$client/map_files 2>/dev/null")"
leave "$client"

# Another user's directory in our place: no file, and the program runs.
rm -rf $mine && "${mallory[@]}" mkdir -m 777 $mine
converse client "${alice[@]}" lib/rsrun -S "$dir/stats.planted"
check "a planted directory is not used" "$(ls -la $mine)" test -z "$(ls $mine)"
check "root does not believe what is in it" "$(lib/rsstat -p 1)" test -z "$("${mallory[@]}" sh -c "head -c 9000 /dev/zero >$mine/1.live"; lib/rsstat -p 1 | grep -v '^no rsockets')"
leave "$client"
check "and the connection attaches" "$(cat stats.planted)" grep -Eq '^attached.shm 1' stats.planted
"${mallory[@]}" rm -rf $mine
rm -rf $mine

# attacked FILE WHAT PREFIX... : clients of $port, six of them at least, and until the attacker that
# reports into FILE has been quick enough to knock at one. $rounds says how many.
attacked() {
  local file=$1 what=$2
  shift 2
  for ((rounds = 0; rounds < 60; )); do
    rounds=$((rounds + 1))
    limit 60 "$@" "${TALK[@]}" talk "$port" 300 3000 >out 2>&1
    check "$what, round $rounds: every byte arrives" "$(cat out)" grep -q done out
    [ $rounds -lt 6 ] || ! grep -q knocking "$file" || break
  done
}

# Another user knocks at every offer, faster than the peer that is meant, and says the right things.
# Or it takes the names of offers to come.
knocked() { awk '$1 == "attach.strangers" { s += $2 } END { print s + 0 }' stats.knocked; }
for transport in shm,tcp shm; do
  stop "$server"
  serve server "${alice[@]}" lib/rsrun -t "$transport"
  start attacker "${mallory[@]}" "$PYTHON" lib/knock.py knock "$port" >knocked 2>&1
  until_true 20 grep -q watching knocked
  rm -f stats.knocked
  attacked knocked "$transport, knocked at" "${alice[@]}" lib/rsrun -t "$transport" -S "$dir/stats.knocked"
  stop "$attacker" INT
  check "$transport: no welcome for a stranger" "$(cat knocked)" grep -Eq '^knocks [1-9][0-9]* welcomes 0$' knocked
  check "$transport: and each connection attaches" "$(grep -v ' 0$' stats.knocked)" \
    test "$(grep -c '^attached.shm 1' stats.knocked)" = "$rounds"
  say "($transport: $(tail -1 knocked); strangers sent away: $(knocked))"
done
stop "$server"
serve server "${alice[@]}" lib/rsrun

free_port from
start attacker "${mallory[@]}" "$PYTHON" lib/knock.py squat "$from" "$port" >squat 2>&1
until_true 30 grep -q squatting squat
limit 60 "${alice[@]}" env TALK_FROM="$from" lib/rsrun -S "$dir/stats.squat" "${TALK[@]}" talk "$port" 300 3000 >out 2>&1
check "its names taken: every byte arrives" "$(cat out)" grep -q done out
check "by TCP" "$(grep -v ' 0$' stats.squat)" grep -Eq '^bytes.sent.shm 0' stats.squat
check "which says so" "$(grep -v ' 0$' stats.squat)" grep -Eq '^on_tcp.name_taken 1' stats.squat
stop "$attacker" INT
check "and nobody told the squatter anything" "$(cat squat)" grep -Eq 'told 0$' squat
stop "$server"

# Where neither end may ask the kernel which process has the other one, any process may come and try
# to prove that it has. So may one of the same user.
cp "$ROOT/tests/programs/squatter.py" lib/ && chmod a+r lib/squatter.py
CONFINED=("$PYTHON" "$dir/lib/squatter.py" confined env RSOCKET_SECCOMP=trust)
refuted() { awk '$1 == "on_tcp.no_evidence" || $1 == "on_tcp.no_offer" || $1 == "on_tcp.offer_lapsed" { s += $2 } END { print s + 0 }' stats.proved; }
shm() { awk '$1 == "bytes.sent.shm" { s += $2 } END { print s + 0 }' "$1"; }
serve server "${alice[@]}" "${CONFINED[@]}" lib/rsrun
limit 60 "${alice[@]}" "${CONFINED[@]}" lib/rsrun -S "$dir/stats.alone" "${TALK[@]}" talk "$port" 300 3000 >out 2>&1
check "confined, alone: every byte arrives" "$(cat out)" grep -q done out
check "confined, alone: it attaches" "$(grep -v ' 0$' stats.alone)" test "$(shm stats.alone)" -gt 500000
for who in mallory alice; do
  declare -n attacks=$who
  start attacker "${attacks[@]}" "$PYTHON" lib/knock.py prove "$port" >proved 2>&1
  until_true 20 grep -q watching proved
  rm -f stats.proved
  attacked proved "confined, $who knocks" "${alice[@]}" "${CONFINED[@]}" lib/rsrun -S "$dir/stats.proved"
  stop "$attacker" INT
  check "confined: no welcome for $who" "$(cat proved)" grep -Eq '^knocks [1-9][0-9]* welcomes 0$' proved
  check "confined: each connection attaches, or says why not" "$(grep -v ' 0$' stats.proved)" \
    test "$(($(grep -c '^attached.shm 1' stats.proved) + $(refuted)))" = "$rounds"
  say "(confined, $who: $(tail -1 proved); attached: $(grep -c '^attached.shm 1' stats.proved) of $rounds)"
  free_port from
  start attacker "${attacks[@]}" "$PYTHON" lib/knock.py answer "$from" "$port" >squat 2>&1
  until_true 30 grep -q squatting squat
  limit 60 "${alice[@]}" env TALK_FROM="$from" "${CONFINED[@]}" lib/rsrun -S "$dir/stats.squat" "${TALK[@]}" talk "$port" 300 3000 >out 2>&1
  check "confined, $who has its name: every byte arrives" "$(cat out)" grep -q done out
  check "confined, $who has its name: by TCP" "$(grep -v ' 0$' stats.squat)" grep -Eq '^bytes.sent.shm 0' stats.squat
  stop "$attacker" INT
  check "confined: $who is told nothing but an element" "$(cat squat)" grep -Eq '^answered [1-9][0-9]* told 0$' squat
done
limit 60 "${alice[@]}" "${CONFINED[@]}" lib/rsrun -S "$dir/stats.after" "${TALK[@]}" talk "$port" 300 3000 >out 2>&1
check "confined, when they have gone: every byte arrives" "$(cat out)" grep -q done out
check "confined, when they have gone: it attaches" "$(grep -v ' 0$' stats.after)" test "$(shm stats.after)" -gt 500000
stop "$server"

# A server that changes its user between accept and the first bytes. To the other end it is a
# stranger until it proves that it is not.
serve server env TALK_AS=4711 lib/rsrun
limit 60 lib/rsrun -S "$dir/stats.other" "${TALK[@]}" talk "$port" 600 3000 >out 2>&1
check "another user by now: every byte arrives" "$(cat out)" grep -q done out
check "another user by now: it attaches" "$(grep -v ' 0$' stats.other)" test "$(shm stats.other)" -gt 1000000
start attacker "${mallory[@]}" "$PYTHON" lib/knock.py prove "$port" >proved 2>&1
until_true 20 grep -q watching proved
limit 60 lib/rsrun "${TALK[@]}" talk "$port" 600 3000 >out 2>&1
check "another user by now, proved at: every byte arrives" "$(cat out)" grep -q done out
stop "$attacker" INT
check "another user by now, proved at: no welcome for a stranger" "$(cat proved)" grep -Eq ' welcomes 0$' proved
stop "$server"
# Ends that need no proof hear no other process for long.
serve server "${alice[@]}" lib/rsrun
start attacker "${mallory[@]}" "$PYTHON" lib/knock.py prove "$port" >proved 2>&1
until_true 20 grep -q watching proved
rm -f stats.other
attacked proved "proved at" "${alice[@]}" lib/rsrun -S "$dir/stats.other"
stop "$attacker" INT
check "proved at: no welcome for a stranger" "$(cat proved)" grep -Eq '^knocks [1-9][0-9]* welcomes 0$' proved
check "proved at: each connection attaches" "$(grep -v ' 0$' stats.other)" test "$(grep -c '^attached.shm 1' stats.other)" = "$rounds"
stop "$server"

# A server's port: another user cannot listen where ours does.
serve server "${alice[@]}" lib/rsrun
said=$("${mallory[@]}" lib/rsrun "$PYTHON" -c "import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1); s.bind(('127.0.0.1', $port)); s.listen()" 2>&1)
check "a port that is ours cannot be captured" "$said" has "$said" "Address already in use"
stop "$server"
exit $BAD
