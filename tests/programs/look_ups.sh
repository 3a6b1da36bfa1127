#!/usr/bin/env bash
# How often an end that cannot attach asks which process has the other end (a netlink socket each
# time). It asks a bounded number of times, however often the program looks, in every mode; and it
# says why.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
SQUAT=("$PYTHON" "$HERE/squatter.py")
MOST=${MOST:-40}

# counted NAME DIR : the most of that counter in one process.
counted() { cat "$2"/* 2>/dev/null | awk -v n="$1" '$1 == n && $2 > m { m = $2 } END { print m + 0 }'; }

# pair NAME REASON SERVER... -- CLIENT... (@ is the port): both look for six seconds. Each end asks
# a few times, and one at least counts REASON.
pair() {
  local name=$1 reason=$2 server=() said asked
  shift 2
  while [ "$1" != -- ]; do server+=("$1"); shift; done
  shift
  rm -f "$STATS"/*
  free_port port
  start SERVER "${server[@]/#@/$port}" >"$out/server" 2>&1
  wait_port "$port" "$SERVER" || { fail "$name" "no server: $(cat "$out/server")"; return; }
  said=$(limit 30 "${@/#@/$port}" 2>&1)
  gone_child "$SERVER" 10 || stop "$SERVER"
  asked=$(counted attach.look_ups "$STATS")
  check "$name: asked $asked times" "$said, $asked look-ups" test "$asked" -ge 1 -a "$asked" -le "$MOST"
  check "$name: $reason" "$said, $(stat_reasons "$STATS")" test "$(counted "on_tcp.$reason" "$STATS")" -ge 1
}

tmpdir out
for MODE in $(modes_of "${@:-shm default eager}"); do
  [ "$MODE" = tcp ] && continue
  mode "$MODE"
  if [ "$MODE" = shm ]; then
    pair "a server without the library" offer_lapsed "${SQUAT[@]}" serve @ 6 -- "${P[@]}" "${SQUAT[@]}" ask @ 6
    pair "a client without the library" no_offer "${P[@]}" "${SQUAT[@]}" serve @ 6 -- "${SQUAT[@]}" ask @ 6
  fi
  pair "a name that is taken" name_taken "${P[@]}" "${SQUAT[@]}" serve @ 6 -- "${P[@]}" "${SQUAT[@]}" ask-taken @ 6
  pair "no netlink, and the program has the SYN" no_netlink "${SQUAT[@]}" confined "${P[@]}" RSOCKET_SECCOMP=trust "${SQUAT[@]}" serve-syn @ 6 -- \
    "${SQUAT[@]}" confined "${P[@]}" RSOCKET_SECCOMP=trust "${SQUAT[@]}" ask @ 6
done
exit $BAD
