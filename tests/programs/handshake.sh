#!/usr/bin/env bash
# What both ends of a connection know of its SYN's timestamp, in network namespaces of their own.
# The ends are side by side on a bridge, behind a router that rewrites the destination and the
# source, or joined by hairpin. One has a clock of its own, or the kernel has no timestamps.
. "$(dirname "$0")/common.sh"
. "$HERE/topology.sh"
MODE=tcp
if ! topology net; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi

ends=$(cd "$ROOT" && cargo test --release -q -p rsocket-core --test attach_handshake --no-run \
  --message-format=json 2>/dev/null |
  sed -n 's/.*"executable":"\([^"]*attach_handshake[^"]*\)".*/\1/p' | tail -1)
[ -x "$ends" ] || die "the two ends do not compile"

# number WORD : what stands behind it.
number() { sed -n "s/.*$1 \([0-9]*\).*/\1/p"; }

# meets WHAT WANTED [PREFIX...] : 640 connections by the last `path`, 16 at a time. A listens at
# LISTENS, if that is set.
#   agree: most of them know each other by the timestamp, none is wrong
#   less: some know nothing, none is wrong; nothing: neither end knows anything
meets() {
  local what=$1 wanted=$2 at=${LISTENS:-$OWN} server out agree differ unknown mistakable ENTER
  local run=("$ends" --ignored --exact --nocapture)
  shift 2
  [[ $at != *:* ]] || at="[$at]"
  entering A
  start server "${ENTER[@]}" env HANDSHAKE="$at:8080" "${run[@]}" listens \
    >"$WORK/server" 2>&1
  until_true grep -q listening "$WORK/server" ||
    fail "$what" "nobody listens: $(tail -3 "$WORK/server")"
  entering "$FROM"
  out=$(limit 60 "${ENTER[@]}" "$@" env HANDSHAKE="$HOST:$AT" "${run[@]}" dials 2>&1)
  wait "$server"
  agree=$(number agree <<<"$out") differ=$(number differ <<<"$out")
  unknown=$(number unknown <<<"$out") mistakable=$(number mistakable <"$WORK/server")
  local seen="agree ${agree:-?} differ ${differ:-?} unknown ${unknown:-?}"
  seen+=", mistakable ${mistakable:-?}"
  local none_wrong=("${differ:-1}" = 0 -a "${mistakable:-1}" = 0)
  case $wanted in
    agree) check "$what: $seen" "$seen" test "${agree:-0}" -ge 320 -a "${none_wrong[@]}" ;;
    less) check "$what: $seen" "$seen" test "${unknown:-0}" -ge 100 -a "${none_wrong[@]}" ;;
    nothing) check "$what: $seen" "$seen" test "${unknown:-0}" = 640 ;;
  esac
}
path bridge A 6 8080
meets "on a bridge, IPv6" agree
path bridge A 4 8080
meets "on a bridge" agree
LISTENS=:: meets "IPv4 at a listener for both" agree
FROM=A meets "in one namespace" agree
if [ "$NAT" = 1 ]; then
  path both A 4 8080
  meets "destination and source rewritten" agree
  path self A 4 8080
  meets "hairpin" agree
else say "SKIP $NAME: no address translation here"; fi
path bridge A 4 8080
if unshare -T --monotonic 86400 true 2>/dev/null; then
  meets "a clock of one's own" agree unshare -T --monotonic 86400 --fork
else say "SKIP $NAME: no time namespaces here"; fi
# One clock for all connections would say too little.
setting C net.ipv4.tcp_timestamps=2
meets "no offset" nothing
setting C net.ipv4.tcp_timestamps=0
meets "no timestamps" nothing
setting C net.ipv4.tcp_timestamps=1
# The kernel keeps no SYN that it answers by a cookie. (It needs none for ports that have just been
# used.)
setting A net.ipv4.tcp_syncookies=2
meets "SYN cookies" less
unmake
exit $BAD
