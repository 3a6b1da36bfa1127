#!/usr/bin/env bash
# Which programs and sockets the library takes: preload_config, and upstream's variables.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
MODE=default
[ -f "$LIB" ] || build_lib
tmpdir dir
short=$(basename "$PYTHON")
# moved RULES ADDRESS VARIABLE... : how many bytes a preloaded pair moved by shared memory; -1 if
# they were not as sent.
moved() {
  local rules=$1 address=$2 server port rc=0
  shift 2
  tmpdir STATS
  mkdir -p "$dir/conf"
  printf '%b' "$rules" >"$dir/conf/preload_config"
  free_port port
  P=(env "$@" "LD_PRELOAD=$LIB" "RSOCKET_STATS=$STATS/%p" "RSOCKET_CONF_DIR=$dir/conf")
  start server "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" server "$address" "$port" >"$dir/out" 2>&1
  wait_port "$port" "$server" || rc=1
  CLIENTS=4 MESSAGES=60 limit 60 "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" client "$address" "$port" >"$dir/out" 2>&1 || rc=1
  stop "$server" INT
  if [ $rc = 0 ]; then MOVED=$(stat_sum bytes.sent.shm "$STATS"); else MOVED=-1; fi
}
taken() { moved "$2" "$3" "${@:4}"; check "$1" "$MOVED bytes by shm" test "$MOVED" -gt 100000; }
left() { moved "$2" "$3"; check "$1" "$MOVED bytes by shm" test "$MOVED" = 0; }

taken "no file that means anything: everything" '# nothing\n' 127.0.0.1
taken "this program" "$short inet stream tcp\n" 127.0.0.1
taken "this program, in capitals, and types with prefixes" "${short^^} AF_INET SOCK_STREAM IPPROTO_TCP\n" 127.0.0.1
left "a name that only begins like this program's" "${short%?} * * *\n${short}x * * *\n" 127.0.0.1
left "another program" 'nginx * stream tcp\n' 127.0.0.1
left "datagrams only" '* inet dgram udp\n' 127.0.0.1
if grep -q . /proc/net/if_inet6 2>/dev/null; then
  left "IPv6 only, over IPv4" '* inet6 stream tcp\n' 127.0.0.1
  taken "IPv6 only" '* inet6 stream tcp\n' ::1
fi
taken "upstream's variables" '' 127.0.0.1 RS_SQ_SIZE=100 RS_RQ_SIZE=200 RS_INLINE=0
exit $BAD
