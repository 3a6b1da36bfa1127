# shellcheck shell=bash disable=SC2034
# The program pairs of the table (tests/programs/table): what serves, what asks, and how each byte
# is compared.
#
# A row NAME has three functions, and they may run on two hosts. `NAME_serve` starts what listens on
# $ADDR, port $PORT. `NAME_ask` runs the clients. `NAME_end` (if there is one) ends and judges the
# servers; else they are asked to end by SIGTERM. Each is false, and has said why on standard error,
# if something was not as it should be. $DIR is a directory of the row's own on each host, $DATA one
# with the same files everywhere. "${P[@]}" is the prefix of a program that has the library, $MODE
# what it was told, $STATS where it reports. Sizes are $BIG, $LONG, $MIDDLE, $TLS, $SECS, $MPS,
# $REQUESTS, $CROWD, $ECHO, $SELECTOR_BYTES and $ROUNDS. $SHARED, $SCP and $UPGRADES are for the
# rows of rows_family.sh, which this sources.
: "${HERE:=$ROOT/tests/programs}"
. "$HERE/rows_family.sh"

# In the order of the table.
ROWS=(
  http-1k http-big http-100
  iperf3 iperf3-P4 iperf3-R iperf3-bidir iperf2
  redis-cli redis-c1 redis-c50 redis-P16 redis-replica
  nginx-keepalive nginx-close nginx-sendfile nginx-reload nginx-wrk
  sockperf-pp sockperf-tp sockperf-ul
  nc-openbsd nc-traditional ncat
  asyncio selectors-epoll selectors-poll selectors-select socketserver-thread socketserver-fork
  node tls
  memcached rsync git inetd-script
)
# The rows of rows_family.sh; for one host there are scripts of their own that see more (ssh.sh,
# prefork.sh, resync.sh, forking.sh, heirs.sh).
FAMILY_ROWS=(ssh scp nginx-upgrade gunicorn redis-bgsave fork-echo socat-exec socat-nofork inetd inetd-static)
# Rows that also run with RSOCKET_TRANSPORT=rdma, over each kind of device.
RDMA_ROWS=(http-big redis-c1 iperf3)
# What a row's connections carry at least, both directions and both ends together; 20 KB where
# nothing is said.
declare -A LEAST=([http-1k]=2000)
# Rows whose connections are too short to leave TCP by the default policy.
declare -A SHORT=([http-1k]=1)
# Rows for which TCP cannot be excluded. sshd's sandboxed process speaks before its connection could
# leave it, and a program without the library knows nothing else. Where the mode is shm these run by
# the default policy.
declare -A NOT_ALONE=([ssh]=1 [scp]=1 [inetd-static]=1)
# Rows whose connections may be on TCP for the most part: from there on, where something took them
# that cannot have them otherwise.
declare -A MAY_LEAVE=([inetd-static]=1)

need_rows() {
  need curl /usr/bin/python3=python3 redis-server redis-cli=redis-tools redis-benchmark=redis-tools nginx wrk sockperf iperf3 iperf \
    nc.openbsd=netcat-openbsd nc.traditional=netcat-traditional ncat node=nodejs openssl \
    memcached memcslap=libmemcached-tools rsync git socat
  need_family
}

# make_data ROW... : what these rows send. The same bytes wherever this runs: a cipher's stream.
make_data() {
  local name size
  mkdir -p "$DATA"
  [[ " $* " == *" http-big "* ]] || BIG=1048576
  while read -r name size; do
    openssl enc -aes-128-ctr -nosalt -K 00112233445566778899aabbccddeeff -iv 0 -in /dev/zero 2>/dev/null |
      head -c "$size" >"$DATA/$name"
  done <<<"big $BIG
long $LONG
middle $MIDDLE
body 1048576
small 1024"
  # Lower-case hexadecimal digits, which s_client does not take for its commands.
  [[ " $* " != *" tls "* ]] || cat "$DATA/middle" "$DATA/middle" | head -c $((TLS / 2)) | od -An -v -tx1 -w64 | tr -d ' ' >"$DATA/tls"
  chmod -R a+rX "$DATA"
}

# ---------------------------------------------------------------- what the rows share

because() { printf '%s\n' "$*" >&2; return 1; }
# alike FILE FILE
alike() { cmp "$1" "$2" >&2 2>&1; }
# quiet COMMAND... : its output goes to the reader only if it fails.
quiet() { "$@" >"$DIR/out" 2>&1 || because "$1 ${2:-}: exit $?: $(tail -n 4 "$DIR/out")"; }
# serve COMMAND... : starts it; the row's servers are stopped at its end.
serve() {
  local pid
  start pid "$@" >"$DIR/server.${#SERVERS[@]}" 2>&1
  SERVERS+=("$pid")
}

# stop_servers : asks them to end, or waits for them where they end by themselves; false if one does
# not, or not well.
stop_servers() {
  local i p rc=0
  for i in "${!SERVERS[@]}"; do
    p=${SERVERS[i]}
    if [ "$STOP" = itself ]; then
      gone_child "$p" 30 || { stop "$p" KILL; because "a server did not end"; rc=1; }
    elif ! kill -0 "$p" 2>/dev/null; then
      because "a server ended before it was asked to: $(tail -n 4 "$DIR/server.$i" 2>/dev/null)"
      rc=1
    else stop "$p" "$STOP" 20 || { because "a server did not end"; rc=1; }
    fi
  done
  SERVERS=()
  return $rc
}
# up PID [PORT] : until it listens; over RDMA the kernel shows that where `rdma` looks.
up() {
  if [ "$MODE" = rdma ]; then wait_listen "${2:-$PORT}" "$1" 60
  else wait_port "${2:-$PORT}" "$1" 60; fi
}

human() { awk -v n="$1" 'BEGIN { split("B KiB MiB GiB TiB", u); i = 1; while (n >= 1024 && i < 5) { n /= 1024; i++ } printf (i == 1 ? "%d %s" : "%.1f %s"), n, u[i] }'; }
counted() { echo $(($(stat_sum "bytes.sent.$1" "$STATS") + $(stat_sum "bytes.received.$1" "$STATS"))); }
# ---------------------------------------------------------------- http.server, curl

http_server() { serve "${P[@]}" "$PYTHON" -m http.server --protocol HTTP/1.1 --bind "$ADDR" --directory "$DATA" "$PORT"; STOP=INT; }
# bodies FILE TIMES : one curl asks for the file that often.
bodies() {
  local i
  for ((i = 0; i < $2; i++)); do printf 'url=http://%s:%s/%s\noutput=-\n' "$ADDR" "$PORT" "$1"; done >"$DIR/urls"
  for ((i = 0; i < $2; i++)); do cat "$DATA/$1"; done >"$DIR/want"
  limit 180 "${P[@]}" curl -sS -K "$DIR/urls" >"$DIR/got" 2>"$DIR/err" || because "curl: $(tail -n 2 "$DIR/err")" || return
  alike "$DIR/want" "$DIR/got" && rm -f "$DIR/want" "$DIR/got"
}
http-1k_serve() { http_server; }
http-1k_ask() { bodies small 1; }
http-big_serve() { http_server; }
http-big_ask() { bodies big 1; }
http-100_serve() { http_server; }
http-100_ask() { bodies small 100; }

# ---------------------------------------------------------------- iperf3

iperf3-P4_serve() { iperf3_serve; }
iperf3-R_serve() { iperf3_serve; }
iperf3-bidir_serve() { iperf3_serve; }
iperf3_serve() { serve "${P[@]}" iperf3 -s -1 -B "$ADDR" -p "$PORT"; STOP=itself; }
iperf3_ask() {
  quiet limit 90 "${P[@]}" iperf3 -c "$ADDR" -p "$PORT" -t "$SECS" -J "$@" || return
  "$PYTHON" - "$DIR/out" <<'PY'
import json, sys
r = json.load(open(sys.argv[1]))
if "error" in r:
    sys.exit(r["error"])
sums = [k for k in r["end"] if k.startswith("sum_received")]
sys.exit(next(("nothing arrived: " + k for k in sums if not r["end"][k]["bytes"]), 0 if sums else "no sums"))
PY
}
# It asks for the times of arrival, and does not look at them.
iperf2_serve() { serve "${P[@]}" iperf -s -B "$ADDR" -p "$PORT"; }
iperf2_ask() {
  quiet limit 90 "${P[@]}" iperf -c "$ADDR" -p "$PORT" -t "$SECS" -P 2 -y C || return
  "$PYTHON" - "$DIR/out" <<'PY'
import sys
lines = [l.split(",") for l in open(sys.argv[1]) if l.count(",") >= 8]
sys.exit(0 if len(lines) >= 2 and all(int(l[7]) > 0 for l in lines) else f"no bytes: {lines}")
PY
}
iperf3-P4_ask() { iperf3_ask -P 4; }
iperf3-R_ask() { iperf3_ask -R; }
iperf3-bidir_ask() { iperf3_ask --bidir; }

# ---------------------------------------------------------------- redis

redis_server() {
  mkdir -p "$DIR/$1"
  serve "${P[@]}" redis-server --port "$2" --bind "$3" --protected-mode no --save '' --appendonly no --dir "$DIR/$1" --daemonize no \
    --enable-debug-command yes --repl-diskless-sync-delay 0
}
redis() { limit 60 "${P[@]}" redis-cli -h "$ADDR" -p "$PORT" "$@"; }
replica() { limit 60 "${P[@]}" redis-cli -h "$ADDR_HERE" -p "$port" "$@"; }
# caught_up KEY VALUE : sets it, and returns when the replica has that, and so everything before.
# (WAIT is about writes of the connection that it comes by.)
caught_up() { printf 'set %s %s\nwait 1 20000\n' "$1" "$2" | redis >/dev/null 2>&1; }
redis-cli_serve() { redis_server a "$PORT" "$ADDR"; }
redis-c1_serve() { redis-cli_serve; }
redis-c50_serve() { redis-cli_serve; }
redis-P16_serve() { redis-cli_serve; }
redis-replica_serve() { redis-cli_serve; }
redis-cli_ask() {
  local i
  [ "$(redis -x set value <"$DATA/body" 2>&1)" = OK ] || because "set of 1 MiB failed" || return
  # redis-cli adds a newline to what it prints.
  redis get value >"$DIR/got" 2>&1
  { cat "$DATA/body"; echo; } >"$DIR/want"
  alike "$DIR/want" "$DIR/got" || return
  for ((i = 1; i <= 500; i++)); do printf 'set k%d v%d\nget k%d\n' $i $i $i; done | redis >"$DIR/got" 2>&1
  for ((i = 1; i <= 500; i++)); do printf 'OK\nv%d\n' $i; done >"$DIR/want"
  alike "$DIR/want" "$DIR/got"
}
redis_bench() {
  quiet limit 120 "${P[@]}" redis-benchmark -h "$ADDR" -p "$PORT" -n "$REQUESTS" -t set,get,lrange_100 -d 100 --csv "$@" || return
  [ "$(grep -c '^"[GSL].*","[0-9]' "$DIR/out")" -ge 3 ] || because "$(tail -n 3 "$DIR/out")"
}
redis-c1_ask() { redis_bench -c 1; }
redis-c50_ask() { redis_bench -c 50; }
redis-P16_ask() { redis_bench -c "${CROWD:-50}" -P 16; }
# A second server copies what the first one holds, follows it while it changes, and holds the same
# in the end.
redis-replica_ask() {
  local i port=$((PORT + 1)) from to
  redis -x set value <"$DATA/body" >/dev/null 2>&1
  quiet redis debug populate 20000 before 100 || return
  redis_server b "$port" "$ADDR_HERE"
  up "${SERVERS[-1]}" "$port" || because "the replica did not start" || return
  replica replicaof "$ADDR" "$PORT" >/dev/null 2>&1 || return
  for ((i = 0; i < 300; i++)); do
    replica info replication 2>/dev/null | grep -q 'master_link_status:up' && break
    nap 0.1
  done
  quiet limit 60 "${P[@]}" redis-benchmark -h "$ADDR" -p "$PORT" -n 2000 -c 10 -r 1000 -t set,lpush -q || return
  caught_up last value
  from=$(redis debug digest 2>&1)
  to=$(replica debug digest 2>&1)
  [ ${#from} -ge 40 ] && [ "$from" = "$to" ] || because "$from, but the replica holds $to ($(redis dbsize 2>&1) keys)"
}

# ---------------------------------------------------------------- nginx

nginx_serve() {
  local user=
  # Not nginx's default, the user nobody: that is also the user of everything that has no user here,
  # and never trusted.
  [ "$(id -u)" = 0 ] && user='user www-data;'
  mkdir -p "$DIR/t"
  cat >"$DIR/conf" <<CONF
$user
worker_processes 2;
daemon off;
pid $DIR/pid;
error_log $DIR/error.log warn;
env RSOCKET_STATS;
events { worker_connections 512; }
http {
  access_log off;
  sendfile ${1:-off};
  keepalive_requests 1000000;
  client_body_temp_path $DIR/t/1; proxy_temp_path $DIR/t/2; fastcgi_temp_path $DIR/t/3;
  uwsgi_temp_path $DIR/t/4; scgi_temp_path $DIR/t/5;
  server { listen $ADDR:$PORT; root $DATA; }
}
CONF
  STOP=QUIT
  serve "${P[@]}" nginx -p "$DIR" -c "$DIR/conf" -e "$DIR/error.log"
}
nginx_end() {
  stop_servers && [ -z "$(grep -Ev '\[(notice|info)\]' "$DIR/error.log" 2>/dev/null)" ] || because "$(tail -n 3 "$DIR/error.log")"
}
nginx-keepalive_serve() { nginx_serve off; }
nginx-keepalive_ask() { bodies body 20; }
nginx-keepalive_end() { nginx_end; }
nginx-close_serve() { nginx_serve off; }
# What pushes one way begins to leave TCP after some MiB, and looks for its other end at positions
# that double. On a busy machine a body of 16 MiB is over first.
nginx-close_ask() {
  local body
  for body in middle middle long long; do
    limit 60 "${P[@]}" curl -sS -H 'Connection: close' "http://$ADDR:$PORT/$body" >"$DIR/got" 2>"$DIR/err" ||
      because "curl: $(tail -n 2 "$DIR/err")" || return
    alike "$DATA/$body" "$DIR/got" || return
  done
}
nginx-close_end() { nginx_end; }
nginx-sendfile_serve() { nginx_serve on; }
nginx-sendfile_ask() { bodies middle 3 && nginx-close_ask; }
nginx-sendfile_end() { nginx_end; }
# The master replaces its workers again and again; a client that has begun to get a body gets it
# whole.
nginx-reload_serve() {
  nginx_serve on
  start RELOADER bash -c 'while sleep 0.5 && kill -HUP "$1"; do :; done' reload "${SERVERS[0]}" 2>/dev/null
}
nginx-reload_ask() {
  local pids=() p i rc=0
  for i in 1 2 3 4; do
    (
      trap - EXIT
      end=$((SECONDS + SECS + 2))
      while [ $SECONDS -lt $end ]; do
        limit 60 "${P[@]}" curl -sS "http://$ADDR:$PORT/middle" >"$DIR/got.$i" 2>"$DIR/err.$i" && cmp "$DATA/middle" "$DIR/got.$i" >>"$DIR/err.$i" 2>&1 || exit 1
      done
    ) &
    pids+=($!)
  done
  for p in "${pids[@]}"; do wait "$p" || rc=1; done
  [ $rc = 0 ] || because "$(tail -q -n 2 "$DIR"/err.*)"
}
nginx-reload_end() { stop "$RELOADER" KILL 2>/dev/null; nginx_end; }
nginx-wrk_serve() { nginx_serve on; }
nginx-wrk_ask() {
  local what how
  for what in small body; do
    for how in keep-alive close; do
      [ $what$how != smallclose ] || continue
      quiet limit 60 "${P[@]}" wrk -t 2 -c "${CROWD:-20}" -d "${SECS}s" --timeout 60s -H "Connection: $how" "http://$ADDR:$PORT/$what" || return
      ! grep -Eq 'Socket errors|Non-2xx| 0 requests in' "$DIR/out" || because "wrk $what $how: $(tail -n 4 "$DIR/out")" || return
    done
  done
}
nginx-wrk_end() { nginx_end; }

# ---------------------------------------------------------------- sockperf

sockperf_serve() { serve "${P[@]}" sockperf server --tcp -i "$ADDR" -p "$PORT"; STOP=INT; }
sockperf-pp_serve() { sockperf_serve; }
sockperf-tp_serve() { sockperf_serve; }
sockperf-ul_serve() { sockperf_serve; }
sockperf_ask() { quiet limit 60 "${P[@]}" sockperf "$@" --tcp -i "$ADDR" -p "$PORT" -t "$SECS"; }
# (What is under way when the time is over may be counted as dropped.)
sockperf_clean() {
  grep -q 'dropped messages = [01]; # duplicated messages = 0; # out-of-order messages = 0' "$DIR/out" || because "$(tail -n 4 "$DIR/out")"
}
sockperf-pp_ask() { sockperf_ask ping-pong --mps=5000000 --msg-size=64 && sockperf_clean; }
sockperf-tp_ask() { sockperf_ask throughput --mps=max --msg-size=16000 && { grep -q 'BandWidth is' "$DIR/out" || because "$(tail -n 4 "$DIR/out")"; }; }
sockperf-ul_ask() { sockperf_ask under-load --mps="${MPS:-2000}" --msg-size=100 --reply-every=1 && sockperf_clean; }

# ---------------------------------------------------------------- nc, three kinds, both directions

# nc_here INPUT COMMAND... : what each end sends is the other's want.
nc_here() {
  local n=${#SERVERS[@]} pid
  # bash gives /dev/null to what it starts in the background, whatever its own input is.
  [ -p "$DIR/never" ] || mkfifo "$DIR/never"
  # (Opened both ways, a pipe without a writer is no end of input, and can be opened.)
  start pid bash -c 'if [ -p "$1" ]; then exec 0<>"$1"; else exec <"$1"; fi; exec "${@:2}"' nc "$@" >"$DIR/got.$n" 2>"$DIR/server.$n"
  SERVERS+=("$pid")
  STOP=itself
}
nc_got() { alike "$DATA/$1" "$DIR/got.${2:-0}"; }
# They end, or may end, when one direction has: each direction by itself. -d is "no input".
nc-openbsd_serve() {
  nc_here "$DATA/long" "${P[@]}" nc.openbsd -N -l "$ADDR" "$PORT"
  nc_here /dev/null "${P[@]}" nc.openbsd -d -l "$ADDR" $((PORT + 1))
}
nc-openbsd_ask() {
  quiet_to limit 120 "${P[@]}" nc.openbsd -d "$ADDR" "$PORT" </dev/null && nc_asked || return
  quiet_to limit 120 "${P[@]}" nc.openbsd -N "$ADDR" $((PORT + 1)) <"$DATA/long"
}
nc-openbsd_end() { stop_servers && nc_got long 1; }
ncat_serve() {
  nc_here "$DATA/long" "${P[@]}" ncat --send-only -l "$ADDR" "$PORT"
  # At the end of its input it would half-close at once; what has done so before it could leave TCP
  # stays there.
  nc_here "$DIR/never" "${P[@]}" ncat --recv-only -l "$ADDR" $((PORT + 1))
}
ncat_ask() {
  quiet_to limit 120 "${P[@]}" ncat --recv-only "$ADDR" "$PORT" </dev/null && nc_asked || return
  quiet_to limit 120 "${P[@]}" ncat --send-only "$ADDR" $((PORT + 1)) <"$DATA/long"
}
ncat_end() { stop_servers && nc_got long 1; }
nc-traditional_serve() {
  nc_here "$DATA/long" "${P[@]}" nc.traditional -l -q 0 -s "$ADDR" -p "$PORT"
  nc_here /dev/null "${P[@]}" nc.traditional -l -s "$ADDR" -p $((PORT + 1))
}
nc-traditional_ask() {
  quiet_to limit 120 "${P[@]}" nc.traditional "$ADDR" "$PORT" </dev/null && nc_asked || return
  quiet_to limit 120 "${P[@]}" nc.traditional -q 0 "$ADDR" $((PORT + 1)) <"$DATA/long"
}
nc-traditional_end() { stop_servers && nc_got long 1; }
quiet_to() { "$@" >"$DIR/asked" 2>"$DIR/err" || because "$*: exit $? $(tail -n 2 "$DIR/err")"; }
nc_asked() { alike "$DATA/long" "$DIR/asked"; }

# ---------------------------------------------------------------- Python, node, TLS

# asked WANTED COMMAND... : its last line is as wanted.
asked() {
  local wanted=$1
  shift
  quiet limit 120 "$@" || return
  [ "$(tail -n 1 "$DIR/out")" = "$wanted" ] || because "$(tail -n 2 "$DIR/out")"
}
python_serve() { serve "${P[@]}" "$PYTHON" "$HERE/$1" server "${@:2}" "$ADDR" "$PORT"; STOP=INT; }
python_ask() { asked "$CLIENTS clients, all bytes as sent" "${P[@]}" "$PYTHON" "$HERE/$1" client "${@:2}" "$ADDR" "$PORT"; }
asyncio_serve() { python_serve asyncio_echo.py; }
asyncio_ask() { export CLIENTS=20 MESSAGES=20; python_ask asyncio_echo.py; }
selectors-epoll_serve() { python_serve selectors_echo.py EpollSelector; }
selectors-epoll_ask() { CLIENTS=12 BYTES=$SELECTOR_BYTES python_ask selectors_echo.py EpollSelector; }
selectors-poll_serve() { python_serve selectors_echo.py PollSelector; }
selectors-poll_ask() { CLIENTS=12 BYTES=$SELECTOR_BYTES python_ask selectors_echo.py PollSelector; }
selectors-select_serve() { python_serve selectors_echo.py SelectSelector; }
selectors-select_ask() { CLIENTS=12 BYTES=$SELECTOR_BYTES python_ask selectors_echo.py SelectSelector; }
socketserver-thread_serve() { python_serve socketserver_echo.py thread; }
socketserver-thread_ask() { CLIENTS=10 python_ask socketserver_echo.py thread; }
socketserver-fork_serve() { python_serve socketserver_echo.py fork; }
socketserver-fork_ask() { CLIENTS=10 python_ask socketserver_echo.py fork; }
node_serve() { serve "${P[@]}" node "$HERE/node_http.js" server "$ADDR" "$PORT"; }
node_ask() { asked "$((40 * ROUNDS)) requests, all bodies as sent" "${P[@]}" node "$HERE/node_http.js" client "$ADDR" "$PORT" "$ROUNDS"; }

# One server takes what the client sends, another serves a file.
tls_server() {
  local n=${#SERVERS[@]} pid
  # It does nothing any more when its own input has come to an end: this one never does.
  [ -p "$DIR/never" ] || mkfifo "$DIR/never"
  start pid bash -c 'cd "$2" && exec "${@:3}" 0<>"$1"' tls "$DIR/never" "$DATA" \
    "${P[@]}" openssl s_server -naccept 1 -key "$DIR/key" -cert "$DIR/cert" "$@" >"$DIR/got.$n" 2>"$DIR/server.$n"
  SERVERS+=("$pid")
  STOP=itself
}
tls_serve() {
  openssl req -x509 -newkey rsa:2048 -nodes -keyout "$DIR/key" -out "$DIR/cert" -days 2 -subj /CN=here >/dev/null 2>&1
  tls_server -quiet -accept "$ADDR:$PORT"
  # It serves the files of the directory that it is in.
  tls_server -WWW -accept "$ADDR:$((PORT + 1))"
}
tls_ask() {
  # The option behind -quiet takes back that s_client goes on at the end of its input.
  quiet limit 180 "${P[@]}" openssl s_client -quiet -no_ign_eof -connect "$ADDR:$PORT" <"$DATA/tls" || return
  printf 'GET /tls HTTP/1.0\r\n\r\n' | limit 180 "${P[@]}" openssl s_client -quiet -connect "$ADDR:$((PORT + 1))" 2>"$DIR/err" |
    sed '1,/^\r*$/d' >"$DIR/asked"
  alike "$DATA/tls" "$DIR/asked"
}
tls_end() { stop_servers && nc_got tls; }

# ------------------------------------------------ memcached, rsync, git, a script that inetd starts

memcached_serve() {
  local user=()
  [ "$(id -u)" = 0 ] && user=(-u www-data)
  serve "${P[@]}" memcached "${user[@]}" -l "$ADDR" -p "$PORT" -U 0 -t 4 -I 4m
}
memcached_ask() {
  quiet limit 60 "${P[@]}" memcslap --servers="$ADDR:$PORT" --concurrency=20 --execute-number=$((REQUESTS / 20)) --test=set || return
  # It says on standard error what was not as it should be, and ends well.
  ! grep -qi 'fail\|error' "$DIR/out" || because "$(tail -n 3 "$DIR/out")" || return
  quiet limit 60 "${P[@]}" memcslap --servers="$ADDR:$PORT" --concurrency=10 --execute-number=200 --test=mget
  (cd "$DATA" && limit 60 "${P[@]}" memccp --servers="$ADDR:$PORT" body) >"$DIR/out" 2>&1 || because "memccp: $(tail -n 2 "$DIR/out")" || return
  limit 60 "${P[@]}" memccat --servers="$ADDR:$PORT" body >"$DIR/got" 2>"$DIR/err" || because "memccat: $(tail -n 2 "$DIR/err")" || return
  # It adds a newline.
  { cat "$DATA/body"; echo; } >"$DIR/want"
  alike "$DIR/want" "$DIR/got"
}

rsync_serve() {
  mkdir -p "$DIR/to"
  printf 'use chroot = no\nuid = %s\ngid = %s\n[from]\npath = %s\n[to]\npath = %s\nread only = no\n' \
    "$(id -u)" "$(id -g)" "$DATA" "$DIR/to" >"$DIR/conf"
  serve "${P[@]}" rsync --daemon --no-detach --address="$ADDR" --port="$PORT" --config="$DIR/conf"
}
rsync_ask() {
  local at="rsync://$ADDR:$PORT"
  mkdir -p "$DIR/here"
  quiet limit 120 "${P[@]}" rsync -t "$at/from/middle" "$at/from/body" "$DIR/here/" || return
  alike "$DATA/middle" "$DIR/here/middle" && alike "$DATA/body" "$DIR/here/body" || return
  # The differences alone, as it finds them by sums.
  { head -c 5000000 "$DATA/middle"; echo changed; tail -c 5000000 "$DATA/middle"; } >"$DIR/here/middle"
  quiet limit 120 "${P[@]}" rsync -c --no-whole-file "$at/from/middle" "$DIR/here/" && alike "$DATA/middle" "$DIR/here/middle" || return
  quiet limit 120 "${P[@]}" rsync -z "$DIR/here/middle" "$at/to/"
}
rsync_end() { stop_servers && { [ ! -e "$DIR/to/middle" ] || alike "$DATA/middle" "$DIR/to/middle"; }; }

# The server says its references by stdio, and everything else by calls.
git_serve() {
  quiet git init -q --bare "$DIR/there.git" || return
  serve "${P[@]}" git -c safe.directory='*' daemon --reuseaddr --listen="$ADDR" --port="$PORT" --base-path="$DIR" --export-all --enable=receive-pack "$DIR"
}
git_ask() {
  local at="git://$ADDR:$PORT/there.git" here="$DIR/here" i
  quiet git init -q -b main "$here" || return
  cp "$DATA/body" "$DATA/middle" "$here"
  git -C "$here" config core.compression 0
  quiet git -C "$here" add . && quiet git -C "$here" -c user.name=a -c user.email=a@b commit -q -m all || return
  for i in $(seq 200); do printf 'create refs/tags/t%d HEAD\n' "$i"; done | git -C "$here" update-ref --stdin
  quiet limit 120 "${P[@]}" git -C "$here" push -q "$at" main || return
  quiet limit 120 "${P[@]}" git -C "$here" push -q --tags "$at" || return
  quiet limit 120 "${P[@]}" git -c protocol.version=0 clone -q -b main "$at" "$DIR/old" && alike "$DATA/body" "$DIR/old/body" || return
  quiet limit 120 "${P[@]}" git clone -q -b main "$at" "$DIR/new" && alike "$DATA/body" "$DIR/new/body" || return
  [ "$(git -C "$DIR/old" tag | wc -l)" = 200 ] || because "$(git -C "$DIR/old" tag | wc -l) of 200 tags came"
}

# The shell's own commands write by stdio, the programs that it starts by calls, all to one
# connection.
inetd-script_serve() {
  printf 'read -r name\necho "begin $name"\ncat "%s"\necho middle\ncat "%s"\nprintf "end %%s\\n" "$name"\n' "$DATA/long" "$DATA/body" >"$DIR/script"
  serve "${P[@]}" socat "TCP-LISTEN:$PORT,bind=$ADDR,fork,reuseaddr" "EXEC:bash $DIR/script,nofork"
}
inetd-script_ask() {
  local i
  { echo 'begin x'; cat "$DATA/long"; echo middle; cat "$DATA/body"; echo 'end x'; } >"$DIR/want"
  for i in 1 2 3; do
    echo x | limit 60 "${P[@]}" nc.openbsd "$ADDR" "$PORT" >"$DIR/got" 2>"$DIR/err" || because "nc: exit $? $(tail -n 2 "$DIR/err")" || return
    alike "$DIR/want" "$DIR/got" || return
  done
}
