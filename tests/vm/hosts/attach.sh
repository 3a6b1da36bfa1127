#!/usr/bin/env bash
# Two guests, each running this file: TCP connections between two hosts that leave TCP for RDMA.
# Host 2 serves, host 1 asks. Alone: `tests/vm/run two attach`.
#
# alone
. "$(dirname "$0")/../guest.sh"
[ -n "${VM_HOST:-}" ] || die "this needs two guests"
tmpdir tmp
here="host $VM_HOST"
ip=$(address rxe0 2)
talk=("$PYTHON" "$ROOT/tests/vm/hosts/talk.py")
MIB=1048576

# with NAME : P is the prefix of a preloaded program, whose processes report into $tmp/stats.NAME.
with() {
  mkdir -p -m 1777 "$tmp/stats.$1"
  P=(env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$tmp/stats.$1/%p")
}
total() { stat_sum "$2" "$tmp/stats.$1"; }
# figures NAME : what can be seen of it, for the reader of a failure.
figures() {
  local c
  for c in attached.rdma bytes.sent.rdma bytes.received.rdma bytes.sent.tcp bytes.received.tcp resets; do
    printf '%s=%s ' "$c" "$(total "$1" $c)"
  done
  stat_reasons "$tmp/stats.$1"
}
# over_rdma NAME CONNECTIONS [COUNTER=LEAST...] : that many attached, nothing was reset, and so much
# went there.
over_rdma() {
  local name=$1 least=$2 pair why=
  shift 2
  [ "$(total "$name" attached.rdma)" -ge "$least" ] || why="fewer than $least attached"
  [ "$(total "$name" resets)" = 0 ] || why="resets"
  for pair in "$@"; do
    [ "$(total "$name" "${pair%=*}")" -ge "${pair#*=}" ] || why="too few ${pair%=*}"
  done
  check "$here $name went over RDMA" "$why: $(figures "$name")" [ -z "$why" ]
}

SERVERS=()
server() {
  local name=$1 port=$2
  shift 2
  start "$name" "$@" >"$tmp/$name" 2>&1
  SERVERS[port]=$name
}

serve_all() {
  mkdir -p "$tmp/www" "$tmp/t"
  head -c $((16 * MIB)) /dev/urandom >"$tmp/www/large"
  head -c $MIB "$tmp/www/large" >"$tmp/www/body"
  chmod -R a+rX "$tmp/www"
  (cd "$tmp/www" && sha256sum -- * >"$VM_OUT/sums")
  cat >"$tmp/conf" <<CONF
user www-data;
worker_processes 2;
daemon off;
pid $tmp/pid;
error_log $tmp/error.log warn;
env RSOCKET_STATS;
events { worker_connections 128; }
http {
  access_log off;
  keepalive_requests 100000;
  client_body_temp_path $tmp/t/1; proxy_temp_path $tmp/t/2; fastcgi_temp_path $tmp/t/3;
  uwsgi_temp_path $tmp/t/4; scgi_temp_path $tmp/t/5;
  server {
    listen $ip:8002 reuseport;
    root $tmp/www;
    location = /who { add_header X-Worker \$pid; return 200 "hello"; }
  }
}
CONF
  with talk
  server talking 8000 "${P[@]}" "${talk[@]}" serve "$ip" 8000
  with http
  server http 8001 "${P[@]}" "$PYTHON" -m http.server -b "$ip" -d "$tmp/www" 8001
  with nginx
  server nginx 8002 "${P[@]}" nginx -p "$tmp" -c "$tmp/conf" -e "$tmp/error.log"
  with redis
  server redis 8003 "${P[@]}" redis-server --port 8003 --bind "$ip" --protected-mode no --save '' --appendonly no --dir "$tmp" --daemonize no
  with asyncio
  server echoing 8004 "${P[@]}" "$PYTHON" "$ROOT/tests/programs/asyncio_echo.py" server "$ip" 8004
  with answer
  server ours 8005 "${P[@]}" "${talk[@]}" answer "$ip" 8005
  server theirs 8006 "${talk[@]}" answer "$ip" 8006
  with off
  server off 8008 "${P[@]}" RSOCKET_TRANSPORT=shm,tcp "$PYTHON" -m http.server -b "$ip" -d "$tmp/www" 8008
  with http6
  server http6 8007 "${P[@]}" "$PYTHON" -m http.server -b "$(address6 rxe0 2)" -d "$tmp/www" 8007
  local port name
  for port in "${!SERVERS[@]}"; do
    name=${SERVERS[port]}
    wait_port "$port" "${!name}" 60 || fail "$here $name starts" "$(tail -3 "$tmp/$name")"
  done
}

stop_all() {
  stop "$nginx" QUIT 20 || fail "$here nginx" "did not end"
  stop "$redis" TERM 20 || fail "$here redis" "did not end"
  for s in http http6 off echoing talking ours; do
    stop "${!s}" INT 20 || fail "$here $s" "did not end"
  done
  stop "$theirs" INT
}

if [ "$VM_HOST" = 2 ]; then
  serve_all
  tell ready
  hear done 500 >/dev/null || fail "$here" "host 1 did not say that it is through"
  stop_all
  over_rdma http 1 bytes.sent.rdma=$MIB
  over_rdma http6 1 bytes.sent.rdma=$MIB
  over_rdma redis 5 bytes.sent.rdma=4000 bytes.received.rdma=40000
  over_rdma asyncio 8 bytes.sent.rdma=1000000 bytes.received.rdma=1000000
  over_rdma talk 6 bytes.sent.rdma=6000000 bytes.received.rdma=6000000
  over_rdma nginx 4 bytes.sent.rdma=$((20 * MIB))
  workers=0
  for f in "$tmp/stats.nginx"/*; do
    [ "$(awk '$1 == "attached.rdma" { print $2 }' "$f")" -lt 2 ] || workers=$((workers + 1))
  done
  check "$here both workers' connections attached" "$workers workers: $(grep -H attached.rdma "$tmp/stats.nginx"/* | tr '\n' ' ')" [ $workers = 2 ]
  check "$here nothing in nginx's log" "$(tail -3 "$tmp/error.log")" test -z "$(grep -Ev '\[(notice|info)\]' "$tmp/error.log")"
  finish
fi

hear ready 200 >/dev/null || { fail "$here" "host 2 does not serve"; finish; }
before=$(packets rxe0)

# run NAME WHAT WANTED COMMAND... : the client's last line is as wanted.
run() {
  local name=$1 what=$2 wanted=$3 got rc
  shift 3
  got=$(limit 120 "$@" 2>&1)
  rc=$?
  check "$here $name: $what" "exit $rc: $(tail -3 <<<"$got")" [ "$rc" = 0 -a "${got##*$'\n'}" = "$wanted" ]
}
# sum FILE : of one that host 2 serves.
sum() { sed -n "s/ *$1\$//p" "$VM_OUT/sums"; }
# fetched NAME WHAT URL : by curl with the prefix P; its last part is the file.
fetched() {
  local err got
  err=$(limit 100 "${P[@]}" curl -sS -o "$tmp/got" "$3" 2>&1)
  got=$(sha256sum <"$tmp/got")
  check "$here $1: $2" "$(stat -c %s "$tmp/got") bytes, $err" [ "${got%% *}" = "$(sum "${3##*/}")" ]
  rm -f "$tmp/got"
}
note_time() { say "# $here $1: $((SECONDS - ${2:-0})) s"; }

# The server believes no stranger; what follows shows that the server took no harm.
before_forge=$SECONDS
out=$(limit 100 "$RSOCKET_FORGE" "$ip" 8000 2>&1)
rc=$?
check "$here forged requests are refused" "exit $rc: $out" [ $rc = 0 ]
note_time forge $before_forge

# TCP may have carried all of a file before both ends have met over RDMA, which takes as long as the
# hosts are busy.
# fetched_over_rdma NAME URL : again until one has been met in its middle; every one arrives whole.
fetched_over_rdma() {
  local round
  with "$1"
  for round in 1 2 3 4 5 6; do
    fetched "$1" "curl, 16 MiB, round $round" "$2"
    [ "$(total "$1" bytes.received.rdma)" -lt $MIB ] || break
  done
  over_rdma "$1" 1 bytes.received.rdma=$MIB
}
t=$SECONDS
fetched_over_rdma http4 "http://$ip:8001/large"
fetched_over_rdma http6 "http://[$(address6 rxe0 2)]:8007/large"
note_time curl $t

t=$SECONDS
for role in "pair" "back option" "back splice" "whole exit 3000000" "whole _exit 3000000"; do
  # shellcheck disable=SC2086
  set -- $role
  name=${1}_${2:-both}
  with "$name"
  run "$name" "every byte" warm "${P[@]}" "${talk[@]}" "$1" "$ip" 8000 "${@:2}"
done
# The kernel takes writes to the device's file only with the credentials that opened it.
with user
run user "both ends change their credentials" warm "${P[@]}" "${talk[@]}" user "$ip" 8000 again
note_time talk $t
over_rdma user 2 bytes.sent.rdma=1900000
over_rdma pair_both 1 bytes.sent.rdma=5900000 bytes.received.rdma=2900000
over_rdma back_option 2 bytes.sent.rdma=900000 detached=1
over_rdma back_splice 2 bytes.sent.rdma=1900000
check "$here back_option says why" "$(figures back_option)" [ "$(total back_option on_tcp.odd_option)" -ge 1 ]
check "$here back_splice stays over RDMA" "$(figures back_splice)" [ "$(total back_splice detached)" = 0 ]
over_rdma whole_exit 1 bytes.received.rdma=2900000
over_rdma whole__exit 1 bytes.received.rdma=2900000

t=$SECONDS
with nginx
run nginx "4 connections of two workers, 10 bodies on each" "$(sum body)" "${P[@]}" "${talk[@]}" fetch "$ip" 8002 /body 10
over_rdma nginx 4 bytes.received.rdma=$((20 * MIB))
note_time nginx $t
t=$SECONDS
with asyncio
run asyncio "8 clients" "8 clients, all bytes as sent" "${P[@]}" "$PYTHON" "$ROOT/tests/programs/asyncio_echo.py" client "$ip" 8004 8
over_rdma asyncio 8 bytes.sent.rdma=1000000 bytes.received.rdma=1000000
note_time asyncio $t
t=$SECONDS
with redis
limit 100 "${P[@]}" redis-benchmark -h "$ip" -p 8003 -c 5 -n 2000 -t get,set --csv >"$tmp/redis" 2>&1
check "$here redis-benchmark" "$(tail -3 "$tmp/redis")" [ "$(grep -c '^"[GS]ET"' "$tmp/redis")" = 2 ]
over_rdma redis 5 bytes.sent.rdma=40000 bytes.received.rdma=4000
note_time redis $t
check "$here packets went through rxe0" "$before before" [ "$(packets rxe0)" -gt $((before + 10000)) ]

# Neither end with the library, one, both; connections that end before they would attach, and such
# that try. In a guest whose host is busy times wander: what was seen not to be slower in one of
# three rounds is not.
t=$SECONDS
# slower MICROSECONDS THAN : by more than as much again and the noise, as a wait in vain would be.
slower() { [ "$1" -ge $(($2 * 2 + 10000)) ]; }
WHAT=("short, of an ordinary client to ours" "short, of ours to an ordinary server" "short, of ours to ours"
  "long, of an ordinary client to ours" "long, of ours to an ordinary server")
TOOK=()
for round in 1 2 3; do
  rm -rf "$tmp/stats.time"
  read -ra plain <<<"$(limit 60 "${talk[@]}" time "$ip" 8006,8005 30:1 8:100 2>&1)"
  with time
  read -ra ours <<<"$(limit 60 "${P[@]}" "${talk[@]}" time "$ip" 8006,8005 30:1 8:100 2>&1)"
  if [ "${#plain[@]},${#ours[@]}" != 4,4 ]; then
    fail "$here time" "${plain[*]}; ${ours[*]}"
    break
  fi
  now=("${plain[1]} ${plain[0]}" "${ours[0]} ${plain[0]}" "${ours[1]} ${plain[0]}" "${plain[3]} ${plain[2]}" "${ours[2]} ${plain[2]}")
  late=0
  for i in "${!WHAT[@]}"; do
    # shellcheck disable=SC2086
    [ $round != 1 ] && ! slower ${TOOK[i]} || TOOK[i]=${now[i]}
    # shellcheck disable=SC2086
    ! slower ${TOOK[i]} || late=1
  done
  [ $late = 1 ] || break
done
for i in "${!TOOK[@]}"; do
  read -r us than <<<"${TOOK[i]}"
  check "$here no delay: ${WHAT[i]} ($us us; without the library $than us)" "slower by more than as much again, in $round rounds" \
    [ "$us" -lt $((than * 2 + 10000)) ]
done
attached=$(total time attached.rdma)
check "$here only the long ones to ours attached" "$(figures time)" [ "$attached" -ge 4 -a "$attached" -le 8 ]
note_time times $t

# A server that may not use RDMA, and then a host that has none.
t=$SECONDS
with off
fetched off "curl from a server without RDMA" "http://$ip:8008/large"
check "$here from a server without RDMA, TCP carries it" "$(figures off)" [ "$(total off bytes.received.tcp)" -ge $((16 * MIB)) ]
rdma link delete rxe0
rdma link delete siw0
check "$here has no RDMA any more" "$(rdma link show)" [ -z "$(rdma link show)" ]
with without
fetched without "curl to a host without RDMA" "http://$ip:8001/large"
check "$here to a host without RDMA, TCP carries it" "$(figures without)" [ "$(total without bytes.received.tcp)" -ge $((16 * MIB)) ]
note_time without $t
tell "done"
finish
