#!/usr/bin/env bash
# HAProxy, which sets no_new_privs, between a client and nginx, which is started with it. Bodies go
# down and up on kept connections, on one for each request, and spliced. There are threads, and a
# master whose workers are changed by SIGUSR2 in the midst of a transfer. A new process is sent the
# old one's listeners.
. "$(dirname "$0")/common.sh"
need haproxy nginx curl wrk ss=iproute2 setpriv=util-linux

until_true() {
  local i
  for ((i = 0; i < 600; i++)); do
    "$@" && return 0
    nap 0.05
  done
  return 1
}
# went PID WHAT : what that process's counter says. It reports from within its root directory.
went() { cat "$STATS/$1" "$dir/empty$STATS/$1" 2>/dev/null | awk -v k="$2" '$1 == k { s += $2 } END { printf "%.0f\n", s }'; }
# by_shm NAME PID [LEAST] : that process moved bytes over shared memory, to its peers and, LEAST of
# them, from them, and where TCP is excluded nothing else. A connection of HAProxy's to the server
# that carries one body is TCP's.
by_shm() {
  [ "$MODE" = tcp ] && return
  local s r t
  # What is sent to a peer that has closed is TCP's to answer, and no process receives it.
  [ "$MODE" != shm ] || check "$1: nothing came by tcp" "$(went "$2" bytes.received.tcp) bytes" same "$(went "$2" bytes.received.tcp)" 0
  s=$(went "$2" bytes.sent.shm) r=$(went "$2" bytes.received.shm)
  t=$(($(went "$2" bytes.sent.tcp) + $(went "$2" bytes.received.tcp)))
  check "$1: $s bytes sent by shm, $r received, $t by tcp" "$(cat "$STATS/$2" "$dir/empty$STATS/$2" 2>/dev/null | tr '\n' ' ')" \
    test "$s" -gt 1000000 -a "$r" -ge "${3:-1000001}"
}
nginx_up() {
  local user=
  [ "$(id -u)" = 0 ] && user='user www-data;'
  free_port back
  cat >"$dir/nginx" <<CONF
$user
worker_processes 1;
daemon off;
pid $dir/nginx.pid;
error_log $dir/nginx.log warn;
events { worker_connections 512; }
http {
  access_log off;
  keepalive_requests 1000000;
  keepalive_timeout 1s;
  client_max_body_size 64m;
  dav_methods PUT;
  client_body_temp_path $dir/t/1; proxy_temp_path $dir/t/2; fastcgi_temp_path $dir/t/3;
  uwsgi_temp_path $dir/t/4; scgi_temp_path $dir/t/5;
  server { listen 127.0.0.1:$back; root $dir/www; }
}
CONF
  # As a service manager does with NoNewPrivileges=yes.
  start nginx "${P[@]}" setpriv --no-new-privs nginx -p "$dir" -c "$dir/nginx" -e "$dir/nginx.log" >"$dir/nginx.out" 2>&1
  wait_port "$back" "$nginx" || fail nginx "$(tail -3 "$dir/nginx.out" "$dir/nginx.log")"
}

# conf MODE LINE... : the configuration, as Debian's in what bears on us: another user, a root
# directory without files.
conf() {
  local m=$1 line jail=
  shift
  [ "$(id -u)" = 0 ] && jail="  chroot $dir/empty
  user www-data
  group www-data"
  cat >"$dir/haproxy.cfg" <<CONF
global
$jail
  stats socket $dir/sock mode 600 level admin expose-fd listeners
  hard-stop-after 60s
$(printf '  %s\n' "$@")
defaults
  mode $m
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option splice-auto
frontend f
  bind 127.0.0.1:$port
  default_backend b
backend b
  server s 127.0.0.1:$back $POOL
CONF
}
# HAProxy 2.6.12, which Debian 12 has, crashes now and then where it ends with idle connections to a
# server (its issue 2114). A HAProxy that is to end in mid-life keeps none; one that ends alone
# waits for nginx to close them.
POOL=
none_is_idle() { test -z "$(ss -Htn state established "dport = :$back")"; }
haproxy_up() { # VAR OPTION...
  local var=$1
  shift
  start "$var" "${P[@]}" haproxy -f "$dir/haproxy.cfg" "$@" >>"$dir/out" 2>&1
  wait_port "$port" "${!var}" || { fail "haproxy $*" "$(tail -3 "$dir/out")"; return 1; }
}

# bodies N FILE... : each file that often on one connection.
bodies() {
  local i f n=$1
  shift
  for ((i = 0; i < n; i++)); do for f in "$@"; do echo "url=http://127.0.0.1:$port/$f"; echo output=-; done; done >"$dir/urls"
  for ((i = 0; i < n; i++)); do for f in "$@"; do cat "$dir/www/$f"; done; done >"$dir/want"
  limit 60 "${P[@]}" curl -sS -K "$dir/urls" >"$dir/got" 2>"$dir/err"
  cmp "$dir/got" "$dir/want" >>"$dir/err" 2>&1
}
# load NAME WHAT OPTION...
load() {
  limit 60 "${P[@]}" wrk --timeout 60s -t 2 -c 20 -d ${secs}s "${@:3}" "http://127.0.0.1:$port/$2" >"$dir/wrk" 2>&1
  check "$1 ($(awk '/Requests.sec/ { print $2 "/s" }' "$dir/wrk"))" "$(tail -4 "$dir/wrk")" \
    test -z "$(grep -E 'Socket errors|Non-2xx| 0 requests in|unable' "$dir/wrk")"
}

proxying() {
  local m threads h
  for m in http tcp; do
    for threads in 1 2; do
      free_port port
      conf $m "nbthread $threads"
      haproxy_up h -db || continue
      bodies 20 small big
      check "$m, $threads threads: kept connection" "$(tail -2 "$dir/err")" same $? 0
      limit 60 "${P[@]}" curl -sS -T "$dir/www/big" "http://127.0.0.1:$port/put$threads" 2>"$dir/err" && cmp "$dir/www/big" "$dir/www/put$threads" 2>>"$dir/err"
      check "$m, $threads threads: a body up" "$(tail -2 "$dir/err")" same $? 0
      rm -f "$dir/www/put$threads"
      load "$m, $threads threads: wrk small" small
      load "$m, $threads threads: wrk big" big
      load "$m, $threads threads: wrk big, a connection for each" big -H 'Connection: close'
      until_true none_is_idle || fail "$m, $threads threads: idle connections" "$(ss -Htn "dport = :$back" | head -3)"
      stop "$h" USR1 20 || fail "$m, $threads threads: stop" "it did not end"
      by_shm "$m, $threads threads" "$h"
    done
  done
}

# in_transfer NAME COMMAND... : a body that takes a while is on its way while the command runs.
in_transfer() {
  local client name=$1
  shift
  bodies 10 small big
  "${P[@]}" curl -sS --limit-rate 2M "http://127.0.0.1:$port/long" >"$dir/long" 2>"$dir/long.err" &
  client=$!
  until_true test -s "$dir/long"
  "$@"
  bodies 10 small big
  check "$name: new connections" "$(tail -2 "$dir/err")" same $? 0
  wait $client
  check "$name: the transfer under way" "exit $? $(cat "$dir/long.err") $(cmp "$dir/long" "$dir/www/long" 2>&1)" cmp -s "$dir/long" "$dir/www/long"
}
worker_of() { tr ' ' '\n' <"/proc/$1/task/$1/children" | tail -n 1; }
other_worker() { local w; w=$(worker_of "$1") && [ -n "$w" ] && [ "$w" != "$2" ]; }
reload() { # MASTER : by SIGUSR2, until another worker is there and says it listens
  local old
  old=$(worker_of "$1")
  kill -USR2 "$1"
  until_true other_worker "$1" "$old" || fail "reload" "the workers did not change"
  wait_port "$port" "$1"
  sleep 0.3
}
reloading() {
  local h first second
  free_port port
  conf http "nbthread 2"
  haproxy_up h -W || return
  first=$(worker_of "$h")
  in_transfer "reload" reload "$h"
  second=$(worker_of "$h")
  load "reload: the new worker under wrk" big
  stop "$h" USR1 20 || fail "reload: stop" "it did not end"
  by_shm "reload: the old worker" "$first" 1
  by_shm "reload: the new worker" "$second" 1
}
replace() { # OLD : a new process that asks for the listeners
  haproxy_up new -db -x "$dir/sock" -sf "$1"
  until_true grep -q . "/proc/$new/net/tcp" && sleep 0.5
}
replacing() {
  local h new
  free_port port
  conf http "nbthread 2"
  haproxy_up h -db || return
  in_transfer "listeners passed on" replace "$h"
  gone "$h" 20 || fail "listeners passed on" "the old process did not end"
  load "listeners passed on: wrk" big
  stop "$new" USR1 20 || fail "listeners passed on: stop" "it did not end"
  by_shm "listeners passed on: the old process" "$h" 1
  by_shm "listeners passed on: the new process" "$new" 1
}

secs=1
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  mkdir -p "$dir/www" "$dir/t" "$dir/empty$STATS"
  chmod 755 "$dir"
  chmod 1777 "$dir/www" "$dir/empty$STATS"
  head -c 1048576 /dev/urandom >"$dir/www/big"
  head -c 1000 /dev/urandom >"$dir/www/small"
  head -c 8388608 /dev/urandom >"$dir/www/long"
  chmod a+r "$dir/www"/*
  nginx_up
  POOL=
  proxying
  POOL="pool-max-conn 0"
  reloading
  replacing
  stop "$nginx" QUIT 10 || fail "stop" "nginx did not end"
  check "no complaint" "$(grep -E 'ALERT|emerg|panic' "$dir/out" | tail -3)" test -z "$(grep -E 'ALERT|emerg|panic' "$dir/out")"
done
exit $BAD
