# shellcheck shell=bash
# Three network namespaces, for tests that source this: $A (10.78.0.2), $B (10.78.0.3) on a bridge
# in $R, the router (10.78.0.1), IPv6 fd78::1 to fd78::3. `bridge` makes them and says whether that
# could be; `remove_bridge` is for the trap at the end. `nat` has the router give what comes to its
# own port 8080 to $A's port 80, and hide who asks (NAT says whether it could).
AS=()
[ "$(id -u)" = 0 ] || AS=(sudo -n)
R=rs-r-$$ A=rs-a-$$ B=rs-b-$$
remove_bridge() { for n in "$A" "$B" "$R"; do as_root ip netns del "$n" 2>/dev/null; done; }
in_() { "${AS[@]}" ip netns exec "$@"; }

bridge() {
  as_root ip netns add "$R" 2>/dev/null && as_root ip netns add "$A" && as_root ip netns add "$B" || return
  as_root ip -n "$R" link add bridge type bridge || return
  as_root ip -n "$R" addr add 10.78.0.1/24 dev bridge
  as_root ip -n "$R" addr add fd78::1/64 dev bridge nodad
  as_root ip -n "$R" link set bridge up
  as_root ip -n "$R" link set lo up
  local host=1 n
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
    # Ports are used again as soon as the kernel allows.
    in_ "$n" sysctl -qw net.ipv4.tcp_max_tw_buckets=1024
  done
}

NAT=0
nat() {
  in_ "$R" sysctl -qw net.ipv4.ip_forward=1 net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.bridge.send_redirects=0
  NAT=1
  in_ "$R" nft -f - <<'NFT' 2>/dev/null || NAT=0
table ip nat {
  chain before { type nat hook prerouting priority dstnat; ip daddr 10.78.0.1 tcp dport 8080 dnat to 10.78.0.2:80; }
  chain after { type nat hook postrouting priority srcnat; ip daddr 10.78.0.2 masquerade; }
}
NFT
}
