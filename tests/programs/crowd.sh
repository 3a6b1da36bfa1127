#!/usr/bin/env bash
# Crowds. A thousand connections at once go through nginx and through redis. Ten thousand idle ones
# on one epoll object leave nothing behind. Servers with open connections use no CPU while no client
# speaks.
. "$(dirname "$0")/common.sh"
need nginx redis-server redis-cli=redis-tools node=nodejs /usr/bin/python3=python3
many=1000 idle=10000 rounds=20 rest=10
[ "$QUICK" = 1 ] && many=300 idle=2000 rounds=10 rest=5
ulimit -n "$(ulimit -Hn)"
if [ "$(ulimit -n)" -lt $((idle + 500)) ]; then
  idle=$(($(ulimit -n) - 500))
  say "# $idle idle connections: the limit on open files allows no more"
fi
crowd() { limit 240 "${P[@]}" "$PYTHON" "$HERE/crowd.py" "$@"; }
# quiet_while SERVER_PIDS... : while five connections are open and say nothing, they use no CPU.
quiet_while() {
  local p before=0 after=0
  for p in "$@"; do before=$((before + $(cpu_ticks "$p" || echo 0))); done
  sleep $rest
  for p in "$@"; do after=$((after + $(cpu_ticks "$p" || echo 0))); done
  echo $((after - before))
}
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  chmod 755 "$dir"
  mkdir -p "$dir/www" "$dir/t"
  head -c 1000 /dev/urandom >"$dir/www/small"
  chmod -R a+rX "$dir/www"
  free_port port
  user=
  [ "$(id -u)" = 0 ] && user='user www-data;'
  cat >"$dir/conf" <<CONF
$user
worker_processes 2;
daemon off;
pid $dir/pid;
error_log $dir/error.log warn;
env RSOCKET_STATS;
events { worker_connections 4096; }
http {
  access_log off;
  keepalive_requests 1000000;
  client_body_temp_path $dir/t/1; proxy_temp_path $dir/t/2; fastcgi_temp_path $dir/t/3;
  uwsgi_temp_path $dir/t/4; scgi_temp_path $dir/t/5;
  server { listen 127.0.0.1:$port backlog=4096; root $dir/www; }
}
CONF
  start nginx "${P[@]}" nginx -p "$dir" -c "$dir/conf" -e "$dir/error.log" >"$dir/out" 2>&1
  wait_port "$port" "$nginx" || { fail nginx "$(tail -3 "$dir/out" "$dir/error.log")"; continue; }
  got=$(crowd http 127.0.0.1 "$port" $many $rounds "$dir/www/small" 2>&1 | tail -n 1)
  check "nginx, $many connections at once" "$got" same "$got" "$many connections, $((many * rounds)) answers, all right"
  free_port rport
  start redis "${P[@]}" redis-server --port "$rport" --bind 127.0.0.1 --save '' --appendonly no --dir "$dir" --daemonize no >"$dir/redis" 2>&1
  wait_port "$rport" "$redis" || { fail redis "$(tail -3 "$dir/redis")"; continue; }
  got=$(crowd redis 127.0.0.1 "$rport" $many $rounds 2>&1 | tail -n 1)
  check "redis, $many connections at once" "$got" same "$got" "$many connections, $((many * rounds)) answers, all right"

  # Each server keeps five connections that have spoken enough to leave TCP, and have no more to
  # say.
  free_port nport
  start node "${P[@]}" node "$HERE/node_http.js" server 127.0.0.1 "$nport" >"$dir/node" 2>&1
  wait_port "$nport" "$node" || fail node "$(tail -3 "$dir/node")"
  start quiet "${P[@]}" "$PYTHON" "$HERE/crowd.py" keep "$port" "$nport" "$rport" "$dir/ready" >"$dir/keep" 2>&1
  for _ in $(seq 500); do [ -e "$dir/ready" ] && break; nap 0.1; done
  check "fifteen connections are open" "$(tail -n 2 "$dir/keep")" test -e "$dir/ready"
  # shellcheck disable=SC2046
  ticks=$(quiet_while "$nginx" $(cat "/proc/$nginx/task/$nginx/children") "$redis" "$node" "$quiet")
  # redis looks at its clock ten times a second, with or without us.
  check "nginx, redis and node are idle ($ticks ticks in $rest s)" "$ticks ticks in $rest s" test "$ticks" -le $((rest * 3))
  stop "$quiet" INT || fail quiet "it did not end"
  stop "$node" TERM || fail node "it did not end"
  stop "$redis" TERM || fail redis "it did not end"
  stop "$nginx" QUIT 10 || fail nginx "it did not end"
  check "nothing in nginx's log" "$(tail -3 "$dir/error.log" 2>/dev/null)" test -z "$(grep -Ev '\[(notice|info)\]' "$dir/error.log" 2>/dev/null)"

  free_port port
  start server "${P[@]}" "$PYTHON" "$HERE/crowd.py" serve 127.0.0.1 "$port" $idle >"$dir/serve" 2>&1
  wait_port "$port" "$server" || fail serve "$(tail -3 "$dir/serve")"
  for round in first second; do
    got=$(crowd hold 127.0.0.1 "$port" $idle 2>&1 | tail -n 1)
    check "$idle idle connections on one epoll object, the $round time" "$got" same "$got" "$idle held, all bytes as sent"
  done
  gone_child "$server" 60 || { fail serve "it did not end: $(tail -n 2 "$dir/serve")"; stop "$server" KILL; }
  check "no event was lost, none was wrong" "$(tail -n 2 "$dir/serve")" grep -q "^$((2 * idle)) ended, 0 wrong events$" "$dir/serve"
  # Descriptors as before, but for the handful that the library keeps for the process. Memory is
  # used again: as many more need none, but for an arena more or less, of some MiB.
  read -r _ fds0 _ _ rss1 fds2 rss2 < <(grep '^held' "$dir/serve")
  check "nothing grows (descriptors $fds0 to $fds2, $rss1 to $rss2 KiB)" "$(cat "$dir/serve")" \
    test "${fds2:-99999}" -le $((${fds0:-0} + 60)) -a "${rss2:-999999}" -le $((${rss1:-0} + 8192))
  carried
done
exit $BAD
