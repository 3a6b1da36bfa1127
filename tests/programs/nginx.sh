#!/usr/bin/env bash
# nginx with two pre-forked workers, asked by wrk and by curl, with and without sendfile.
#
# A connection that is over with one body, before its ends could have met, makes no offer to meet.
# One that carries many requests, or a body that goes on for long, attaches, also after many of the
# others.
. "$(dirname "$0")/common.sh"
need nginx wrk curl

# load NAME WHAT [OPTION...]: wrk for a while; fails when it saw any error.
load() {
  local name=$1 what=$2
  shift 2
  rm -f "$dir/wrk.log"
  if limit 60 env RSOCKET_LOG=warn "RSOCKET_LOG_FILE=$dir/wrk.log" "${P[@]}" wrk --timeout 60s -t 2 -c 20 -d ${secs}s "$@" \
    "http://127.0.0.1:$port/$what" >"$dir/wrk" 2>&1 &&
    ! grep -Eq 'Socket errors|Non-2xx' "$dir/wrk" && ! grep -q ' 0 requests in' "$dir/wrk"; then
    ok "$name ($(awk '/Requests.sec/ { print $2 "/s" } /Transfer.sec/ { print $2 "/s" }' "$dir/wrk" | paste -sd' '))"
  else
    fail "$name" "$(tail -6 "$dir/wrk") $(cat "$dir/wrk.log" 2>/dev/null)"
  fi
}
# by_default NAME WHY CONDITION... : a check of what the default policy does.
by_default() { [ "$MODE" != default ] || check "$1" "$2" test "${@:3}"; }
offers() { stat_sum attach.offers "$STATS"; }
met() { stat_sum attach.welcomes_sent "$STATS"; }

for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  mkdir -p "$dir/www" "$dir/t"
  chmod 755 "$dir"
  head -c 1048576 /dev/urandom >"$dir/www/big"
  head -c $((128 << 20)) /dev/urandom >"$dir/www/huge"
  head -c 1000 /dev/urandom >"$dir/www/small"
  chmod -R a+rX "$dir/www"
  want=$(sha256sum <"$dir/www/huge")
  # Not nginx's default, the user nobody: that is also the user of everything that has no user here,
  # and never trusted.
  user=
  [ "$(id -u)" = 0 ] && user='user www-data;'
  for sendfile in off on; do
    free_port port
    cat >"$dir/conf" <<CONF
$user
worker_processes 2;
daemon off;
pid $dir/pid;
error_log $dir/error.log warn;
events { worker_connections 512; }
http {
  access_log off;
  sendfile $sendfile;
  keepalive_requests 1000000;
  client_body_temp_path $dir/t/1; proxy_temp_path $dir/t/2; fastcgi_temp_path $dir/t/3;
  uwsgi_temp_path $dir/t/4; scgi_temp_path $dir/t/5;
  server { listen 127.0.0.1:$port; listen [::1]:$port; root $dir/www; }
}
CONF
    grep -q . /proc/net/if_inet6 2>/dev/null || sed -i 's/listen \[::1\][^;]*;//' "$dir/conf"
    # Workers change their user to www-data when root starts them: that is part of the test.
    start server "${P[@]}" nginx -p "$dir" -c "$dir/conf" -e "$dir/error.log" >"$dir/out" 2>&1
    if ! wait_port "$port" "$server"; then fail "start, sendfile $sendfile" "$(tail -3 "$dir/out" "$dir/error.log")"; continue; fi
    workers=$(cat "/proc/$server/task/$server/children" 2>/dev/null)
    got=$(for _ in 1 2 3 4 5; do echo "url=http://127.0.0.1:$port/big"; echo output=-; done |
      limit 30 "${P[@]}" curl -sS -K - 2>&1 | sha256sum)
    five=$(for _ in 1 2 3 4 5; do cat "$dir/www/big"; done | sha256sum)
    check "sendfile $sendfile: five bodies of 1 MiB on one connection" "checksums differ" same "$got" "$five"
    bad=0
    before=$(met)
    for _ in 1 2 3; do
      got=$(limit 60 "${P[@]}" curl -sS "http://127.0.0.1:$port/huge" 2>&1 | sha256sum)
      [ "$got" = "$want" ] || bad=$((bad + 1))
    done
    check "sendfile $sendfile: a connection for each long body" "$bad of 3 differ" same $bad 0
    # These change their carrier in the middle of the body.
    by_default "sendfile $sendfile: they attached" "$(stat_reasons "$STATS")" "$(met)" -gt "$before"
    secs=1
    for what in small big; do load "sendfile $sendfile: wrk $what" $what; done
    made=$(offers)
    load "sendfile $sendfile: wrk big, a connection for each" big -H 'Connection: close'
    made=$(($(offers) - made))
    by_default "sendfile $sendfile: no offers in vain" "$made offers" $made -le 30
    before=$(met)
    got=$(for _ in {1..200}; do echo "url=http://127.0.0.1:$port/small"; echo output=-; done |
      limit 30 "${P[@]}" curl -sS -K - 2>&1 | wc -c)
    check "sendfile $sendfile: 200 requests on one connection" "$got bytes" same "$got" 200000
    by_default "sendfile $sendfile: it attached" "$(stat_reasons "$STATS")" "$(met)" -gt "$before"
    # shellcheck disable=SC2086
    [ "$QUICK" = 1 ] || [ $sendfile = on ] || idle "$server" $workers
    stop "$server" QUIT 10 || fail "stop, sendfile $sendfile" "nginx did not end"
    check "sendfile $sendfile: nothing in the error log" "$(tail -3 "$dir/error.log" 2>/dev/null)" \
      test -z "$(grep -Ev '\[(notice|info)\]' "$dir/error.log" 2>/dev/null)"
  done
  carried
done
exit $BAD
