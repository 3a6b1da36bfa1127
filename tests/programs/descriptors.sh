#!/usr/bin/env bash
# How many descriptors a program may have. Above its soft limit the library's take nothing from it;
# where soft and hard limit meet, all but a few give way. Everything that closes descriptors, or
# lists them, or starts a program, is as without the library.
. "$(dirname "$0")/common.sh"
need_cc
need /usr/bin/python3=python3
tmpdir work
cc -O2 -Wall -Wextra -Werror -o "$work/inherit" "$HERE/inherit.c" || die "inherit.c does not compile"

# client WHAT SOFT HARD : of a server that forks for each connection, so that each has another peer.
client() {
  limit 200 "${P[@]}" "$PYTHON" "$HERE/descriptors.py" "$1" "$port" "$2" "$3" 2>&1
}
# counts SOFT HARD LESS : as many connections and files as over TCP; LESS fewer connections are
# enough.
counts() {
  local name="limits $1 and $2" out connections files
  out=$(client count "$1" "$2")
  connections=$(sed -n 's/ connections, then Too many open files//p' <<<"$out")
  files=$(sed -n 's/ files, then Too many open files//p' <<<"$out")
  if [ "$MODE" = tcp ]; then
    OVER_TCP[$1]=$connections FILES[$1]=$files
    check "$name: $connections connections" "$out" test "${connections:-0}" -gt $(($1 - 20))
  else
    check "$name: $connections connections, ${OVER_TCP[$1]} over TCP" "$out $(stat_reasons "$STATS")" \
      test "${connections:-0}" -ge $((${OVER_TCP[$1]} - $3))
    check "$name: $files files, ${FILES[$1]} over TCP" "$out" \
      test "${files:-0}" -ge $((${FILES[$1]} - $3))
  fi
  check "$name: every byte" "$out" grep -q "all bytes as sent" <<<"$out"
  check "$name: the limits stay" "$out" grep -q "limits True" <<<"$out"
}
# beside SOFT HARD LESS : files and other descriptors beside some connections, as over TCP; LESS
# fewer files are enough.
beside() {
  local name="limits $1 and $2" out files rest
  out=$(client files "$1" "$2")
  read -r files rest <<<"$out"
  if [ "$MODE" = tcp ]; then
    BESIDE[$1]=$files OTHERS[$1]=$rest
    return
  fi
  check "$name: $files files beside connections, ${BESIDE[$1]} over TCP" "$out" \
    test "${files:-0}" -ge $((${BESIDE[$1]} - $3))
  check "$name: others in their place, $rest" "not ${OTHERS[$1]}; $out" same "$rest" "${OTHERS[$1]}"
}
# says WHAT SOFT HARD LINE : prints just that, and that the limits are as they were.
says() {
  local out
  out=$(client "$1" "$2" "$3")
  check "$1, limits $2 and $3" "$out" same "$out" "$4"$'\n'"limits True"
}
declare -A OVER_TCP FILES BESIDE OTHERS
# What is right is seen over TCP.
modes=" ${*:-default eager} "
for m in tcp ${modes/ tcp / }; do
  mode "$m"
  free_port port
  start SERVER "${P[@]}" "$work/inherit" "$port" echo >"$work/log" 2>&1
  wait_port "$port" "$SERVER" || die "the server does not listen: $(tail -n 3 "$work/log")"
  counts 128 4096 0
  counts 256 256 4
  beside 128 4096 0
  beside 256 256 4
  [ "$QUICK" = 1 ] || counts 1024 2048 0
  for limits in "256 4096" "256 256"; do
    # shellcheck disable=SC2086
    set -- $limits
    says lowest "$@" True
    says close "$@" "all bytes as sent"
    says exec "$@" "as without"
  done
  stop "$SERVER" TERM
  carried
done
exit $BAD
