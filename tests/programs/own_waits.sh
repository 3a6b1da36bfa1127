#!/usr/bin/env bash
# Programs that wait for their sockets past libc's functions, or half the time. They do so by
# instructions of their own or through libc's `syscall`, by io_submit or epoll, on sockets that
# block and that do not. They never hang, and are told of no event but their own. Such a program
# stays on TCP, and says why; one that begins to wait so goes back to it. What was looked at for
# that is remembered. With RUNTIMES=1 also servers on smol and async-std, which cargo builds (once;
# it takes a minute). Also servers on Bun, which npm brings, asked by curl and wrk.
. "$(dirname "$0")/common.sh"
need cc=gcc /usr/bin/python3=python3
# STARTS: of each; HOW: which of own_waits.c's ways, none with an empty one.
MEGABYTES=${MEGABYTES:-2}
STARTS=${STARTS:-1}
tmpdir built
cc -O2 -Wall -Wextra -o "$built/instruction" "$HERE/own_waits.c" || die "own_waits.c does not build"
cc -O2 -Wall -Wextra -DBY_LIBC -o "$built/libc" "$HERE/own_waits.c" || die "own_waits.c does not build"

# runtimes: builds them where they stay until their sources change.
runtimes() {
  local sources=$HERE/runtimes
  RUNTIMES_AT=${XDG_CACHE_HOME:-$HOME/.cache}/rsocket-runtimes
  (cd "$sources" && env -u CARGO_BUILD_TARGET CARGO_TARGET_DIR="$RUNTIMES_AT" cargo build -q --release --locked) ||
    die "the runtimes' servers do not build"
}

# bun_of_npm: brings it where the servers are.
bun_of_npm() {
  BUN=$RUNTIMES_AT/package/bin/bun
  [ -x "$BUN" ] && return
  (cd "$RUNTIMES_AT" && npm pack --silent "@oven/bun-linux-x64-baseline@1" | xargs -n 1 tar xzf && chmod +x "$BUN") ||
    die "npm does not bring bun"
}

# bun: serves 300,000 bytes at a time, STARTS times; its first answer and its last are looked at,
# and those between are many.
bun() {
  local k port said
  for ((k = 0; k < STARTS; k++)); do
    rm -f "$dir/port"
    start server "${P[@]}" "$BUN" "$HERE/bun_serve.js" "$dir/port"
    for ((i = 0; i < 500; i++)); do [ -s "$dir/port" ] && break; nap 0.02; done
    port=$(cat "$dir/port")
    said=$(limit 20 "${P[@]}" curl -s "http://127.0.0.1:$port/"{1,2} | tr -d x | wc -c)
    check "bun: every byte to curl" "$said others" same "$said" 0
    said=$(limit 20 "${P[@]}" curl -s "http://127.0.0.1:$port/"{1,2} | wc -c)
    check "bun: all bytes to curl" "$said" same "$said" 600000
    said=$(limit 20 "${P[@]}" wrk --timeout 60s -t 1 -c4 -d1s "http://127.0.0.1:$port/" 2>&1)
    check "bun: answers wrk" "$said" answers "$said"
    limit 20 "${P[@]}" curl -s -o "$dir/bye" "http://127.0.0.1:$port/stop"
    check "bun: ends when it is asked to" "it does not" gone "$server" 10
    stop "$server"
  done
}

# answers SAID: wrk had answers, and no error.
answers() { [[ $1 =~ Requests/sec:\ +[1-9] ]] && [[ ! $1 =~ (Socket|Non-2xx) ]]; }

# talk NAME PROGRAM [ARGS]: the server with a port file before its ARGS, and a client that asks it,
# STARTS times.
talk() {
  local name=$1 program=$2 said k
  shift 2
  for ((k = 0; k < STARTS; k++)); do
    rm -f "$dir/port"
    start server "${P[@]}" "$program" "$dir/port" "$@"
    for ((i = 0; i < 500; i++)); do [ -s "$dir/port" ] && break; nap 0.02; done
    said=$(limit 40 "${P[@]}" "$PYTHON" "$HERE/echo_ask.py" "$(cat "$dir/port")" "$MEGABYTES" 2>&1)
    check "$name: every byte" "$said" same "$said" "all as sent"
    check "$name: the server ends as it should" "it does not" gone "$server" 10
    stop "$server"
  done
}

# shm COMPARISON NUMBER: what both ends sent over shared memory.
shm() { [ "$(stat_sum bytes.sent.shm "$STATS")" "$1" "$2" ]; }

# asked CLIENT: an echo server of Python's, and a client that the Python CLIENT runs.
asked() {
  local server port said
  free_port port
  start server "${P[@]}" "$PYTHON" "$HERE/selectors_echo.py" server EpollSelector 127.0.0.1 "$port"
  wait_port "$port" "$server" || fail "remembered: echo server" "does not listen"
  said=$(limit 40 "${P[@]}" "$1" "$HERE/echo_ask.py" "$port" "$MEGABYTES" 2>&1)
  check "remembered: every byte" "$said" same "$said" "all as sent"
  stop "$server"
}

# remembered: what one process has looked at, the next does not look at; what is new it does, where
# the name was known, too.
remembered() {
  local table before
  mode default
  tmpdir dir
  chmod 700 "$dir"
  P+=("XDG_RUNTIME_DIR=$dir")
  table=$dir/rsocket/looked-at
  cp "$PYTHON" "$dir/program"
  asked "$PYTHON"
  check "remembered: attached" "$(stat_reasons "$STATS")" shm -ge 100000
  check "remembered: there is a table" "there is none" [ -s "$table" ]
  before=$(stat -c %y "$table")
  asked "$PYTHON"
  check "remembered: nothing is looked at twice" "it was" same "$(stat -c %y "$table")" "$before"
  asked "$dir/program"
  check "remembered: a new file is looked at" "it was not" [ "$(stat -c %y "$table")" != "$before" ]
  cp "$built/instruction" "$dir/program"
  tmpdir STATS
  P+=("RSOCKET_STATS=$STATS/%p")
  talk "remembered: with waits now" "$dir/program" epoll
  check "remembered: with waits now: stays on TCP" "$(stat_reasons "$STATS")" shm -eq 0
}

# shellcheck disable=SC2046
for m in $(if [ $# -gt 0 ]; then echo "$@"; else echo tcp default eager; fi); do
  for how in ${HOW-aio aio-block epoll mix late}; do
    for by in instruction libc; do
      mode "$m"
      tmpdir dir
      talk "$how by $by" "$built/$by" $how
      [ "$m" = tcp ] && continue
      # Only a wait that libc is asked for cannot be known before.
      if [ $how-$by = late-libc ]; then
        check "late by libc: leaves TCP" "$(stat_reasons "$STATS")" shm -ge $((100000 * STARTS))
        check "late by libc: comes back" "$(stat_reasons "$STATS")" [ "$(stat_sum detached "$STATS")" -ge "$STARTS" ]
      else check "$how by $by: stays on TCP" "$(stat_reasons "$STATS")" shm -eq 0; fi
      check "$how by $by: says why" "$(stat_reasons "$STATS")" [ "$(stat_sum on_tcp.unseen_wait "$STATS")" -ge "$STARTS" ]
    done
  done
  [ "$m" = default ] && remembered
  [ "${RUNTIMES:-0}" = 1 ] || continue
  need curl wrk npm
  runtimes
  if [ "$(uname -m)" = x86_64 ]; then
    bun_of_npm
    mode "$m"
    tmpdir dir
    bun
    [ "$m" = tcp ] || check "bun: stays on TCP" "$(stat_reasons "$STATS")" shm -eq 0
  fi
  for runtime in smol async_std; do
    mode "$m"
    tmpdir dir
    talk $runtime "$RUNTIMES_AT/release/${runtime}_echo"
    [ "$m" = tcp ] && continue
    check "$runtime: stays on TCP" "$(stat_reasons "$STATS")" shm -eq 0
    check "$runtime: says why" "$(stat_reasons "$STATS")" [ "$(stat_sum on_tcp.unseen_wait "$STATS")" -ge "$STARTS" ]
  done
done
exit $BAD
