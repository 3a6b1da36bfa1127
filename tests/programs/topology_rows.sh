# shellcheck shell=bash
# The programs that talk across a topology (topology.sh). A row NAME has NAME_serve, which starts
# what serves at A or M on a port of PUBLISHED. It has NAME_ask, which asks by the path that FROM,
# ADDRESS, HOST and AT say. Both say `ok` or `FAIL`. NAME_ready, if there is one, runs once in a
# topology. END[NAME] is where a client finds it. DATA has `big`, `small` and `middle`.

ROWS=(redis nginx postgres haproxy iperf3 ftp smb)
declare -A END=([haproxy]=M) PORT=(
  [nginx]=8080 [haproxy]=8081 [redis]=6379 [postgres]=5432 [iperf3]=5201 [ftp]=2121 [smb]=4450)

need_rows() {
  need curl wrk nginx haproxy iperf3 redis-server redis-benchmark=redis-tools openssl \
    redis-cli=redis-tools /usr/sbin/proftpd=proftpd-core smbd=samba smbclient setpriv=util-linux \
    '/usr/lib/postgresql/*/bin/postgres=postgresql'
  PG=$(echo /usr/lib/postgresql/*/bin)
}
make_data() {
  tmpdir DATA
  chmod 755 "$DATA"
  head -c $((16 << 20)) /dev/urandom >"$DATA/big"
  head -c $((96 << 20)) /dev/urandom >"$DATA/long"
  head -c $((1 << 20)) /dev/urandom >"$DATA/middle"
  head -c 1024 /dev/urandom >"$DATA/small"
}
# asked WHAT COMMAND... : a client at FROM, whose output is in $WORK/out.
asked() {
  local ENTER what=$1
  preloaded "$FROM"
  ENTER+=("${ASKS[@]}")
  if limit 60 "${ENTER[@]}" "${@:2}" >"$WORK/out" 2>"$WORK/err"; then return 0; fi
  fail "$what" "$(tail -n 3 "$WORK/err" "$WORK/out")"
  return 1
}
# equal WHAT FILE FILE
equal() {
  if cmp -s "$2" "$3"; then ok "$1"; else fail "$1" "$(cmp "$2" "$3" 2>&1)"; fi
  rm -f "$3"
}

redis_serve() {
  serve redis_pid A 6379 redis-server --port 6379 --bind 0.0.0.0 :: --protected-mode no \
    --save '' --appendonly no --dir /tmp
}
redis_ask() {
  local cli=(redis-cli -h "$ADDRESS" -p "$AT")
  asked "$1: set" "${cli[@]}" -x set value <"$DATA/middle" || return
  asked "$1: get" "${cli[@]}" get value || return
  head -c -1 "$WORK/out" >"$WORK/got"
  equal "$1: a value of 1 MiB" "$DATA/middle" "$WORK/got"
  asked "$1: redis-benchmark" redis-benchmark -h "$ADDRESS" -p "$AT" -c 50 -n 160000 -d 400 \
    -t set,get --csv || return
  check "$1: 50 connections ($(rate_of_redis) a second)" "$(tail -3 "$WORK/out")" \
    test "$(grep -c '^"[GS]ET","[0-9]' "$WORK/out")" = 2
}
rate_of_redis() { sed -n 's/^"GET","\([0-9]*\).*/\1/p' "$WORK/out"; }
redis_end() { finish redis_pid TERM; }

nginx_serve() {
  local t=$WORK/nginx
  on A mkdir -p "$t/t" && on A chmod 755 "$t"
  cat >"$WORK/nginx.conf" <<CONF
user www-data;
worker_processes 1;
daemon off;
pid $t/pid;
error_log $t/error.log warn;
events { worker_connections 512; }
http {
  access_log off;
  sendfile on;
  keepalive_requests 10000000;
  client_body_temp_path $t/t/1; proxy_temp_path $t/t/2; fastcgi_temp_path $t/t/3;
  uwsgi_temp_path $t/t/4; scgi_temp_path $t/t/5;
  server { listen 8080; listen [::]:8080; root $DATA; }
}
CONF
  serve nginx_pid A 8080 nginx -p "$t" -c "$WORK/nginx.conf" -e "$t/error.log"
}
nginx_ask() {
  local i urls=() files=()
  # One answer is TCP's for its first megabytes, by policy; on a busy machine, for some more.
  for i in small big{,,,,,,,}{,,,}; do urls+=("http://$HOST:$AT/$i") files+=("$DATA/$i"); done
  asked "$1: curl" curl -sS "${urls[@]}" || return
  cat "${files[@]}" >"$WORK/want"
  equal "$1: 512 MiB of files" "$WORK/want" "$WORK/out"
  asked "$1: wrk" wrk --timeout 60s -t 1 -c 10 -d "${SECS}s" "http://$HOST:$AT/small" || return
  check "$1: wrk ($(rate_of_wrk) a second)" "$(tail -4 "$WORK/out")" \
    test -z "$(grep -E 'Socket errors|Non-2xx| 0 requests in' "$WORK/out")"
}
rate_of_wrk() { sed -n 's/^Requests.sec: *\([0-9]*\).*/\1/p' "$WORK/out"; }
nginx_end() { finish nginx_pid QUIT; }

# Between a client and nginx: each of the two connections by itself.
haproxy_serve() {
  nginx_serve || return
  cat >"$WORK/haproxy.cfg" <<CONF
global
  hard-stop-after 10s
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option splice-auto
frontend f
  bind :::8081 v4v6
  default_backend b
backend b
  server s 10.78.1.2:8080
CONF
  serve haproxy_pid M 8081 haproxy -f "$WORK/haproxy.cfg" -db
}
haproxy_ask() { nginx_ask "$1"; }
haproxy_end() { finish haproxy_pid USR1; nginx_end; }

as_postgres() { "$1" A setpriv --reuid=postgres --regid=postgres --clear-groups "${@:2}"; }
postgres_ready() {
  local MODE=tcp to=(-h 127.0.0.1 -p 5432 -U tester)
  on A sh -c 'mkdir "$1" && chown postgres:postgres "$1"' - "$WORK/pg" &&
    as_postgres on "$PG/initdb" -D "$WORK/pg/data" -U tester -A trust -E UTF8 --locale=C \
      >"$WORK/initdb" 2>&1 && on A sh -c 'echo "host all all all trust" >>"$1"' - \
      "$WORK/pg/data/pg_hba.conf" && postgres_serve &&
    on A "$PG/pgbench" "${to[@]}" -i -q postgres >"$WORK/initdb" 2>&1 ||
    fail "the data base" "$(tail -3 "$WORK/initdb")"
  postgres_end
}
postgres_serve() {
  serve postgres_pid A 5432 setpriv --reuid=postgres --regid=postgres --clear-groups \
    "$PG/postgres" -D "$WORK/pg/data" -p 5432 -c listen_addresses='*' \
    -c unix_socket_directories= -c fsync=off -c autovacuum=off
}
postgres_ask() {
  local to=(-h "$ADDRESS" -p "$AT" -U tester) i
  for ((i = 0; i < 100; i++)); do
    on "$FROM" "$PG/pg_isready" "${to[@]}" -q && break
    nap 0.05
  done
  # One connection's first megabytes are TCP's, by policy, on a busy machine some more.
  local all=()
  for ((i = 0; i < 360; i++)); do
    all+=(-c "select x, repeat('a', 100) from generate_series(1, 3000) x")
  done
  asked "$1: psql" "$PG/psql" "${to[@]}" -d postgres -XAtq "${all[@]}" || return
  for ((i = 0; i < 360; i++)); do seq 3000; done |
    awk -v a="$(printf 'a%.0s' {1..100})" '{ print $1 "|" a }' >"$WORK/want"
  equal "$1: long results" "$WORK/want" "$WORK/out"
  asked "$1: pgbench" "$PG/pgbench" "${to[@]}" -n -S -c 4 -t 3000 postgres || return
  check "$1: pgbench ($(sed -n 's/^tps = \([0-9]*\).*/\1/p' "$WORK/out") a second)" \
    "$(tail -3 "$WORK/out")" grep -q '^number of failed transactions: 0 ' "$WORK/out"
}
postgres_end() { finish postgres_pid INT; }

iperf3_serve() { serve iperf3_pid A 5201 iperf3 -s -p 5201; }
iperf3_ask() {
  local how
  for how in "" -R; do
    # shellcheck disable=SC2086
    asked "$1: iperf3 $how" iperf3 -c "$ADDRESS" -p "$AT" -t "$SECS" -J $how || return
    check "$1: iperf3 $how ($(rate_of_iperf3) Mbit/s)" "$(tail -3 "$WORK/out")" \
      test "$(rate_of_iperf3)" -gt 0
  done
}
rate_of_iperf3() {
  "$PYTHON" -c 'import json, sys
r = json.load(open(sys.argv[1]))
print(0 if "error" in r else int(r["end"]["sum_received"]["bits_per_second"] / 1e6))' "$WORK/out"
}
iperf3_end() { finish iperf3_pid INT; }

ftp_serve() {
  local t=$WORK/ftp
  [ -d "$t" ] || on A sh -c 'mkdir -p "$1/home" && chown 65533:65533 "$1/home" &&
    printf "ftper:%s:65533:65533::%s/home:/bin/sh\n" "$2" "$1" >"$1/passwd" &&
    chmod 755 "$1" && chmod 600 "$1/passwd"' - "$t" "$(openssl passwd -1 secret)"
  cat >"$WORK/proftpd.conf" <<CONF
ServerName test
ServerType standalone
DefaultServer on
UseIPv6 on
UseReverseDNS off
Port 2121
PassivePorts 50000 50100
User root
Group root
ScoreboardFile $t/scoreboard
PidFile $t/pid
SystemLog $t/log
WtmpLog off
TransferLog none
AuthUserFile $t/passwd
AuthOrder mod_auth_file.c
RequireValidShell off
AllowOverwrite on
CONF
  serve ftp_pid A 2121 /usr/sbin/proftpd -n -q -c "$WORK/proftpd.conf"
}
ftp_ask() {
  local at="ftp://ftper:secret@$HOST:$AT"
  [ -s "$WORK/huge" ] || for _ in {1..30}; do cat "$DATA/big"; done >"$WORK/huge"
  asked "$1: stored" curl -sS -T "$WORK/huge" "$at/stored" || return
  asked "$1: fetched" curl -sS "$at/stored" || return
  equal "$1: 480 MiB stored and fetched" "$WORK/huge" "$WORK/out"
}
ftp_end() { finish ftp_pid TERM; }

smb_serve() {
  local t=$WORK/smb
  [ -d "$t" ] ||
    on A sh -c 'mkdir -p "$1/share" && chmod 755 "$1" && chmod 1777 "$1/share"' - "$t"
  cat >"$WORK/smb.conf" <<CONF
[global]
  server role = standalone server
  smb ports = 4450
  private dir = $t
  lock directory = $t
  state directory = $t
  cache directory = $t
  pid directory = $t
  ncalrpc dir = $t/ncalrpc
  log file = $t/log
  map to guest = Bad User
  load printers = no
  disable spoolss = yes
  disable netbios = yes
[s]
  path = $t/share
  guest ok = yes
  writable = yes
CONF
  # It listens for IPv6 first, by another socket.
  serve smb_pid A 4450 smbd -F --no-process-group -s "$WORK/smb.conf" &&
    until_true listens "${INIT[A]}" 4450 tcp
}
smb_ask() {
  asked "$1: smbclient" smbclient -N -s "$WORK/smb.conf" -I "$ADDRESS" -p "$AT" //test/s -c \
    "put $DATA/long stored; get stored $WORK/got.smb" || return
  equal "$1: 96 MiB put and got" "$DATA/long" "$WORK/got.smb"
}
smb_end() { finish smb_pid TERM; }
