#!/usr/bin/env bash
# Programs that begin under a seccomp filter, as service managers and container run-times start
# them. Where it allows what attaching needs, they attach. Where it does not, they stay on TCP, and
# say for which call. Never is a signal seen, a child that is not theirs, or a wrong byte. CALLS="a
# b": only these; ACTIONS: kill, trap, or an error's number.
. "$(dirname "$0")/common.sh"
need cc=gcc redis-server redis-benchmark=redis-tools redis-cli=redis-tools memcached setpriv=util-linux /usr/bin/python3=python3 systemd-analyze=systemd
MODE=default
[ -f "$LIB" ] || build_lib
tmpdir T
echo '#include <sys/syscall.h>' | cc -E -dM - | awk '/#define __NR_[a-z]/ { print "{\"" substr($2, 6) "\", " $2 "}," }' >"$T/filtered_calls.h"
cc -O2 -Wall -Wextra -Werror -I"$T" -o "$T/filtered" "$HERE/filtered.c" && cc -O2 -Wall -Wextra -Werror -pthread -o "$T/trial" "$HERE/trial.c" ||
  die "the helpers do not compile"
chmod 755 "$T"
cp "$LIB" "$T/"
LOADED=("LD_PRELOAD=$T/$(basename "$LIB")" "RSOCKET_STATS=$T/stats/%p")

# What bash says of the processes that a filter kills is of no use.
exec 2>"$T/shell"
# ends SERVER(array) HOW CLIENT(array) HOW [VARIABLE=VALUE...] : the two ends, each with its prefix;
# their exit codes are in CODES.
ends() {
  local -n serves=$1 asks=$3
  local a b server
  rm -rf "$T/stats" "$T/port"
  mkdir "$T/stats"
  (trap - EXIT TERM; exec "${serves[@]}" env "${@:5}" "$T/trial" serve "$2" "$T/port" 2>>"$T/said") &
  server=$!
  while [ ! -s "$T/port" ] && alive "$server"; do nap 0.01; done
  if [ ! -s "$T/port" ]; then
    wait "$server"
    CODES="not asked, $?"
    return
  fi
  (trap - EXIT TERM; exec "${asks[@]}" env "${@:5}" "$T/trial" ask "$4" "$T/port" 2>>"$T/said")
  a=$?
  [ $a = 0 ] || kill "$server" 2>/dev/null
  wait "$server" 2>/dev/null
  b=$?
  CODES="$a $b"
}
by_shm() { stat_sum bytes.sent.shm "$T/stats"; }
counted() { stat_sum "on_tcp.$1" "$T/stats"; }
said() { echo "exit codes $CODES, $(by_shm) bytes by shm, $(cat "$T"/stats/* 2>/dev/null | awk '/^on_tcp/ && $2 > 0' | tr '\n' ' ')$(tail -2 "$T/said")"; }

# attaches NAME, stays NAME REASON : what the last two ends have done.
right() { [ "$CODES" = "0 0" ]; }
attaches() { check "$1: attaches" "$(said)" eval 'right && [ "$(by_shm)" -gt 100000 ]'; }
stays() { check "$1: stays on TCP, $2" "$(said)" eval 'right && [ "$(by_shm)" = 0 ] && [ "$(counted "'"$2"'")" -ge 1 ]'; }

FREE=()
: >"$T/said"
# One filter that matters to neither end: what shows that the process may make processes, and what
# does not.
HARMLESS=("$T/filtered" kill acct --)
ends HARMLESS alone FREE alone "${LOADED[@]}"
stays "nothing shows that it may make processes" sandboxed.untried
ends FREE alone HARMLESS alone "${LOADED[@]}"
stays "nothing shows that the client may make processes" sandboxed.untried
for how in threads stack forked waits; do
  ends HARMLESS $how FREE alone "${LOADED[@]}"
  attaches "a server that shows it ($how)"
  ends FREE alone HARMLESS $how "${LOADED[@]}"
  attaches "a client that shows it ($how)"
done
CHILD=("${HARMLESS[@]}" sh -c '"$@"; exit $?' sh)
ends CHILD alone CHILD alone "${LOADED[@]}"
attaches "the parent has the same filter"
MORE=("${HARMLESS[@]}" sh -c '"$@"; exit $?' sh "${HARMLESS[@]}")
ends MORE alone FREE alone "${LOADED[@]}"
stays "the parent has fewer filters" sandboxed.untried
ends HARMLESS alone HARMLESS alone "${LOADED[@]}" RSOCKET_SECCOMP=probe
attaches "RSOCKET_SECCOMP=probe"
ends HARMLESS alone HARMLESS alone "${LOADED[@]}" RSOCKET_SECCOMP=trust
attaches "RSOCKET_SECCOMP=trust"
ends HARMLESS threads FREE alone "${LOADED[@]}" RSOCKET_SECCOMP=refuse
stays "RSOCKET_SECCOMP=refuse" sandboxed
check "RSOCKET_SECCOMP=refuse: names no call" "$(said)" same "$(counted sandboxed.untried)" 0
ends HARMLESS threads FREE alone "${LOADED[@]}" RSOCKET_SECCOMP=Probe RSOCKET_LOG=warn
attaches "a value that means nothing"
check "a value that means nothing: a warning" "$(cat "$T/said")" grep -q "RSOCKET_SECCOMP is none of" "$T/said"
NO_CLONE=("$T/filtered" kill clone clone3 fork vfork --)
ends NO_CLONE alone FREE alone "${LOADED[@]}"
stays "a filter that kills for a process" sandboxed.untried
# Threads show that the call may be made by which they are made, and no other.
NO_FORK=("$T/filtered" kill clone fork vfork --)
ends NO_FORK threads FREE alone
if right; then
  ends NO_FORK threads FREE alone "${LOADED[@]}"
  stays "threads, and a filter that kills for a fork" sandboxed.clone
fi
NO_CLONE=("$T/filtered" 1 clone clone3 fork vfork --)
ends NO_CLONE alone FREE alone "${LOADED[@]}" RSOCKET_SECCOMP=probe
stays "a filter that has no place for a process" sandboxed.no_process
SHAPES=("socket:0=1 socket.AF_UNIX" "fcntl:1=1030 fcntl.F_DUPFD_CLOEXEC" "getsockopt:2=17 getsockopt.SO_PEERCRED" "ioctl:1=0x541b ioctl.FIONREAD")
for shape in "${SHAPES[@]}"; do
  read -r call name <<<"$shape"
  for action in kill trap 1; do
    FILTER=("$T/filtered" $action "$call" --)
    ends FILTER threads FREE alone "${LOADED[@]}"
    stays "$action for $call" "sandboxed.$name"
  done
done
# Where the kernel cannot be asked which process has the other end, both ends prove that they know
# the handshake, if a filter allows that. The first connection of a server that has set no option
# before may have come too early for that.
REUSES=("${LOADED[@]}" REUSE=1)
for action in kill 97; do
  NO_NETLINK=("$T/filtered" $action socket:0=16 --)
  ends NO_NETLINK threads FREE alone "${REUSES[@]}"
  attaches "$action for a netlink socket, server"
  ends FREE alone NO_NETLINK threads "${REUSES[@]}"
  attaches "$action for a netlink socket, client"
  ends NO_NETLINK threads NO_NETLINK threads "${REUSES[@]}"
  attaches "$action for a netlink socket, both"
  for call in pidfd_open getsockopt:2=24 getsockopt:2=28; do
    NEITHER=("$T/filtered" "$action" socket:0=16 "$call" --)
    ends NEITHER threads FREE alone "${REUSES[@]}"
    case $action-$call in
      97-pidfd_open) attaches "$action for a netlink socket and $call: by pid" ;;
      *) check "$action for a netlink socket and $call" "$(said)" right ;;
    esac
    ends FREE alone NEITHER threads "${REUSES[@]}"
    check "$action for a netlink socket and $call, client" "$(said)" right
    WAY=("$T/filtered" "$action" "$call" --)
    ends WAY threads WAY threads "${REUSES[@]}"
    attaches "$action for $call"
  done
done
# The program's own filter, later: it goes back first.
ends HARMLESS alone FREE late "${LOADED[@]}"
check "a filter that comes later" "$(said)" right
ends CHILD late FREE alone "${LOADED[@]}"
check "a second filter that comes later: back to TCP first" "$(said)" eval 'right && [ "$(counted sandboxed)" -ge 1 ]'

# Every call that is tried, at both ends: a filter that kills for it, and others. Those that the
# program makes itself are left out, and those that the library makes before it knows of a filter
# (docs/system-calls.md, "In a sandbox").
EARLY=" getpid gettid munlock "
# Those to which there is another way.
OTHER=" pidfd_open fchmodat sched_setaffinity "
tested=0
# shellcheck disable=SC2013
for call in ${CALLS:-$(grep -o 'SYS_[a-z0-9_]*' "$ROOT/rsocket-host/src/facts/trial/calls.rs" | sed 's/SYS_//' | sort -u)}; do
  [[ $EARLY$OTHER == *" $call "* ]] && continue
  for action in ${ACTIONS:-kill 1}; do
    FILTER=("$T/filtered" "$action" "$call" --)
    ends FILTER threads FILTER threads "${LOADED[@]}" RSOCKET_ATTACH=eager
    if ! right; then
      why=$(said)
      ends FILTER threads FILTER threads
      right && fail "$action for $call" "$why"
      continue
    fi
    tested=$((tested + 1))
    named=$(cat "$T"/stats/* | awk -v c="on_tcp.sandboxed.$call" 'index($1, c) == 1 { n += $2 } END { print n + 0 }')
    if [ "$(by_shm)" = 0 ] && [ "$named" = 0 ] && [ "$(stat_files "$T/stats")" -gt 0 ]; then fail "$action for $call" "$(said)"; fi
    [ "$(by_shm)" -gt 0 ] && [ "$action" = kill ] && fail "$action for $call" "attached under it: $(said)"
  done
done
check "each call that is tried: $tested filters" "$tested filters only" test $tested -ge "${LEAST:-60}"

# Debian's unit of redis-server, as far as filters go, and containers' usual one.
# calls SET : the names in one of systemd's sets.
calls() {
  local line
  systemd-analyze syscall-filter "$1" | tail -n +2 | while read -r line; do
    case $line in
      '' | \#*) ;;
      @*) calls "$line" ;;
      *) echo "$line" ;;
    esac
  done
}
mapfile -t SERVICE < <(comm -23 <({ calls @system-service; calls @default; } | sort -u) <({ calls @privileged; calls @resources; } | sort -u))
FAMILIES=()
# As the unit has it, AF_NETLINK is not among those that are allowed.
for ((f = 3; f < 45; f++)); do [ $f = 10 ] || FAMILIES+=("socket:0=$f"); done
UNIT=("$T/filtered" 97 "${FAMILIES[@]}" -- "$T/filtered" -only kill "${SERVICE[@]}" --)
CONTAINER=("$T/filtered" 1 acct add_key bpf clock_adjtime clock_settime delete_module finit_module init_module ioperm iopl kcmp
  kexec_file_load kexec_load keyctl lookup_dcookie mbind mount move_pages name_to_handle_at open_by_handle_at perf_event_open
  pivot_root process_vm_readv process_vm_writev ptrace quotactl reboot request_key set_mempolicy setns settimeofday swapon swapoff
  umount2 unshare userfaultfd io_uring_setup io_uring_enter io_uring_register -- "$T/filtered" 38 clone3 --)

# redis NAME FILTER(array) : redis-server under it.
redis() {
  local -n filter=$2
  local port server
  rm -rf "$T/stats"
  mkdir "$T/stats"
  free_port port
  "${filter[@]}" env "${LOADED[@]}" redis-server --port "$port" --bind 127.0.0.1 --save '' --appendonly no --dir "$T" >"$T/redis.log" 2>&1 &
  server=$!
  wait_port "$port" "$server" || { fail "$1" "$(tail -3 "$T/redis.log")"; return; }
  limit 60 env "${LOADED[@]}" redis-benchmark -h 127.0.0.1 -p "$port" -c 20 -n 20000 -t set,get --csv >"$T/out" 2>&1
  CODES="$? $(grep -c '^"[GS]ET"' "$T/out")"
  check "$1: redis's answers" "$(tail -3 "$T/out")" same "$CODES" "0 2"
  check "$1: redis's value" "another value" same "$(redis-cli -h 127.0.0.1 -p "$port" get key:__rand_int__ | tr -d '\n')" VXK
  redis-cli -h 127.0.0.1 -p "$port" shutdown nosave >"$T/out" 2>&1
  wait "$server"
  check "$1: redis ends as it should" "exit code $?" same $? 0
  check "$1: redis attaches" "$(said)" test "$(by_shm)" -gt 1000000
}
redis "its unit's filter, set to kill," UNIT
redis "a container's filter" CONTAINER

# memcached under its unit's filter, as a user of its own: sets and gets of one connection.
rm -rf "$T/stats"
mkdir -m 777 "$T/stats"
free_port port
AS_USER=()
[ "$(id -u)" != 0 ] || AS_USER=(setpriv --reuid=65533 --regid=65533 --clear-groups)
"${AS_USER[@]}" "${UNIT[@]}" env "${LOADED[@]}" memcached -l 127.0.0.1 -p "$port" -U 0 >"$T/memcached.log" 2>&1 &
server=$!
wait_port "$port" "$server" || fail "memcached" "$(tail -3 "$T/memcached.log")"
limit 30 env "${LOADED[@]}" "$PYTHON" -c '
import socket, sys
c = socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=20)
f = c.makefile("rb", buffering=0)
def line():
    got = b""
    while not got.endswith(b"\r\n"): got += c.recv(1)
    return got
def exactly(n):
    got = b""
    while len(got) < n: got += c.recv(n - len(got))
    return got
for i in range(300):
    value = bytes([i % 251]) * (700 + i)
    c.sendall(b"set k%d 0 0 %d\r\n%s\r\n" % (i, len(value), value))
    if line() != b"STORED\r\n": sys.exit("not stored")
    c.sendall(b"get k%d\r\n" % i)
    if line() != b"VALUE k%d 0 %d\r\n" % (i, len(value)) or exactly(len(value) + 7) != value + b"\r\nEND\r\n": sys.exit("another value")
print("right")' "$port" >"$T/out" 2>&1
check "memcached's answers" "$(tail -3 "$T/out")" same "$(cat "$T/out")" right
kill -TERM "$server"
wait "$server"
CODES="- $?"
check "memcached attaches" "$(said)" test "$(by_shm)" -gt 100000
exit $BAD
