#!/usr/bin/env bash
# librsocket.so: the calls of rsocket(7) in C (tests/rsocket), and Debian's own rstream, riostream, rcopy and udpong, which are
# linked with librdmacm and get our calls by LD_PRELOAD. Over shared memory, also where there is an RDMA device.
#
#   tests/programs/rsocket.sh [shm]
. "$(dirname "$0")/common.sh"
need_cc
need rstream=rdmacm-utils c++=g++
MODE=shm
tmpdir STATS
tmpdir dir
[ -f "$RSOCKET" ] || build_lib
export RSOCKET_STATS="$STATS/%p" RSOCKET_TRANSPORT=shm
include=$ROOT/rsocket-capi/include

# The header, alone, in the dialects that programs are written in.
printf '#include <rdma/rsocket.h>\nint main(void) { return rclose(-1) == -1 && SOL_RDMA == 0x10000 ? 0 : 1; }\n' >"$dir/h.c"
cp "$dir/h.c" "$dir/h.cc"
for how in "cc -std=c99 -pedantic-errors" "cc -std=gnu17" "c++ -std=c++11 -pedantic-errors" "c++ -std=c++20"; do
  src=$dir/h.c
  [[ $how == c++* ]] && src=$dir/h.cc
  # shellcheck disable=SC2086
  if $how -Wall -Wextra -Werror "-I$include" -o "$dir/h" "$src" "-L$(dirname "$RSOCKET")" -lrsocket >"$dir/out" 2>&1 &&
    LD_LIBRARY_PATH=$(dirname "$RSOCKET") "$dir/h"; then ok "header: $how"
  else fail "header: $how" "$(head -3 "$dir/out")"; fi
done

# The calls.
families=(-4)
grep -q . /proc/net/if_inet6 2>/dev/null && families+=(-6)
# topic NAME : its cases, in both families.
topic() {
  local t=$1 f arg name why
  if ! cc -O2 -Wall -Wextra -Werror -pthread "-I$include" -o "$dir/$t" "$ROOT/tests/rsocket/$t.c" \
    "$ROOT/tests/rsocket/rs.c" "-L$(dirname "$RSOCKET")" -lrsocket "-Wl,-rpath,$(dirname "$RSOCKET")" >"$dir/out" 2>&1; then
    fail "$t" "it does not compile: $(head -3 "$dir/out")"
    return
  fi
  for f in "${families[@]}"; do
    arg=()
    [ "$f" = -6 ] && arg=(-6)
    limit 300 "$dir/$t" "${arg[@]}" >"$dir/out" 2>&1
    [ -s "$dir/out" ] || fail "$t$f" "it said nothing"
    # One line for each case, also where both its sides have something to say.
    while read -r name; do
      if grep -q "^ok $name\$" "$dir/out"; then ok "$t.$name"; continue; fi
      why=$(grep "^FAIL $name:" "$dir/out")
      fail "$t.$name" "$why"
    done < <(sed -n 's/^\(ok\|FAIL\) \([^ :]*\).*/\2/p' "$dir/out" | awk '!seen[$0]++')
    grep -qvE '^(ok|FAIL) ' "$dir/out" && fail "$t$f" "$(grep -vE '^(ok|FAIL) ' "$dir/out" | tail -3)"
  done
}
for t in meeting bytes waiting placing; do topic $t; done
carried

# Datagrams meet by UDP, and then share memory.
tmpdir STATS
export RSOCKET_STATS="$STATS/%p"
datagrams_carried() {
  local shm udp
  shm=$(stat_sum messages.sent.shm "$STATS") udp=$(stat_sum datagrams.sent.udp "$STATS")
  check "$1 ($shm datagrams by shm, $udp by udp)" "too few" [ "$shm" -gt $((udp * 4)) ]
}
topic datagrams
datagrams_carried "datagrams went by shared memory"
check "nonsense was counted" "$(stat_sum datagrams.ignored "$STATS") packets" [ "$(stat_sum datagrams.ignored "$STATS")" -gt 1000 ]

# stream PROGRAM ADDRESS OPTION... : a server and a client with the same options. (With different ones it hangs, whoever
# carries the bytes.)
stream() {
  local program=$1 address=$2 rc port server n=0
  shift 2
  free_port port
  start server env "LD_PRELOAD=$RSOCKET" "$program" -b "$address" -p "$port" "$@" >"$dir/server" 2>&1
  wait_port "$port" "$server" || { fail "$program $*" "no server: $(tail -1 "$dir/server")"; return; }
  limit 60 env "LD_PRELOAD=$RSOCKET" "$program" -s "$address" -p "$port" "$@" >"$dir/client" 2>&1
  rc=$?
  gone_child "$server" 10 || fail "$program $address $*" "the server did not end"
  wait "$server" || rc="$rc, server $?"
  # Every line of results ends in the time of one transfer.
  n=$(grep -cE '[0-9]s +[0-9.]+ +[0-9.]+$' "$dir/client")
  if [ "$rc" = 0 ] && [ "$n" -gt 0 ]; then ok "$program $address $* ($(awk 'END { print $(NF - 1) " Gbit/s, " $NF " us" }' "$dir/client"))"
  else fail "$program $address $*" "exit $rc, $n results: $(tail -2 "$dir/client") $(tail -1 "$dir/server")"; fi
}
tmpdir STATS
export RSOCKET_STATS="$STATS/%p"
own=$(hostname -I 2>/dev/null | awk '{ print $1 }')
sizes=(64 4096 65536 1048576)
for how in b n a; do
  for size in "${sizes[@]}"; do
    stream rstream 127.0.0.1 -T $how -S "$size" -I 100 -C 10
    stream rstream 127.0.0.1 -T $how -T v -S "$size" -I 20 -C 5
  done
done
stream rstream 127.0.0.1 -T b
[ "${#families[@]}" = 2 ] && stream rstream ::1 -T b -S 4096 -I 100 -C 10
[[ $own == *.* ]] && stream rstream "$own" -T n -S 4096 -I 100 -C 10
stream rstream 127.0.0.1 -T b -S 1000 -I 100 -C 10 -B 65536 -i 0 -k 5
# It watches memory without making a call, and leaves the processor to nobody.
for how in b n a; do
  for size in 64 65536 1000000; do
    rounds=(-I 10 -C 4)
    [ "$size" = 1000000 ] && rounds=(-I 3 -C 2)
    stream riostream 127.0.0.1 -T $how -T v -S "$size" "${rounds[@]}"
  done
done
[ "${#families[@]}" = 2 ] && stream riostream ::1 -T b -S 4096 -I 10 -C 4

# udpong: round trips, and one way; the result comes with the answer to the last message.
streams=$STATS
tmpdir STATS
export RSOCKET_STATS="$STATS/%p"
free_port port
start server env "LD_PRELOAD=$RSOCKET" udpong -b 127.0.0.1 -p "$port" -T b >"$dir/server" 2>&1
wait_udp "$port" "$server" || fail udpong "no server: $(tail -1 "$dir/server")"
for how in b n a; do
  for options in "" "-T e"; do
    for size in 16 1000 2000; do
      # shellcheck disable=SC2086
      limit 60 env "LD_PRELOAD=$RSOCKET" udpong -s 127.0.0.1 -p "$port" -C 1000 -S $size -T $how $options >"$dir/client" 2>&1
      rc=$?
      check "udpong -T $how $options -S $size ($(awk 'END { print $NF }' "$dir/client") us)" "exit $rc: $(tail -1 "$dir/client")" \
        grep -q '^custom .*[0-9]s ' "$dir/client"
    done
  done
done
stop "$server"
datagrams_carried "udpong went by shared memory"
STATS=$streams
export RSOCKET_STATS="$STATS/%p"

# rcopy: a file there, byte for byte.
free_port port
start server env "LD_PRELOAD=$RSOCKET" rcopy -p "$port" >"$dir/server" 2>&1
if wait_port "$port" "$server"; then
  head -c 30000001 /dev/urandom >"$dir/in"
  for i in 1 2; do
    limit 60 env "LD_PRELOAD=$RSOCKET" rcopy "$dir/in" "127.0.0.1:$dir/out$i" -p "$port" >"$dir/client" 2>&1
    check "rcopy $i" "exit $?: $(tail -1 "$dir/client")" cmp -s "$dir/in" "$dir/out$i"
  done
else fail rcopy "no server: $(tail -1 "$dir/server")"; fi
stop "$server" TERM || fail rcopy "the server did not end"
carried
tcp=$(($(stat_sum bytes.sent.tcp "$STATS") + $(stat_sum bytes.received.tcp "$STATS")))
check "no byte over TCP" "$tcp bytes" same "$tcp" 0
exit $BAD
