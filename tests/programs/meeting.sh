#!/usr/bin/env bash
# Ends in two network namespaces, which see one directory. They are on a bridge, behind a router
# that rewrites the destination and the source, or joined by hairpin. They have pid, user and time
# namespaces of their own, or no loopback interface. And ends of one namespace that REDIRECT has
# joined, which may ask the kernel or not. Thousands of connections have the same bytes at the same
# counts: no end meets another connection's, and 95 of 100 attach. Without the directory, or without
# timestamps, they stay on TCP.
. "$(dirname "$0")/common.sh"
. "$HERE/topology.sh"
. "$HERE/topology_crosswire.sh"
MODE=tcp
[ -f "$LIB" ] || build_lib
LIBRARY=$LIB
if ! topology net; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
# Ports are used again as soon as the kernel allows.
for end in "${ENDS[@]}"; do setting "$end" net.ipv4.tcp_max_tw_buckets=1024; done
build_crosswire
echo '#include <sys/syscall.h>' | cc -E -dM - |
  awk '/#define __NR_[a-z]/ { print "{\"" substr($2, 6) "\", " $2 "}," }' >"$work/filtered_calls.h"
cc -O2 -Wall -Wextra -Werror -I"$work" -o "$work/filtered" "$HERE/filtered.c" ||
  die "filtered.c does not compile"
count=${COUNT:-1000}
place=$MEET

# meet WANT WHAT PATH FAMILY [PREFIX...] : connections to A, 64 at a time.
#   shm: 95 of 100 attach; tcp: none
meet() {
  path "$3" A "$4" 8080
  met "$1" "$2" "${@:5}"
}
# met WANT WHAT [PREFIX...] : the same by the last `path`.
met() {
  local want=$1 what=$2 ASKS=("${@:3}") attached seen
  alike "$what" "$count"
  check "$what: no name is left" "$(ls "$place")" test -z "$(ls "$place")"
  [ "$MODE" = tcp ] && return
  attached=$(have_attached)
  seen="$attached attached; $(why)"
  case $want in
    shm)
      check "$what: $seen" "" test "$attached" -ge $((count * 95 / 100))
      check "$what: $(bytes shm) bytes by shm" "" test "$(bytes shm)" -ge $((count * 1000)) ;;
    tcp) check "$what: $seen" "" test "$attached" = 0 ;;
  esac
}
# loopback END down|up : down as before it was brought up for the first time, without an address.
loopback() {
  ip_in "$1" link set lo "$2"
  [ "$2" = up ] || ip_in "$1" addr flush dev lo
}

# without_netlink WHAT PREFIX : a program of A's asks another one of A's at ADDRESS. The first, the
# other, both of them or none has no netlink. PREFIX is the name of what goes before both.
without_netlink() {
  local who count=$((count / 4)) filter=("$work/filtered" 97 socket:0=16 --) asks to=$ADDRESS
  local -n before=$2
  for who in nobody serves asks both; do
    path bridge A 4 8080
    FROM=A ADDRESS=$to SERVES=("${before[@]}") asks=("${before[@]}")
    case $who in serves | both) SERVES+=("${filter[@]}") ;; esac
    case $who in asks | both) asks+=("${filter[@]}") ;; esac
    met shm "$1, without netlink: $who" "${asks[@]}"
  done
  SERVES=()
}
# The same where REDIRECT leads to a port on 127.0.0.1, whatever was asked for: an address of A's
# own, or one that no host has. TCP may be excluded.
redirected() {
  local ADDRESS LISTENS=0.0.0.0 SERVED=8080
  local longer=(env ROUNDS=240) strict=(env RSOCKET_TRANSPORT=shm)
  ADDRESS=10.78.1.12 without_netlink "in one namespace" longer
  nsenter -t "${INIT[A]}" -n nft -f - <<'NFT' || { say "SKIP $NAME: no REDIRECT here"; return; }
table ip mesh {
  chain outbound { type nat hook output priority -100;
    ip daddr { 10.78.1.12, 10.78.1.99 } tcp dport 8080 redirect to :15006;
  }
}
NFT
  SERVED=15006
  for ADDRESS in 10.78.1.12 10.78.1.99; do
    without_netlink "REDIRECT from $ADDRESS" longer
    without_netlink "REDIRECT from $ADDRESS, no TCP" strict
  done
  nsenter -t "${INIT[A]}" -n nft delete table ip mesh
}

for MODE in $(modes_of "${@:-tcp eager default}"); do
  tmpdir STATS
  meet shm "on a bridge" bridge 4
  meet shm "on a bridge, IPv6" bridge 6
  LISTENS=:: meet shm "IPv4 at a listener for both" bridge 4
  if [ "$NAT" = 1 ]; then
    meet shm "destination and source rewritten" both 4
    meet shm "hairpin" self 4
  else say "SKIP $NAME: no address translation here"; fi
  meet shm "pids of one's own" bridge 4 unshare --pid --mount-proc --fork
  meet shm "users of one's own" bridge 4 unshare --user --map-root-user --pid --mount-proc --fork
  meet shm "another user" bridge 4 setpriv --reuid=65533 --regid=65533 --clear-groups
  if unshare -T --monotonic 86400 true 2>/dev/null; then
    meet shm "a clock of one's own" bridge 4 unshare -T --monotonic 86400 --fork
  else say "SKIP $NAME: no time namespaces here"; fi
  for end in A C; do loopback $end down; done
  meet shm "no loopback interface" bridge 4
  meet shm "no loopback interface, IPv6" bridge 6
  for end in A C; do loopback $end up; done
  if [ "$NAT" = 1 ]; then redirected; fi
  MEET='' meet tcp "without a directory" bridge 4
  setting C net.ipv4.tcp_timestamps=0
  meet tcp "without timestamps" bridge 4
  setting C net.ipv4.tcp_timestamps=1
done
unmake
exit $BAD
