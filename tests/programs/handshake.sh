#!/usr/bin/env bash
# What both ends of a connection know of its SYN's timestamp, in network namespaces of their own: side by side on a bridge, behind a router
# that rewrites the destination, the source or both, by hairpin, with a clock of one's own, and where the kernel has no timestamps.
. "$(dirname "$0")/common.sh"
need ip=iproute2 nft=nftables unshare=util-linux sysctl=procps
AS=()
[ "$(id -u)" = 0 ] || AS=(sudo -n)
R=rsh-r-$$ A=rsh-a-$$ B=rsh-b-$$
remove() { for n in "$A" "$B" "$R"; do as_root ip netns del "$n" 2>/dev/null; done; }
on_exit() { cleanup; remove; }
MODE=tcp
if ! as_root ip netns add "$R" 2>/dev/null || ! as_root ip netns add "$A" || ! as_root ip netns add "$B" ||
  ! as_root ip -n "$R" link add bridge type bridge; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
in_() { "${AS[@]}" ip netns exec "$@"; }
as_root ip -n "$R" addr add 10.78.0.1/24 dev bridge
as_root ip -n "$R" addr add fd78::1/64 dev bridge nodad
as_root ip -n "$R" link set bridge up
as_root ip -n "$R" link set lo up
host=1
for n in "$A" "$B"; do
  host=$((host + 1))
  as_root ip link add eth netns "$n" type veth peer name "p$host" netns "$R"
  as_root ip -n "$R" link set "p$host" master bridge up
  as_root ip -n "$R" link set "p$host" type bridge_slave hairpin on
  as_root ip -n "$n" addr add "10.78.0.$host/24" dev eth
  as_root ip -n "$n" addr add "fd78::$host/64" dev eth nodad
  as_root ip -n "$n" link set eth up
  as_root ip -n "$n" link set lo up
  as_root ip -n "$n" route add default via 10.78.0.1
done
in_ "$R" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.bridge.send_redirects=0
nat=1
in_ "$R" nft -f - <<'NFT' 2>/dev/null || nat=0
table ip nat {
  chain before { type nat hook prerouting priority dstnat; ip daddr 10.78.0.1 tcp dport 8080 dnat to 10.78.0.2:80; }
  chain after { type nat hook postrouting priority srcnat; ip daddr 10.78.0.2 masquerade; }
}
NFT

ends=$(cd "$ROOT" && cargo test --release -q -p rsocket-core --test attach_handshake --no-run --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*attach_handshake[^"]*\)".*/\1/p' | tail -1)
[ -x "$ends" ] || die "the two ends do not compile"
tmpdir dir

# meets WHAT WANTED LISTENS-AT DIALS-AT NAMESPACE [PREFIX...] : 640 connections to $A, 16 at a time.
#   agree: most of them know each other by the timestamp, none is wrong; nothing: nobody knows anything.
#   less: some know nothing, none is wrong.
meets() {
  local what=$1 wanted=$2 at=$3 to=$4 from=$5 server out agree differ unknown
  shift 5
  start server "${AS[@]}" ip netns exec "$A" env HANDSHAKE="$at" "$ends" --ignored --exact --nocapture listens >"$dir/server" 2>&1
  wait_for "$dir/server" listening || fail "$what" "nobody listens: $(tail -3 "$dir/server")"
  out=$(limit 60 "${AS[@]}" ip netns exec "$from" "$@" env HANDSHAKE="$to" "$ends" --ignored --exact --nocapture dials 2>&1)
  read -r agree differ unknown < <(sed -n 's/.*agree \([0-9]*\) differ \([0-9]*\) unknown \([0-9]*\).*/\1 \2 \3/p' <<<"$out")
  wait "$server"
  local mistakable
  mistakable=$(sed -n 's/.* mistakable \([0-9]*\).*/\1/p' "$dir/server")
  local seen="agree ${agree:-?} differ ${differ:-?} unknown ${unknown:-?}, mistakable ${mistakable:-?}"
  case $wanted in
    agree) check "$what: $seen" "$seen" test "${agree:-0}" -ge 320 -a "${differ:-1}" = 0 -a "${mistakable:-1}" = 0 ;;
    less) check "$what: $seen" "$seen" test "${differ:-1}" = 0 -a "${mistakable:-1}" = 0 -a "${unknown:-0}" -ge 100 ;;
    nothing) check "$what: $seen" "$seen" test "${unknown:-0}" = 640 ;;
  esac
}
wait_for() {
  for _ in $(seq 200); do grep -q "$2" "$1" && return 0; sleep 0.05; done
  return 1
}
meets "on a bridge" agree 10.78.0.2:80 10.78.0.2:80 "$B"
meets "on a bridge, IPv6" agree "[fd78::2]:80" "[fd78::2]:80" "$B"
meets "IPv4 at a listener for both" agree "[::]:80" 10.78.0.2:80 "$B"
meets "in one namespace" agree 10.78.0.2:80 10.78.0.2:80 "$A"
if [ $nat = 1 ]; then
  meets "destination and source rewritten" agree 10.78.0.2:80 10.78.0.1:8080 "$B"
  meets "hairpin" agree 10.78.0.2:80 10.78.0.1:8080 "$A"
else say "SKIP $NAME: no address translation here"; fi
if "${AS[@]}" unshare -T --monotonic 86400 true 2>/dev/null; then
  meets "a clock of one's own" agree 10.78.0.2:80 10.78.0.2:80 "$B" unshare -T --monotonic 86400 --fork
else say "SKIP $NAME: no time namespaces here"; fi
# One clock for all connections would say too little.
in_ "$B" sysctl -qw net.ipv4.tcp_timestamps=2
meets "no offset" nothing 10.78.0.2:80 10.78.0.2:80 "$B"
in_ "$B" sysctl -qw net.ipv4.tcp_timestamps=0
meets "no timestamps" nothing 10.78.0.2:80 10.78.0.2:80 "$B"
in_ "$B" sysctl -qw net.ipv4.tcp_timestamps=1
# The kernel keeps no SYN that it answers by a cookie. (It needs none for ports that have just been used.)
in_ "$A" sysctl -qw net.ipv4.tcp_syncookies=2
meets "SYN cookies" less 10.78.0.2:80 10.78.0.2:80 "$B"
exit $BAD
