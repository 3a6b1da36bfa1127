#!/usr/bin/env bash
# What is unusual where ends have namespaces of their own. No /dev/shm, a root directory that is
# read-only, a /proc that hides others, another clock, SYNs that are lost or late. No timestamps,
# SYN cookies, a sidecar that REDIRECT leads to. Every answer is right, and over shared memory or,
# for a reason that is named, on TCP. `namespaces_edges.sh [CASE...]`
. "$(dirname "$0")/common.sh"
. "$HERE/topology.sh"
. "$HERE/topology_rows.sh"
# Whether they meet is asked here, not how fast: namespaces.sh has the bound on bytes.
CASES=(plain no_shm read_only hidepid clock lost_syn late_syn no_timestamps no_offset cookies
  sidecar mapped)
SECS=2 MODE=tcp
need iptables
need_rows
make_data
[ -f "$LIB" ] || build_lib
cp "$LIB" "$DATA/" && LIBRARY=$DATA/$(basename "$LIB")

# talk WHAT PATH : nginx at A is asked.
talk() {
  rm -rf "${STATS:?}"/*
  path "$2" A 4 8080
  nginx_serve && nginx_ask "$1"
  nginx_end
}
# in_both COMMAND... : at the serving end and at the asking one.
in_both() {
  local e
  for e in A B C; do on "$e" "$@" || { fail "$1" "it does not work at $e"; return 1; }; done
}

plain() { talk plain both && attached plain 80; }
no_shm() {
  in_both sh -c 'umount /dev/shm 2>/dev/null; mount -t tmpfs -o ro none /dev/shm' &&
    talk "no /dev/shm" both && attached "no /dev/shm" 80
}
read_only() {
  in_both sh -c 'mount --bind "$1" "$1" && mount --bind "$2" "$2" &&
    mount -o remount,bind,ro / && ! touch /tmp/no 2>/dev/null' - "$WORK" "$STATS" &&
    talk "read-only root" both && attached "read-only root" 80
}
hidepid() {
  in_both mount -t proc -o hidepid=2 proc /proc && talk hidepid both && attached hidepid 80
}
clock() {
  ASKS=(unshare -T --monotonic 86400 --fork)
  talk "another clock" both && attached "another clock" 80
  ASKS=()
}
# Every second SYN, by the router's packet filter: the kernel sends it again after a second, with
# another timestamp. What came at once attaches; what came late may stay on TCP.
lost_syn() {
  in_router nft -f - <<'NFT' || { fail lost_syn "no such rules here"; return; }
table ip loss {
  chain syns { type filter hook forward priority 0;
    tcp flags & (syn|ack) == syn numgen inc mod 2 0 counter drop;
  }
}
NFT
  SECS=3
  talk "lost SYNs" both && check "lost SYNs: $(bytes shm) bytes by shm, $(bytes tcp) by tcp" \
    "$(why)" test "$(bytes shm)" -gt 10000000
  SECS=2
  check "lost SYNs: some were" "none" eval \
    'in_router nft list table ip loss | grep -q "counter packets [1-9]"'
}
late_syn() {
  if ! late_syns 20 1000000; then
    say "SKIP $NAME late_syn: no queue of packets here"
    return
  fi
  talk "late SYNs" both && attached "late SYNs" 80
  on_time_again
}
no_timestamps() {
  setting A net.ipv4.tcp_timestamps=0
  talk "no timestamps" both && stayed "no timestamps" no_handshake
}
no_offset() {
  setting A net.ipv4.tcp_timestamps=2
  setting B net.ipv4.tcp_timestamps=2
  talk "no offsets" both && stayed "no offsets" no_handshake
}
cookies() {
  setting A net.ipv4.tcp_syncookies=2
  talk cookies both && say "ok $NAME $MODE cookies: $(bytes shm) bytes by shm; $(why)"
}
# Into A's port leads a rule; what it meets speaks to nginx. Each of the two connections by itself.
sidecar() {
  nsenter -t "${INIT[A]}" -n nft -f - <<'NFT' || { fail sidecar "no such rules here"; return; }
table ip mesh {
  chain inbound { type nat hook prerouting priority dstnat; tcp dport 8080 redirect to :15006; }
}
NFT
  rm -rf "${STATS:?}"/*
  path both A 4 8080
  nginx_serve &&
    serve sidecar_pid A 15006 "$PYTHON" "$HERE/sidecar.py" 15006 10.78.1.12 8080 &&
    nginx_ask sidecar
  finish sidecar_pid TERM
  nginx_end
  check "sidecar: no complaint" "$(cat "$WORK/said.sidecar_pid")" \
    test ! -s "$WORK/said.sidecar_pid"
  attached sidecar 80
}
mapped() {
  rm -rf "${STATS:?}"/*
  nginx_serve
  path routed A 4 8080
  # The client's own end is an IPv6 socket as well.
  HOST="[::ffff:$ADDRESS]"
  nginx_ask "v4-mapped"
  nginx_end
  attached "v4-mapped" 80
}

[ $# -gt 0 ] || set -- "${CASES[@]}"
for c in "$@"; do
  MODE=tcp
  topology all || die "no namespaces here"
  MODE=default
  tmpdir STATS
  "$c"
  unmake
  check "$c: nothing is left" "$(ls "$MEET")" test -z "$(ls "$MEET")"
done
exit $BAD
