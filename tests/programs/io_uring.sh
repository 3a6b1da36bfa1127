#!/usr/bin/env bash
# Programs that would use io_uring: through libc's `syscall`, through liburing, and node. Refused,
# they work as on a kernel without it and leave TCP; allowed (RSOCKET_IO_URING=tcp), they work on
# TCP.
. "$(dirname "$0")/common.sh"
need_cc
need /usr/bin/python3=python3 node=nodejs
[ -e /usr/include/liburing.h ] || apt_install liburing-dev
tmpdir dir
cc -O2 -Wall -o "$dir/rings" "$HERE/rings.c" -luring || die "rings.c does not compile"
MODE=tcp
free_port port
if [[ $("$PYTHON" -c 'import ctypes; l = ctypes.CDLL(None, use_errno=True); print(l.syscall(425, 1, None), ctypes.get_errno())') == *" 38" ]]; then
  say "SKIP $NAME: this kernel has no io_uring"
  exit 0
fi

# served PREFIX... : an echo server at $port.
served() {
  start server "$@" "$PYTHON" "$HERE/asyncio_echo.py" server 127.0.0.1 "$port" >"$dir/server" 2>&1
  wait_port "$port" "$server" || fail "start" "$(tail -3 "$dir/server")"
}
# one NAME HOW WANTED PREFIX... : what the program says, on two lines.
one() {
  local name=$1 how=$2 wanted=$3 got
  shift 3
  got=$(limit 60 "$@" "$dir/rings" "$port" "$how" 2>&1 | paste -sd,)
  check "$name, $how" "$got" same "$got" "$wanted"
}
bytes() { echo $(($(stat_sum "bytes.sent.$1" "$STATS") + $(stat_sum "bytes.received.$1" "$STATS"))); }

for MODE in tcp default refuse allow disabled; do
  free_port port
  tmpdir STATS
  L=(env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$STATS/%p")
  case $MODE in
    tcp) P=(env) wanted='ring,same' ;;
    default) P=("${L[@]}") wanted='no ring: Function not implemented,same' ;;
    refuse) P=("${L[@]}" RSOCKET_IO_URING=refuse) wanted='no ring: Function not implemented,same' ;;
    allow) P=("${L[@]}" RSOCKET_IO_URING=tcp) wanted='ring,same' ;;
    disabled) P=("${L[@]}" RSOCKET_DISABLE=1) wanted='ring,same' ;;
  esac
  [ "$MODE" = tcp ] || [ -f "$LIB" ] || build_lib
  served "${P[@]}"
  for how in syscall liburing; do one "a program" $how "$wanted" "${P[@]}"; done
  stop "$server" INT
  case $MODE in
    default | refuse) check "over shared memory" "$(bytes shm) by shm" test "$(bytes shm)" -gt 9000000 ;;
    # Half of it had left TCP, and went back.
    allow) check "back on TCP" "$(bytes tcp) by tcp, $(stat_reasons "$STATS")" test "$(stat_sum on_tcp.io_uring "$STATS")" -ge 2 ;;
  esac
  # node's event loop asks for a ring, for files and for its epoll_ctl.
  free_port port
  tmpdir STATS
  P=("${P[@]/RSOCKET_STATS=*/RSOCKET_STATS=$STATS/%p}" UV_USE_IO_URING=1)
  start server "${P[@]}" node "$HERE/node_http.js" server 127.0.0.1 "$port" >"$dir/server" 2>&1
  wait_port "$port" "$server" || fail "node starts" "$(tail -3 "$dir/server")"
  got=$(limit 60 "${P[@]}" node "$HERE/node_http.js" client 127.0.0.1 "$port" 4 2>&1 | tail -n 1)
  stop "$server" TERM
  check "node" "$got" same "$got" "160 requests, all bodies as sent"
  case $MODE in
    default | refuse) check "node over shared memory" "$(bytes shm) by shm; $(stat_reasons "$STATS")" test "$(bytes shm)" -gt 1000000 ;;
    allow) check "node on TCP" "$(bytes shm) by shm" test "$(bytes shm)" = 0 -a "$(bytes tcp)" -gt 1000000 ;;
  esac
done
exit $BAD
