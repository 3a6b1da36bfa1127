#!/usr/bin/env bash
# librsocket.so: the calls of rsocket(7) in C (tests/rsocket), and Debian's own rstream, riostream,
# rcopy and udpong. Those are linked with librdmacm and get our calls by LD_PRELOAD. Over shared
# memory, also where there is an RDMA device.
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

# The header, alone, in the dialects that programs are written in; and a program that uses all of
# it.
printf '#include <rdma/rsocket.h>\nint main(void) { return rclose(-1) == -1 && SOL_RDMA == 0x10000 ? 0 : 1; }\n' >"$dir/h.c"
cp "$dir/h.c" "$dir/h.cc"
cp "$ROOT/tests/rsocket/everything.c" "$dir/everything.cc"
for how in "cc -std=c99 -pedantic-errors" "cc -std=gnu17" "c++ -std=c++11 -pedantic-errors" "c++ -std=c++20"; do
  for program in h everything; do
    src=$dir/h.c
    define=""
    [ $program = h ] || { src=$ROOT/tests/rsocket/everything.c; define=-D_DEFAULT_SOURCE; }
    [[ $how == c++* ]] && src=$dir/$program.cc
    # shellcheck disable=SC2086
    if $how ${define:-} -Wall -Wextra -Werror "-I$include" -o "$dir/h" "$src" "-L$(dirname "$RSOCKET")" -lrsocket >"$dir/out" 2>&1 &&
      LD_LIBRARY_PATH=$(dirname "$RSOCKET") limit 60 "$dir/h" >"$dir/out" 2>&1; then ok "header: $program, $how"
    else fail "header: $program, $how" "$(head -3 "$dir/out")"; fi
  done
done
missing=''
while read -r name; do
  grep -q "\b$name(" "$ROOT/tests/rsocket/everything.c" || missing+=" $name"
done <"$ROOT/rsocket-capi/exports.txt"
check "everything.c uses every function" "not:$missing" test -z "$missing"
for name in $(sed -n 's/^ *\(RDMA_[A-Z]*\) = .*/\1/p' "$include/rdma/rsocket.h") SOL_RDMA; do
  check "everything.c uses $name" "it does not" grep -q "\b$name\b" "$ROOT/tests/rsocket/everything.c"
done

# The manual pages: well formed; every call is in one, and every line of the tables of options and
# flags has a test.
need groff=groff-base
for page in rsocket librspreload; do
  said=$(groff -t -man -ww -Tutf8 -P-c "$ROOT/man/$page.7" 2>&1 >"$dir/$page.txt")
  check "$page.7 is well formed" "$said" test -z "$said"
done
while read -r name; do
  check "rsocket.7 tells of $name" "it does not" grep -q "\b$name(" "$ROOT/man/rsocket.7"
done <"$ROOT/rsocket-capi/exports.txt"
lines=0
for name in $(sed -n 's/^\([A-Z_, ]*\)\tT{$/\1/p' "$ROOT/man/rsocket.7" | tr -d ,); do
  lines=$((lines + 1))
  grep -q "\b$name\b" "$ROOT"/tests/rsocket/{options,tcp_options,flags}.c || fail "a test of $name" "rsocket.7 has it, tests/rsocket does not"
done
check "rsocket.7 has tables" "$lines lines" [ $lines -ge 35 ]

# The list of what upstream gets wrong: no row is missing, and every test that it names is there.
gaps=$ROOT/tests/upstream-gaps.md
missing=''
for section in 2:24 3:13 4:18 5:12 6:19 7:8 8:7 9:3; do
  for ((row = 1; row <= ${section#*:}; row++)); do
    grep -q "^| ${section%:*}\.$row | .* | .* |\$" "$gaps" || missing+=" ${section%:*}.$row"
  done
done
check "upstream-gaps.md has every row" "not:$missing" test -z "$missing"
missing=''
while IFS=$'\t' read -r file name; do
  grep -qF -- "$name" "$ROOT/$file" 2>/dev/null || missing+=" $file:$name"
done < <(grep -o '`[^`]*`: `[^`]*`' "$gaps" | sed 's/`\([^`]*\)`: `\([^`]*\)`/\1\t\2/')
check "every test that upstream-gaps.md names is there" "not:$missing" test -z "$missing"

# The calls. topic NAME [OPTION...] : builds and runs one file of cases; one line for each case.
# VARIANT tells runs of the same cases apart; WITH is what they are built with.
topic() {
  local t=$1 as=${VARIANT:-$1} name why rc
  shift
  local program=$dir/$t$* out=$dir/out$*
  local link=("-L$(dirname "$RSOCKET")" -lrsocket "-Wl,-rpath,$(dirname "$RSOCKET")")
  [ "${WITH:-}" = -DPLAIN ] && link=()
  # shellcheck disable=SC2086
  if ! cc -O2 -Wall -Wextra -Werror -pthread ${WITH:-} "-I$include" -o "$program" "$ROOT/tests/rsocket/$t.c" \
    "$ROOT/tests/rsocket/rs.c" "${link[@]}" >"$out" 2>&1; then
    fail "$as" "it does not compile: $(head -3 "$out")"
    return
  fi
  limit 600 "$program" "$@" >"$out" 2>&1
  rc=$?
  # 1 is one that said what failed.
  [ $rc -le 1 ] || fail "$as $*" "it ended with $rc, after $(grep -c '^ok' "$out") cases"
  [ -s "$out" ] || fail "$as $*" "it said nothing"
  # One line for each case, also where both its sides have something to say.
  while read -r name; do
    if grep -q "^ok $name\$" "$out"; then ok "$as.$name"; continue; fi
    why=$(grep "^FAIL $name:" "$out")
    fail "$as.$name" "$why"
  done < <(sed -n 's/^\(ok\|FAIL\) \([^ :]*\).*/\2/p' "$out" | awk '!seen[$0]++')
  grep -qvE '^(ok|FAIL) ' "$out" && fail "$as $*" "$(grep -vE '^(ok|FAIL) ' "$out" | tail -3)"
}
# both_families TOPIC : the same cases over IPv4 and IPv6, side by side: most of the time they
# sleep.
both_families() {
  local f pid pids=()
  for f in "${families[@]}"; do
    # shellcheck disable=SC2086
    (trap - EXIT; topic "$1" $f) >"$dir/said$f" &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid"; done
  for f in "${families[@]}"; do
    cat "$dir/said$f"
    ! grep -q '^FAIL ' "$dir/said$f" || BAD=1
  done
}
families=("")
grep -q . /proc/net/if_inet6 2>/dev/null && families+=(-6)
for t in meeting bytes waiting epoll epoll_members options tcp_options flags placing gaps_streams gaps_placing; do
  both_families $t
done
carried
# The specification: the same cases, but with the kernel's own sockets.
for t in epoll epoll_members options tcp_options flags; do WITH=-DPLAIN VARIANT=$t.tcp topic $t; done

# conf FILE VALUE : the only setting.
conf() {
  rm -rf "$dir/conf" && mkdir "$dir/conf" && printf '%s\n' "$2" >"$dir/conf/$1"
  export RSOCKET_CONF_DIR=$dir/conf
}
# A safeguard: it wakes the threads that sleep, and nothing depends on it.
conf wake_up_interval 10
VARIANT=wake_up_interval.10 topic settings often
for ms in 0 3600000; do
  conf wake_up_interval $ms
  VARIANT=wake_up_interval.$ms topic settings seldom
done
for t in waiting epoll epoll_members; do VARIANT=$t.wake_up_interval.3600000 topic $t; done
conf polling_time 1000000
VARIANT=polling_time.1000000 topic settings long_spin
for us in 0 10; do
  conf polling_time $us
  tmpdir STATS
  export RSOCKET_STATS="$STATS/%p"
  VARIANT=polling_time.$us topic settings no_spin
  spins=$(($(stat_sum spins.paid "$STATS") + $(stat_sum spins.failed "$STATS")))
  if [ $us = 0 ]; then check "polling_time.0 spins never" "$spins times" [ $spins = 0 ]
  else check "polling_time.$us spins" "never" [ $spins -gt 0 ]; fi
done
unset RSOCKET_CONF_DIR

# Ten thousand connections, one after the other: nothing grows.
rounds=10000
[ "$QUICK" = 1 ] && rounds=1500
RS_ROUNDS=$rounds VARIANT=churn.$rounds topic churn
# And many at once, more than there are processors: a thread may be put aside at any place for as
# long as the others run.
crowd=()
for i in 1 2 3 4; do
  RS_SLOW=4 RS_ROUNDS=$((rounds / 2)) limit 300 "$dir/churn" >"$dir/churn.$i" 2>&1 &
  crowd+=($!)
done
for i in 1 2 3 4; do
  wait "${crowd[i - 1]}"
  check "churn.crowd.$i" "$(cat "$dir/churn.$i")" test "$(grep -c '^ok' "$dir/churn.$i")" = 2
done

# Datagrams meet by UDP, and then share memory.
tmpdir STATS
export RSOCKET_STATS="$STATS/%p"
datagrams_carried() {
  local shm udp
  shm=$(stat_sum messages.sent.shm "$STATS") udp=$(stat_sum datagrams.sent.udp "$STATS")
  check "$1 ($shm datagrams by shm, $udp by udp)" "too few" [ "$shm" -gt $((udp * 4)) ]
}
for t in datagrams datagrams_waiting gaps_datagrams; do both_families $t; done
datagrams_carried "datagrams went by shared memory"
check "nonsense was counted" "$(stat_sum datagrams.ignored "$STATS") packets" [ "$(stat_sum datagrams.ignored "$STATS")" -gt 1000 ]

# stream PROGRAM ADDRESS OPTION... : a server and a client with the same options. (With different
# ones it hangs, whichever library carries the bytes.)
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
# It watches memory without making a call, and leaves the processor to no other thread.
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
  head -c $((64 << 20 | 1)) /dev/urandom >"$dir/in"
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
