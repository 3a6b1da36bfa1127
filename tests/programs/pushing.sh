#!/usr/bin/env bash
# What the accepting side sends without being asked again: many small messages have a connection
# attach, one long answer does not.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3

# pushes NUMBER SIZE CONNECTIONS MILLISECONDS : the bytes by shared memory, and those by TCP.
pushes() {
  rm -f "$STATS"/*
  limit 60 "${P[@]}" "$PYTHON" "$HERE/pushing.py" "$@" || return
  SHM=$(($(stat_sum bytes.sent.shm "$STATS") + $(stat_sum bytes.received.shm "$STATS")))
  TCP=$(($(stat_sum bytes.sent.tcp "$STATS") + $(stat_sum bytes.received.tcp "$STATS")))
}

# leaves MOST NUMBER SIZE MILLISECONDS : each of three connections leaves TCP, at the latest after
# so many messages.
leaves() {
  local name="messages of $3 bytes, $4 ms apart,"
  pushes "$2" "$3" 3 "$4" || { fail "$name" "the program failed"; return; }
  check "$name leave TCP" "$TCP bytes by TCP, $SHM not" \
    test "$TCP" -le $((6 * $1 * $3 + 18)) -a "$SHM" -gt "$TCP"
}

# stays NUMBER SIZE : none of three does.
stays() {
  local name="an answer in $1 pieces of $2 bytes"
  pushes "$1" "$2" 3 0 || { fail "$name" "the program failed"; return; }
  check "$name stays" "$SHM bytes not by TCP" test "$SHM" -eq 0 -a "$TCP" -ge $((6 * $1 * $2))
}

mode default
leaves 50 200 64 5
leaves 50 200 1000 5
# As fast as they are read, for a quarter of a second or more.
leaves 25000 60000 64 0
stays 128 16384
stays 32 65536
exit $BAD
