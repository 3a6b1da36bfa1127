#!/usr/bin/env bash
# PostgreSQL, a process for each connection: pgbench, long results, COPY both ways, a cancelled
# statement, a client that is killed while it does not read.
. "$(dirname "$0")/common.sh"
[ -x "$(echo /usr/lib/postgresql/*/bin/postgres)" ] || apt_install postgresql
BIN=$(echo /usr/lib/postgresql/*/bin)
need setpriv=util-linux
# It does not run as root. What it and its clients write is theirs; both ends are one user's.
as=()
[ "$(id -u)" != 0 ] || as=(setpriv --reuid=postgres --regid=postgres --clear-groups)
theirs() { if [ ${#as[@]} != 0 ]; then chown postgres "$@"; fi; }

# sql QUERY : its answer, bare.
sql() { limit 60 "${as[@]}" "${P[@]}" "$BIN/psql" "${to[@]}" -d postgres -XAtqc "$1" 2>&1; }
bench() {
  local out
  out=$(limit 90 "${as[@]}" "${P[@]}" "$BIN/pgbench" "${to[@]}" "$@" postgres 2>&1)
  if grep -q '^number of failed transactions: 0 ' <<<"$out"; then ok "pgbench $* ($(sed -n 's/^tps = \([0-9]*\).*/\1 a second/p' <<<"$out"))"
  else fail "pgbench $*" "$(tail -5 <<<"$out")"; fi
}
# backends [WHAT] : how many serve the long result, or what else the query has in it.
backends() {
  sql "select count(*) from pg_stat_activity where query like '%${1:-repeat(}%' and pid <> pg_backend_pid()"
}
# until_backends COUNT [WHAT]
until_backends() {
  local i
  for ((i = 0; i < 300; i++)); do
    [ "$(backends${2:+ "$2"})" = "$1" ] && return 0
    nap 0.1
  done
  return 1
}

for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  theirs "$dir" "$STATS"
  free_port port
  to=(-h 127.0.0.1 -p "$port" -U tester)
  "${as[@]}" "$BIN/initdb" -D "$dir/data" -U tester -A trust -E UTF8 --locale=C >"$dir/log" 2>&1 ||
    { fail initdb "$(tail -3 "$dir/log")"; continue; }
  start server "${as[@]}" "${P[@]}" "$BIN/postgres" -D "$dir/data" -p "$port" -c listen_addresses=127.0.0.1 \
    -c unix_socket_directories= -c fsync=off -c autovacuum=off >>"$dir/log" 2>&1
  if ! wait_port "$port" "$server" || ! until_backends 0; then fail start "$(tail -3 "$dir/log")"; continue; fi
  limit 60 "${as[@]}" "${P[@]}" "$BIN/pgbench" "${to[@]}" -i -q postgres >"$dir/out" 2>&1 || fail "pgbench -i" "$(tail -3 "$dir/out")"
  bench -n -S -c 1 -t 5000
  bench -n -c 8 -j 2 -t 200
  bench -n -S -C -c 2 -t 50
  # A long result, and as much in the other direction.
  rows=200000
  seq $rows | awk -v a="$(printf 'a%.0s' {1..100})" '{ print $1 "|" a }' >"$dir/want"
  sql "select x, repeat('a', 100) from generate_series(1, $rows) x" >"$dir/got"
  check "a long result" "$(cmp "$dir/want" "$dir/got" 2>&1)" cmp -s "$dir/want" "$dir/got"
  sql 'create table t (x int, a text)' >"$dir/out"
  sql "copy t from stdin (delimiter '|')" <"$dir/want" >>"$dir/out"
  sql "copy t to stdout (delimiter '|')" >"$dir/got"
  check "COPY both ways" "$(tail -1 "$dir/out") $(cmp "$dir/want" "$dir/got" 2>&1)" cmp -s "$dir/want" "$dir/got"
  # The cancelling request comes by a connection of its own.
  start client "${as[@]}" "${P[@]}" "$BIN/psql" "${to[@]}" -d postgres -Xc 'select pg_sleep(60)' >"$dir/out" 2>&1
  until_backends 1 'pg_sleep(' || fail "a cancelled statement" "it has not begun"
  kill -INT "$client"
  gone_child "$client" 30
  check "a cancelled statement" "$(tail -1 "$dir/out")" grep -q 'canceling statement due to user request' "$dir/out"
  stop "$client"
  # The server waits for room, and for nothing else, when its client dies.
  start client "${as[@]}" "${P[@]}" "$BIN/psql" "${to[@]}" -d postgres -XAtc "select repeat('a', 1000) from generate_series(1, 5000000)" \
    >/dev/null 2>&1
  if until_backends 1; then
    kill -STOP "$client"
    sleep 1
    kill -KILL "$client"
    wait "$client" 2>/dev/null
    check "a killed client" "its backend is still there" until_backends 0
  else
    fail "a killed client" "it has not begun"
  fi
  stop "$client"
  [ "$QUICK" = 1 ] || idle "$server"
  stop "$server" INT 30 || fail stop "the server did not end"
  carried
done
exit $BAD
