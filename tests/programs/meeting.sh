#!/usr/bin/env bash
# Ends in two network namespaces, which see one directory: on a bridge, behind a router that rewrites
# the destination and the source, by hairpin, in pid, user and time namespaces of their own. Thousands of
# connections with the same bytes at the same counts: no end meets another connection's, and 95 of
# 100 attach. Without the directory, or without timestamps, they stay on TCP.
. "$(dirname "$0")/common.sh"
. "$HERE/bridge.sh"
need_cc
need ip=iproute2 nft=nftables unshare=util-linux sysctl=procps
on_exit() { cleanup; remove_bridge; }
MODE=tcp
if ! bridge; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
nat
count=${COUNT:-$([ "$QUICK" = 1 ] && echo 1000 || echo 4000)}
tmpdir work
tmpdir place
chmod 1777 "$place"
chmod 755 "$work"
cc -O2 -Wall -Wextra -Werror -pthread -o "$work/crosswire" "$HERE/crosswire.c" || die "crosswire.c does not compile"

# asked WANT MEET WHAT LISTENS-AT NAMESPACE ADDRESS PORT [PREFIX...] : connections to $A, 64 at a time.
#   shm: 95 of 100 attach; tcp: none
asked() {
  local want=$1 meet=$2 what=$3 at=$4 from=$5 to=$6 port=$7 server out
  shift 7
  rm -f "$work/port" "$work/in"
  mkfifo "$work/in"
  rm -f "$STATS"/*
  in_ "$A" "${P[@]}" RSOCKET_MEET="$meet" ADDRESS="$at" PORT=80 "$work/crosswire" serve "$work/port" <"$work/in" 2>"$work/served" &
  server=$!
  exec 7>"$work/in"
  for ((i = 0; i < 1000; i++)); do [ -s "$work/port" ] && break; sleep 0.01; done
  out=$(limit $((60 + count / 50)) "${AS[@]}" ip netns exec "$from" "$@" "${P[@]}" RSOCKET_MEET="$meet" ADDRESS="$to" "$work/crosswire" ask "$port" "$count" 64 2>&1)
  echo >&7
  exec 7>&-
  wait "$server"
  check "$what: $count connections" "$out $(cat "$work/served")" same "$out" "$count"
  check "$what: no name is left" "$(ls "$place")" test -z "$(ls "$place")"
  [ "$MODE" = tcp ] && return
  local attached seen
  attached=$(stat_sum attached.shm "$STATS")
  seen="$((attached / 2)) attached; $(stat_reasons "$STATS")"
  case $want in
    shm) check "$what: $seen" "" test "$attached" -ge $((count * 19 / 10)) ;;
    tcp) check "$what: $seen" "" test "$attached" = 0 ;;
  esac
}
for m in $(modes_of "${@:-tcp eager default}"); do
  mode "$m"
  chmod 1777 "$STATS"
  asked shm "$place" "on a bridge" 10.78.0.2 "$B" 10.78.0.2 80
  asked shm "$place" "on a bridge, IPv6" fd78::2 "$B" fd78::2 80
  asked shm "$place" "IPv4 at a listener for both" :: "$B" 10.78.0.2 80
  if [ $NAT = 1 ]; then
    asked shm "$place" "destination and source rewritten" 10.78.0.2 "$B" 10.78.0.1 8080
    asked shm "$place" "hairpin" 10.78.0.2 "$A" 10.78.0.1 8080
  else say "SKIP $NAME: no address translation here"; fi
  asked shm "$place" "pids of one's own" 10.78.0.2 "$B" 10.78.0.2 80 unshare --pid --mount-proc --fork
  asked shm "$place" "users of one's own" 10.78.0.2 "$B" 10.78.0.2 80 unshare --user --map-root-user --pid --mount-proc --fork
  asked shm "$place" "another user" 10.78.0.2 "$B" 10.78.0.2 80 setpriv --reuid=65533 --regid=65533 --clear-groups
  if "${AS[@]}" unshare -T --monotonic 86400 true 2>/dev/null; then
    asked shm "$place" "a clock of one's own" 10.78.0.2 "$B" 10.78.0.2 80 unshare -T --monotonic 86400 --fork
  else say "SKIP $NAME: no time namespaces here"; fi
  asked tcp "" "without a directory" 10.78.0.2 "$B" 10.78.0.2 80
  in_ "$B" sysctl -qw net.ipv4.tcp_timestamps=0
  asked tcp "$place" "without timestamps" 10.78.0.2 "$B" 10.78.0.2 80
  in_ "$B" sysctl -qw net.ipv4.tcp_timestamps=1
done
exit $BAD
