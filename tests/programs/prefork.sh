#!/usr/bin/env bash
# Servers that fork before they accept, with four workers: nginx, reloaded and replaced by a new
# binary under load without a request that fails; gunicorn.
. "$(dirname "$0")/common.sh"
need nginx wrk gunicorn /usr/bin/python3=python3

# until COMMAND... : tries for half a minute.
until_true() {
  local i
  for ((i = 0; i < 600; i++)); do
    "$@" && return 0
    nap 0.05
  done
  return 1
}
children() { cat "/proc/$1/task/$1/children" 2>/dev/null | wc -w; }
workers_of() { [ "$(children "$1")" = "$2" ]; }
renewed() { # PID OLD... : four workers, none of the old ones
  local kids k
  kids=$(cat "/proc/$1/task/$1/children" 2>/dev/null)
  [ "$(wc -w <<<"$kids")" = 4 ] || return 1
  for k in "${@:2}"; do [[ " $kids " != *" $k "* ]] || return 1; done
}

# The new master is its predecessor's child and not ours: end it by the id in its file.
upgrade() {
  local server=$1 new rc=0
  kill -USR2 "$server"
  until_true test -s "$dir/pid.oldbin" || { echo "the old pid file did not come"; return 1; }
  until_true test -s "$dir/pid" || { echo "no new pid file"; return 1; }
  new=$(cat "$dir/pid")
  watch "$new"
  until_true workers_of "$new" 4 || { echo "the new binary has $(children "$new") workers"; rc=1; }
  kill -QUIT "$server"
  gone "$server" 60 || { echo "the old binary did not end"; rc=1; }
  echo "$new" >"$dir/new"
  return $rc
}
nginx_test() {
  local server user='' old loader i
  free_port port
  mkdir -p "$dir/www" "$dir/t" && chmod 755 "$dir"
  for n in 700 60000 900000; do "$PYTHON" -c "import sys; sys.path.insert(0, '$HERE'); import app; sys.stdout.buffer.write(app.body($n))" >"$dir/www/$n"; done
  chmod -R a+rX "$dir/www"
  [ "$(id -u)" = 0 ] && user='user www-data;'
  cat >"$dir/conf" <<CONF
$user
worker_processes 4;
daemon on;
pid $dir/pid;
error_log $dir/error.log warn;
# Otherwise nginx gives a new binary no environment, and so no library.
env LD_PRELOAD; env RSOCKET_TRANSPORT; env RSOCKET_STATS;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path $dir/t/1; proxy_temp_path $dir/t/2; fastcgi_temp_path $dir/t/3;
  uwsgi_temp_path $dir/t/4; scgi_temp_path $dir/t/5;
  server { listen 127.0.0.1:$port; root $dir/www; }
}
CONF
  # As a daemon: one that is still its starter's child changes no binary.
  limit 30 "${P[@]}" "$(command -v nginx)" -p "$dir" -c "$dir/conf" -e "$dir/error.log" >"$dir/log" 2>&1
  until_true test -s "$dir/pid"
  server=$(cat "$dir/pid")
  watch "$server"
  wait_port "$port" "$server" && until_true workers_of "$server" 4 || { fail nginx "$(tail -3 "$dir/log" "$dir/error.log")"; return; }
  # Under load until told otherwise: a connection for each request, since one at rest may be closed
  # by a worker that ends.
  mkfifo "$dir/stop"
  FRESH=1 "${P[@]}" "$PYTHON" "$HERE/http_client.py" "$port" 4 eof 700 60000 900000 <"$dir/stop" >"$dir/out" 2>&1 &
  loader=$!
  exec 9>"$dir/stop"
  for ((i = 0; i < reloads; i++)); do
    # shellcheck disable=SC2046
    old=$(cat "/proc/$server/task/$server/children")
    kill -HUP "$server"
    # shellcheck disable=SC2086
    until_true renewed "$server" $old || fail "nginx: reload $i" "the workers did not change"
  done
  upgrade "$server" >"$dir/upgrade" || fail "nginx: a new binary" "$(cat "$dir/upgrade") $(tail -3 "$dir/error.log")"
  exec 9>&-
  wait $loader
  check "nginx: $reloads reloads and a new binary under load" "$(tail -2 "$dir/out") $(tail -2 "$dir/error.log")" same $? 0
  new=$(cat "$dir/new" 2>/dev/null)
  if [ -n "$new" ]; then
    if [ "$MODE" != shm ]; then
      limit 60 wrk --timeout 60s -t 2 -c 20 -d 1s "http://127.0.0.1:$port/60000" >"$dir/wrk" 2>&1
      check "nginx: the new binary under wrk without the library" "$(tail -3 "$dir/wrk")" \
        test -z "$(grep -E 'Socket errors|Non-2xx| 0 requests in' "$dir/wrk")"
    fi
    limit 60 "${P[@]}" wrk --timeout 60s -t 2 -c 20 -d 1s "http://127.0.0.1:$port/60000" >"$dir/wrk" 2>&1
    check "nginx: the new binary under wrk" "$(tail -3 "$dir/wrk")" test -z "$(grep -E 'Socket errors|Non-2xx| 0 requests in' "$dir/wrk")"
    kill -QUIT "$new" 2>/dev/null
    gone "$new" 30 || fail "nginx: the end" "the new binary did not end"
  fi
  check "nginx: nothing in the error log" "$(tail -3 "$dir/error.log" 2>/dev/null)" \
    test -z "$(grep -Ev '\[(notice|info)\]' "$dir/error.log" 2>/dev/null)"
}

gunicorn_test() {
  local kind server
  for kind in sync gthread; do
    free_port port
    (cd "$HERE" && exec env PYTHONDONTWRITEBYTECODE=1 "${P[@]}" "$(command -v gunicorn)" -w 4 -k $kind --threads 4 -b "127.0.0.1:$port" \
      --worker-tmp-dir "$dir" app:app) </dev/null >"$dir/log" 2>&1 &
    server=$!
    wait_port "$port" "$server" 20 || {
      (cd "$HERE" && exec env PYTHONDONTWRITEBYTECODE=1 "${P[@]}" "$(command -v gunicorn)" -w 4 -k $kind --threads 4 -b "127.0.0.1:$port" \
        --worker-tmp-dir "$dir" app:app) </dev/null >"$dir/log" 2>&1 &
      server=$!
      wait_port "$port" "$server" 20 || { fail "gunicorn $kind" "$(tail -3 "$dir/log")"; continue; }
    }
    watch "$server"
    limit 120 "${P[@]}" "$PYTHON" "$HERE/http_client.py" "$port" 4 $rounds 700 60000 900000 >"$dir/out" 2>&1
    check "gunicorn $kind: every byte" "$(tail -2 "$dir/out") $(tail -3 "$dir/log")" same $? 0
    for n in 700 900000; do
      limit 60 "${P[@]}" wrk --timeout 60s -t 2 -c 16 -d ${secs}s "http://127.0.0.1:$port/$n" >"$dir/wrk" 2>&1
      check "gunicorn $kind: wrk, $n bytes ($(awk '/Requests.sec/ { print $2 "/s" }' "$dir/wrk"))" "$(tail -4 "$dir/wrk") $(tail -3 "$dir/log")" \
        test -z "$(grep -E 'Socket errors|Non-2xx| 0 requests in' "$dir/wrk")"
    done
    stop "$server" TERM 30 || fail "gunicorn $kind" "it did not end"
    check "gunicorn $kind: no complaint" "$(grep -iE 'error|critical' "$dir/log" | tail -3)" test -z "$(grep -iE 'error|critical|timeout' "$dir/log")"
  done
}
reloads=5 secs=1 rounds=20
[ "$QUICK" = 1 ] && reloads=2 rounds=4
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  nginx_test
  rm -rf "${dir:?}"/*
  gunicorn_test
  carried
done
exit $BAD
