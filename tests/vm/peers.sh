#!/usr/bin/env bash
# Peers that break the protocol, one rule each (peer.c), against a server under our preload library
# and one on our librsocket. Each must be refused or thrown out. An honest peer that comes at the
# same time must be served, and one that was there all the time must notice nothing. Nothing may be
# left behind.
. "$(dirname "$0")/guest.sh"
helper ECHO echo
helper RECHO echo-rsockets
helper PEER peer
OURS=$TARGET/release/librsocket.so
tmpdir tmp
port=7900
P=(env "LD_PRELOAD=$LIB" RSOCKET_TRANSPORT=rdma RSOCKET_LOG=info)

# misbehave MISDEED... : against the server that listens.
misbehave() {
  local misdeed rc honest
  for misdeed in "$@"; do
    start honest "${P[@]}" "$ECHO" client "$addr" "$crowd" 20000 >"$tmp/honest" 2>&1
    at=$crowd
    [ "$misdeed" = too-many ] && at=$mute
    { limit 40 "$PEER" "$addr" "$at" "$misdeed"; } >"$tmp/peer" 2>"$tmp/peer.err"
    rc=$?
    # Its own signal.
    [ "$misdeed" = die-in-the-middle ] && [ $rc = 137 ] && rc=0
    if ! gone_child "$honest" 20 || ! wait "$honest"; then
      fail "$who: $misdeed" "an honest peer suffers: $(tail -n 3 "$tmp/honest")"
      stop "$honest" KILL
    elif [ $rc != 0 ]; then fail "$who: $misdeed" "exit $rc: $(tail -q -n 3 "$tmp/peer" "$tmp/peer.err")"
    elif ! alive "$server"; then :
    else ok "$who: $misdeed ($(tail -n 1 "$tmp/peer" | grep . || echo died))"; fi
    alive "$server" && continue
    wait "$server"
    fail "$who: $misdeed" "the server is gone ($?): $(tail -n 5 "$tmp/server")"
    return
  done
}

# against NAME DEVICE MISDEED... : a server of that kind.
against() {
  local kind=$1 dev=$2 server silent steady rc run=()
  shift 2
  who="$kind on $dev" addr=$(address "$dev")
  port=$((port + 2)) crowd=$port mute=$((port + 1))
  case $kind in
    preload) run=("${P[@]}" "$ECHO") ;;
    librsocket) run=(env "LD_PRELOAD=$OURS" RSOCKET_LOG=info "$RECHO") ;;
  esac
  start server "${run[@]}" crowd "$addr" $crowd 0 >"$tmp/server" 2>&1
  start silent "${run[@]}" mute "$addr" $mute 0 >"$tmp/mute" 2>&1
  if ! wait_listen $crowd "$server" 20 || ! wait_listen $mute "$silent" 20; then
    fail "$who" "no server: $(tail -q -n 3 "$tmp/server" "$tmp/mute")"
    stop "$server"
    stop "$silent"
    return
  fi
  start steady "${P[@]}" "$ECHO" steady "$addr" $crowd 500 >"$tmp/steady" 2>&1
  misbehave "$@"
  if alive "$steady"; then ok "$who: the steady peer"; else fail "$who: the steady peer" "$(tail -n 3 "$tmp/steady")"; fi
  # What the servers hold now is for the steady peer alone.
  stop "$steady" KILL
  check "$who: the server has let go" "$(qps) queue pairs" let_go
  stop "$server" || fail "$who" "the server does not end"
  stop "$silent" || fail "$who" "the mute server does not end"
  check "$who: nothing left" "see above" none_left 10
}
let_go() {
  local end=$((SECONDS + 25))
  while [ $SECONDS -le $end ]; do
    [ "$(qps)" = 0 ] && return
    nap 0.2
  done
  return 1
}

mapfile -t all < <("$PEER" list)
few=(version no-credits table-elsewhere table-elsewhere table-elsewhere reserved-3 data-beyond outside unmap-nothing next-door too-many die-in-the-middle)
if [ "$QUICK" = 1 ]; then
  against preload rxe0 version table-elsewhere reserved-3 next-door too-many die-in-the-middle
  against librsocket siw0 no-credits data-beyond outside unmap-nothing next-door
else
  against preload rxe0 "${all[@]}"
  against librsocket rxe0 "${few[@]}"
  against preload siw0 "${all[@]}"
  against librsocket siw0 "${few[@]}"
fi
finish
