#!/usr/bin/env bash
# Programs that lock their memory (mlockall). What is locked and resident is what it is without the
# library, but for its code and what it uses. So it is also without CAP_IPC_LOCK, within a limit in
# which the library's mappings would have no room.
. "$(dirname "$0")/common.sh"
need_cc
need setpriv=util-linux
most=5000
tmpdir work
for f in inherit locked; do
  cc -O2 -Wall -Wextra -Werror -o "$work/$f" "$HERE/$f.c" || die "$f.c does not compile"
done
declare -A TCP
# locks NAME FLAGS WHEN : by the client whose command begins with $AS.
locks() {
  local name="$1, flags $2, $3 connections" out r error locked resident
  out=$(limit 60 "${AS[@]}" "${P[@]}" "$work/locked" "$port" "$2" "$3" 5 2>&1)
  read -r _ r error _ locked _ resident <<<"$out"
  if [ "$MODE" = tcp ]; then
    check "$name: all bytes" "$out" test "${resident:-0}" -gt 0
    TCP[$name]="$r $error $locked $resident"
    return
  fi
  # shellcheck disable=SC2086
  set -- ${TCP[$name]}
  check "$name: mlockall says the same" "$out; ${TCP[$name]}" same "$r $error" "$1 $2"
  check "$name: $locked KB locked, $3 without" "$out" \
    test "${locked:-0}" -ge "$3" -a "${locked:-99999}" -le $(($3 + most))
  check "$name: $resident KB resident, $4 without" "$out" test "${resident:-99999}" -le $(($4 + most))
  check "$name: attaches" "$(stat_reasons "$STATS")" test "$(stat_sum bytes.sent.shm "$STATS")" -gt 200000
  rm -f "${STATS:?}"/*
}
modes=" ${*:-default eager} "
for m in tcp ${modes/ tcp / }; do
  mode "$m"
  free_port port
  start SERVER "${P[@]}" "$work/inherit" "$port" echo >"$work/log" 2>&1
  wait_port "$port" "$SERVER" || die "the server does not listen: $(tail -n 3 "$work/log")"
  AS=()
  # 1 is MCL_CURRENT, 2 MCL_FUTURE, 4 MCL_ONFAULT.
  for flags in 1 2 3 5 6 7 8; do
    for when in before after; do locks privileged $flags $when; done
  done
  AS=(prlimit --memlock=8000000 setpriv "--bounding-set=-ipc_lock")
  [ "$(id -u)" = 0 ] || AS=(prlimit --memlock=8000000)
  for flags in 1 2 3 6 7; do
    for when in before after; do locks "8 MB" $flags $when; done
  done
  stop "$SERVER" TERM
done
exit $BAD
