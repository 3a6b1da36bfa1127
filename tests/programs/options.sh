#!/usr/bin/env bash
# Options that change nothing keep no connection on TCP. Such are each that TCP knows, set to the
# value that it has, and those that the kernel refuses. So are those that ip(7) and ipv6(7) have for
# packets, of which a stream delivers nothing. One that does change something keeps it there, and
# says so.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
# attaches NAME OPTION... : with these set the bytes go over shared memory
attaches() {
  local name=$1 out
  shift
  mode default
  out=$(limit 20 "${P[@]}" "$PYTHON" "$HERE/options.py" "$@" 2>&1)
  check "$name: attaches" "$out $(stat_reasons "$STATS")" test "$(stat_sum bytes.sent.shm "$STATS")" -gt 50000
}
all=()
for n in {1..80}; do all+=("1 $n ="); done
attaches "SOL_SOCKET as it is" "${all[@]}"
all=()
# 35 is TCP_ZEROCOPY_RECEIVE: to ask for it takes bytes. 14, 19 and 38 change how TCP sends: the
# connection goes back first.
for n in {1..45}; do [[ $n =~ ^(14|19|35|38)$ ]] || all+=("6 $n ="); done
attaches "TCP as it is" "${all[@]}"
all=()
for n in {1..52}; do all+=("0 $n ="); done
attaches "IP as it is" "${all[@]}"
attaches "what the kernel refuses" "1 19 5" "6 99 1" "6 23 70000" "41 36 1"
attaches "Erlang's" "0 13 0" "0 12 0"
attaches "gRPC's" "6 36 1" "1 60 1"
attaches "of packets" "0 6 1" "0 7 1" "0 8 1" "0 12 1" "0 13 1" "0 20 1"
mode default
limit 20 "${P[@]}" "$PYTHON" "$HERE/options.py" "1 37 64" >/dev/null 2>&1
check "SO_TIMESTAMPING that is new: stays on TCP" "$(stat_reasons "$STATS")" test "$(stat_sum on_tcp.odd_option "$STATS")" -gt 0
for ends in listener client "listener client"; do
  mode default
  # shellcheck disable=SC2086
  out=$(limit 20 "${P[@]}" "$PYTHON" "$HERE/bound.py" $ends 2>&1)
  check "bound to a device, $ends: all bytes" "$out" test "$out" = ok
  check "bound to a device, $ends: attaches" "$(stat_reasons "$STATS")" test "$(stat_sum bytes.sent.shm "$STATS")" -gt 50000
done
# What a listener gives has its options.
mode default
limit 20 "${P[@]}" "$PYTHON" "$HERE/options.py" --listener "1 37 64" >/dev/null 2>&1
check "SO_TIMESTAMPING of a listener: stays on TCP" "$(stat_reasons "$STATS")" test "$(stat_sum bytes.sent.shm "$STATS")" = 0
check "SO_TIMESTAMPING of a listener: says why" "$(stat_reasons "$STATS")" test "$(stat_sum on_tcp.odd_option "$STATS")" -gt 0
# Each that this kernel has, in the middle of a connection's life. These alone bring it back to TCP:
# SO_TIMESTAMPING, SO_PEEK_OFF, SO_TXTIME, SO_TIMESTAMPING_NEW, TCP_MD5SIG, TCP_REPAIR,
# TCP_MD5SIG_EXT.
tmpdir TMP
for family in AF_INET AF_INET6; do
  for option in "1 37" "1 42" "1 61" "1 65" "6 14" "6 19" "6 32"; do echo "$family $option new"; done
done >"$TMP/expected"
for how in default eager; do
  mode $how
  limit 60 "${P[@]}" "$PYTHON" "$HERE/each_option.py" >"$TMP/each" 2>&1
  check "each option, three values, two families" "$(tail -1 "$TMP/each")" test "$(sed -n 's/^tried //p' "$TMP/each")" -gt 1000
  # Without the privilege, or in an older kernel, some of the seven are refused; none but these may
  # go back.
  others=$(grep -v ^tried "$TMP/each" | grep -vxF -f "$TMP/expected")
  check "no other brings a connection back to TCP" "$others" test -z "$others"
  check "SO_TIMESTAMPING does" "$(cat "$TMP/each")" test "$(grep -c '^AF_INET6* 1 37 new$' "$TMP/each")" = 2
done
exit $BAD
