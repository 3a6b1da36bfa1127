#!/usr/bin/env bash
# HAProxy that moves bodies by splice, with kept connections on both sides. There are rounds of 40
# small answers and a large one that ends in close, from nginx and from a small server. There are
# bodies up, and servers that are killed, reset the connection or stop in the midst of an answer. No
# byte may be missing. ROUNDS=1000 for as many rounds (20 if not told, 5 where QUICK is set).
. "$(dirname "$0")/common.sh"
need haproxy nginx python3

PY=(python3 "$HERE/haproxy_splice.py")
n=${ROUNDS:-20}
[ "$QUICK" = 1 ] && n=${ROUNDS:-5}
m=$((n < 20 ? n : 20))

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
  keepalive_requests 41;
  client_body_temp_path $dir/t/1; proxy_temp_path $dir/t/2; fastcgi_temp_path $dir/t/3;
  uwsgi_temp_path $dir/t/4; scgi_temp_path $dir/t/5;
  server { listen 127.0.0.1:$back; root $dir/www; }
}
CONF
  start server "${P[@]}" nginx -p "$dir" -c "$dir/nginx" -e "$dir/nginx.log" >"$dir/nginx.out" 2>&1
  wait_port "$back" "$server" || fail nginx "$(tail -3 "$dir/nginx.out" "$dir/nginx.log")"
}
python_up() {
  free_port back
  start server "${P[@]}" "${PY[@]}" server "$back" >"$dir/server.out" 2>&1
  wait_port "$back" "$server" || fail server "$(tail -3 "$dir/server.out")"
}
haproxy_up() { # OPTION
  free_port port
  cat >"$dir/haproxy.cfg" <<CONF
global
  stats socket $dir/sock mode 600 level admin
  hard-stop-after 20s
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  option $1
  http-reuse always
frontend f
  bind 127.0.0.1:$port
  default_backend b
backend b
  server s 127.0.0.1:$back
CONF
  start h "${P[@]}" haproxy -f "$dir/haproxy.cfg" -db >"$dir/out" 2>&1
  wait_port "$port" "$h" || fail "haproxy with $1" "$(tail -3 "$dir/out")"
}
# client NAME COMMAND ARGUMENT... : the client finds every byte.
client() {
  local what=$1 r
  shift
  limit $((300 + n)) "${P[@]}" "${PY[@]}" "$1" "$port" "${@:2}" >"$dir/client" 2>&1
  r=$?
  check "$what: $(tail -1 "$dir/client")" "$(tail -4 "$dir/client")" same $r 0
}
# by_splice NAME : HAProxy has spliced, and moved bytes over shared memory where there is any.
by_splice() {
  local k shm
  k=$("${PY[@]}" spliced "$dir/sock" 2>&1)
  # With splice-auto HAProxy does it when it thinks that it pays.
  case $1 in *auto) ;; *) check "$1: $k bytes spliced" "$k" test "${k:-0}" -gt 1000000 ;; esac
  stop "$h" USR1 30 || fail "$1: stop" "it did not end"
  [ "$MODE" = tcp ] && return
  shm=$(awk '$1 == "bytes.received.shm" { s += $2 } END { printf "%.0f", s }' "$STATS/$h")
  check "$1: $shm bytes received by shm" "$(tr '\n' ' ' <"$STATS/$h")" test "${shm:-0}" -gt 1000000
}

for mode in $(modes_of "$@"); do
  mode "$mode"
  tmpdir dir
  mkdir -p "$dir/www" "$dir/t"
  chmod 755 "$dir"
  chmod 1777 "$dir/t" "$STATS"
  "${PY[@]}" files "$dir/www" || fail files "cannot be written"
  chmod a+r "$dir/www"/*
  for option in splice-response splice-auto; do
    nginx_up
    haproxy_up $option
    client "nginx, $option" rounds "$n"
    by_splice "nginx, $option"
    stop "$server" QUIT 10 || fail "stop" "nginx did not end"
  done
  python_up
  haproxy_up splice-response
  client "server, splice-response" rounds "$n"
  for how in kill exit reset stop; do client "server, $how in the midst" broken $how "$m"; done
  by_splice "server, splice-response"
  haproxy_up splice-request
  client "server, splice-request" uploads "$m"
  by_splice "server, splice-request"
  stop "$server" TERM 10 || fail "stop" "the server did not end"
done
exit $BAD
