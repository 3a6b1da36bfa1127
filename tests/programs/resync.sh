#!/usr/bin/env bash
# redis-server that forks while it serves, for BGSAVE and for a replica that is cut off and
# synchronised again. That goes from disk and from the forked child straight to the socket, all
# under load. Then both have the same data.
. "$(dirname "$0")/common.sh"
need redis-server redis-cli=redis-tools redis-benchmark=redis-tools
n=100000 rounds=3
[ "$QUICK" = 1 ] && n=15000 rounds=1

ask() { local p=$1; shift; limit 30 "${P[@]}" redis-cli -p "$p" "$@" 2>&1; }
# eventually PORT SECTION KEY VALUE
eventually() {
  local i
  for ((i = 0; i < 1200; i++)); do
    ask "$1" info "$2" | tr -d '\r' | grep -qx "$3:$4" && return 0
    nap 0.05
  done
  return 1
}
for m in $(modes_of "$@"); do
  mode "$m"
  for diskless in no yes; do
    tmpdir dir
    mkdir "$dir/a" "$dir/b"
    free_port a
    start master "${P[@]}" redis-server --port "$a" --bind 127.0.0.1 --save '' --appendonly no --dir "$dir/a" \
      --repl-diskless-sync $diskless --repl-diskless-sync-delay 0 --repl-backlog-size 16kb --enable-debug-command yes \
      --daemonize no >"$dir/a.log" 2>&1
    wait_port "$a" "$master" || { fail "start" "$(tail -3 "$dir/a.log")"; continue; }
    free_port b
    start replica "${P[@]}" redis-server --port "$b" --bind 127.0.0.1 --save '' --appendonly no --dir "$dir/b" \
      --replicaof "127.0.0.1 $a" --enable-debug-command yes --daemonize no >"$dir/b.log" 2>&1
    wait_port "$b" "$replica" || { fail "start" "$(tail -3 "$dir/b.log")"; continue; }
    ask "$a" debug populate 20000 key 500 >/dev/null
    check "diskless $diskless: first synchronisation" "$(tail -3 "$dir/b.log")" eventually "$b" replication master_link_status up
    limit 300 "${P[@]}" redis-benchmark -p "$a" -c 20 -n $n -r 5000 -d 300 -t set,incr,lpush,sadd --csv >"$dir/load" 2>&1 &
    load=$!
    for ((i = 0; i < rounds; i++)); do
      ask "$a" bgsave >/dev/null
      eventually "$a" persistence rdb_bgsave_in_progress 0 || fail "diskless $diskless: BGSAVE" "it does not end"
      ask "$a" client kill type replica >/dev/null
      ask "$a" client kill type pubsub >/dev/null
    done
    wait $load
    rc=$?
    check "diskless $diskless: load meanwhile" "exit $rc: $(tail -3 "$dir/load")" same "$rc $(grep -c '^"\(SET\|INCR\|LPUSH\|SADD\)"' "$dir/load")" "0 4"
    eventually "$a" persistence rdb_last_bgsave_status ok || fail "diskless $diskless: BGSAVE" "$(tail -3 "$dir/a.log")"
    # From nothing once more, and then the same, digest for digest.
    ask "$b" replicaof no one >/dev/null
    ask "$b" flushall >/dev/null
    ask "$b" replicaof 127.0.0.1 "$a" >/dev/null
    check "diskless $diskless: synchronised again" "$(tail -3 "$dir/b.log")" eventually "$b" replication master_link_status up
    # By one connection: WAIT is about writes of the connection that it comes by.
    printf 'set last one\nwait 1 20000\n' | ask "$a" >/dev/null
    check "diskless $diskless: both have the same data" "$(ask "$a" dbsize) and $(ask "$b" dbsize) keys" \
      same "$(ask "$a" debug digest)" "$(ask "$b" debug digest)"
    full=$(ask "$a" info stats | tr -d '\r' | sed -n 's/^sync_full://p')
    check "diskless $diskless: $full full synchronisations" "too few" test "${full:-0}" -ge 2
    limit 60 redis-check-rdb "$dir/a/dump.rdb" >"$dir/rdb" 2>&1
    check "diskless $diskless: what BGSAVE wrote is whole" "$(tail -2 "$dir/rdb")" same $? 0
    stop "$replica" TERM || fail stop "the replica did not end"
    stop "$master" TERM || fail stop "the master did not end"
  done
  carried
done
exit $BAD
