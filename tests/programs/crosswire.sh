#!/usr/bin/env bash
# Thousands of connections with the same bytes at the same counts, 64 at a time, their ports used
# again. No end meets another connection's end. It meets none by the kernel's word nor, where that
# is not to be had, by the handshake. COUNT=1000000 is the long form.
. "$(dirname "$0")/common.sh"
need_cc
need /usr/bin/python3=python3
count=${COUNT:-$([ "$QUICK" = 1 ] && echo 2000 || echo 6000)}
tmpdir work
cc -O2 -Wall -Wextra -Werror -pthread -o "$work/crosswire" "$HERE/crosswire.c" || die "crosswire.c does not compile"
CONFINED=("$PYTHON" "$HERE/squatter.py" confined)
for m in $(modes_of "${@:-default eager}"); do
  for who in neither server client both; do
    mode "$m"
    s=() c=()
    [[ $who == neither || $who == client ]] || s=("${CONFINED[@]}")
    [[ $who == neither || $who == server ]] || c=("${CONFINED[@]}")
    rm -f "$work/port" "$work/in"
    mkfifo "$work/in"
    "${s[@]}" "${P[@]}" RSOCKET_SECCOMP=trust "$work/crosswire" serve "$work/port" <"$work/in" 2>"$work/served" &
    server=$!
    exec 7>"$work/in"
    for ((i = 0; i < 1000; i++)); do [ -s "$work/port" ] && break; nap 0.01; done
    out=$(limit $((60 + count / 50)) "${c[@]}" "${P[@]}" RSOCKET_SECCOMP=trust "$work/crosswire" ask "$(cat "$work/port")" "$count" 64 2>&1)
    echo >&7
    exec 7>&-
    wait "$server"
    check "confined: $who: $count connections" "$out $(cat "$work/served")" same "$out" "$count"
    met=$(stat_sum attached.shm "$STATS")
    [ "$m" = tcp ] || check "confined: $who: $((met / 2)) attached; $(stat_reasons "$STATS")" "" test "$met" -ge $((count * 19 / 10))
  done
done
exit $BAD
