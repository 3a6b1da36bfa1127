#!/usr/bin/env bash
# TCP Fast Open, in network namespaces. It is off, or clients have it (as is usual), or servers have
# it too, or servers want no cookie. Every call says what it says over TCP. Every byte comes, those
# of the first packet too, and the connections attach. Where no byte may go by TCP each is a connect
# and a send.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
need unshare=util-linux ip=iproute2
# there MODES COMMAND... : in a network of its own
there() {
  # shellcheck disable=SC2016
  unshare "${AS[@]}" --net -- bash -c 'ip link set lo up && echo "$1" >/proc/sys/net/ipv4/tcp_fastopen && shift && exec "$@"' - "$@"
}
AS=()
[ "$(id -u)" = 0 ] || AS=(--map-root-user)
if ! there 1 true 2>/dev/null; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
tmpdir TOLD
for kind in 0 1 3 1543; do
  mode tcp
  there $kind timeout -k 5 $((60 * ${RSOCKET_SLOW:-1})) "$PYTHON" "$HERE/fastopen.py" >"$TOLD/tcp" 2>&1
  sent=$(sed -n 's/^sent //p' "$TOLD/tcp")
  check "tcp_fastopen=$kind: plain TCP" "$(tail -3 "$TOLD/tcp")" test "${sent:-0}" -gt 0
  for how in default eager; do
    mode $how
    there $kind timeout -k 5 $((60 * ${RSOCKET_SLOW:-1})) "${P[@]}" "$PYTHON" "$HERE/fastopen.py" >"$TOLD/here" 2>&1
    check "tcp_fastopen=$kind: says what TCP says" "$(diff "$TOLD/tcp" "$TOLD/here" | head -10)" cmp -s "$TOLD/tcp" "$TOLD/here"
    shm=$(stat_sum bytes.sent.shm "$STATS") tcp=$(stat_sum bytes.sent.tcp "$STATS")
    check "tcp_fastopen=$kind: counts each byte once" "$shm by shm, $tcp by tcp, $sent in all" test $((shm + tcp)) = "$sent"
    [ $kind = 0 ] || check "tcp_fastopen=$kind: attaches" "$shm bytes; $(stat_reasons "$STATS")" test "$shm" -gt $((sent / 4 * 3))
  done
done
# A cookie lets a first packet carry bytes, so that a call without waiting has sent: no call may say
# so where TCP is excluded.
for kind in 0 1; do
  mode tcp
  there $kind timeout -k 5 $((60 * ${RSOCKET_SLOW:-1})) "$PYTHON" "$HERE/fastopen.py" strict >"$TOLD/tcp" 2>&1
  mode shm
  there $kind timeout -k 5 $((60 * ${RSOCKET_SLOW:-1})) "${P[@]}" "$PYTHON" "$HERE/fastopen.py" strict >"$TOLD/here" 2>&1
  different=$(diff <(grep -v ^sent "$TOLD/tcp") <(grep -v ^sent "$TOLD/here") | head -10)
  check "tcp_fastopen=$kind: says what TCP says" "$different" test -z "$different" -a -s "$TOLD/here"
  check "tcp_fastopen=$kind: no byte by TCP" "$(stat_sum bytes.sent.tcp "$STATS")" test "$(stat_sum bytes.sent.tcp "$STATS")" = 0
done
exit $BAD
