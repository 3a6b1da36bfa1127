# shellcheck shell=bash disable=SC2034,SC2154
# Rows of the table whose servers fork, become other programs and hand their connections on. These
# are OpenSSH, nginx with four workers and a new binary under load, and gunicorn. They are also
# redis with BGSAVE and a replica that is cut off, a process for each connection, inetd.
#
# rows.sh sources this and says what a row is. $SHARED is a directory that both ends see; $SCP what
# scp carries, $UPGRADES how often nginx is reloaded. Helpers are in $FAMILY, made by `need_family`
# where there is a compiler.

FAMILY=$TARGET/programs
need_family() {
  need sshd=openssh-server ssh=openssh-client scp=openssh-client ssh-keygen=openssh-client gunicorn socat busybox=busybox-static \
    redis-check-rdb=redis-server
  need_cc
  mkdir -p "$FAMILY"
  cc -O2 -Wall -Wextra -Werror -o "$FAMILY/inherit" "$HERE/inherit.c" || die "inherit.c does not compile"
  ! file -L "$(command -v busybox)" 2>/dev/null | grep -q dynamically || die "busybox is not static"
}

# shortly SECONDS COMMAND... : until it succeeds.
shortly() {
  local end=$((SECONDS + $1 * ${RSOCKET_SLOW:-1}))
  shift
  until "$@"; do
    [ $SECONDS -le $end ] || { because "not in time: $*"; return; }
    nap 0.1
  done
}

# ---------------------------------------------------------------- OpenSSH

ssh_serve() {
  # Where privileges are separated, by root only; the daemon insists on the directory.
  [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
  chmod 700 "$DIR"
  rm -f "$SHARED/key" "$SHARED/key.pub"
  ssh-keygen -q -t ed25519 -N '' -f "$DIR/host" && ssh-keygen -q -t ed25519 -N '' -f "$SHARED/key" || because "no keys" || return
  cp "$SHARED/key.pub" "$DIR/keys"
  cat >"$DIR/sshd.conf" <<CONF
Port $PORT
ListenAddress $ADDR
HostKey $DIR/host
AuthorizedKeysFile $DIR/keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
Subsystem sftp internal-sftp
CONF
  # The daemon wants to know its own path.
  serve "${P[@]}" "$(command -v sshd)" -D -e -f "$DIR/sshd.conf"
}
ssh_client() {
  cp "$SHARED/key" "$DIR/user" && chmod 600 "$DIR/user" || return
  cat >"$DIR/ssh.conf" <<CONF
Host box
  HostName $ADDR
  Port $PORT
  User $(id -un)
  IdentityFile $DIR/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  BatchMode yes
  LogLevel ERROR
CONF
}
remote() { limit 120 "${P[@]}" ssh -F "$DIR/ssh.conf" box "$@"; }
ssh_ask() {
  local out rc sum i pids=()
  ssh_client || return
  out=$(remote 'cat; echo to-stderr >&2; exit 7' <<<'a line' 2>"$DIR/err")
  rc=$?
  [ "$rc $out $(cat "$DIR/err")" = "7 a line to-stderr" ] || because "exit $rc, <$out>, <$(tail -n 2 "$DIR/err")>" || return
  sum=$(sha256sum <"$DATA/middle")
  out=$(remote sha256sum <"$DATA/middle" 2>"$DIR/err")
  [ "$out" = "$sum" ] || because "into a command: $out $(tail -n 2 "$DIR/err")" || return
  remote cat "$DATA/middle" >"$DIR/got" 2>"$DIR/err" || because "out of a command: exit $? $(tail -n 2 "$DIR/err")" || return
  alike "$DATA/middle" "$DIR/got" || return
  # Several at a time, each with its own process at the other end.
  for i in 1 2 3; do
    remote "head -c ${i}000000 $DATA/middle; echo done-$i" >"$DIR/got.$i" 2>"$DIR/err.$i" &
    pids+=($!)
  done
  for i in 1 2 3; do
    wait "${pids[i - 1]}" && cmp <(head -c ${i}000000 "$DATA/middle"; echo done-$i) "$DIR/got.$i" >&2 2>&1 ||
      because "side by side, $i: $(tail -n 2 "$DIR/err.$i")" || return
  done
}
scp_serve() { ssh_serve; }
scp_ask() {
  local how
  ssh_client || return
  head -c "$SCP" /dev/urandom >"$DIR/file"
  for how in -s -O; do
    quiet limit 300 "${P[@]}" scp -q $how -F "$DIR/ssh.conf" "$DIR/file" "box:$DATA/there" &&
      quiet limit 300 "${P[@]}" scp -q $how -F "$DIR/ssh.conf" "box:$DATA/there" "$DIR/back" &&
      alike "$DIR/file" "$DIR/back" || return
    remote rm "$DATA/there" && rm "$DIR/back" || return
  done
}

# ------------------------------------------------------------- servers that fork before they accept

# The master changes its workers, then its binary, while the clients ask; it says when it is done.
nginx-upgrade_serve() {
  local n user=
  [ "$(id -u)" = 0 ] && user='user www-data;'
  mkdir -p "$DIR/t" "$DIR/www"
  (cd "$HERE" && PYTHONDONTWRITEBYTECODE=1 "$PYTHON" -c 'import app, sys
for n in sys.argv[2:]: open(sys.argv[1] + "/" + n, "wb").write(app.body(int(n)))' "$DIR/www" 700 60000 900000) || return
  chmod -R a+rX "$DIR/www"
  rm -f "$SHARED"/upgrade.*
  cat >"$DIR/conf" <<CONF
$user
worker_processes 4;
daemon on;
pid $DIR/pid;
error_log $DIR/error.log warn;
# Otherwise nginx gives a new binary no environment, and so no library.
env LD_PRELOAD; env RSOCKET_TRANSPORT; env RSOCKET_STATS;
events { worker_connections 512; }
http {
  access_log off;
  client_body_temp_path $DIR/t/1; proxy_temp_path $DIR/t/2; fastcgi_temp_path $DIR/t/3;
  uwsgi_temp_path $DIR/t/4; scgi_temp_path $DIR/t/5;
  server { listen $ADDR:$PORT; root $DIR/www; }
}
CONF
  # As a daemon: one that is still its starter's child changes no binary.
  quiet limit 60 "${P[@]}" "$(command -v nginx)" -p "$DIR" -c "$DIR/conf" -e "$DIR/error.log" || return
  shortly 30 test -s "$DIR/pid" || return
  SERVERS=("$(cat "$DIR/pid")")
  watch "${SERVERS[0]}"
  (
    trap - EXIT
    upgrade "${SERVERS[0]}" 2>"$SHARED/upgrade.why"
    echo $? >"$SHARED/upgrade.part" && mv "$SHARED/upgrade.part" "$SHARED/upgrade.done"
  ) &
}
workers() { cat "/proc/$1/task/$1/children" 2>/dev/null; }
# renewed PID OLD... : four workers, none of the old ones
renewed() {
  local now k
  now=$(workers "$1")
  [ "$(wc -w <<<"$now")" = 4 ] || return 1
  for k in "${@:2}"; do [[ " $now " != *" $k "* ]] || return 1; done
}
upgrade() {
  local master=$1 old i
  shortly 120 renewed "$master" && shortly 120 test -e "$SHARED/upgrade.load" || return
  for ((i = 0; i < UPGRADES; i++)); do
    old=$(workers "$master")
    kill -HUP "$master"
    # shellcheck disable=SC2086
    shortly 60 renewed "$master" $old || return
  done
  kill -USR2 "$master"
  # The new master writes its id when the old one's has another name.
  shortly 60 test -s "$DIR/pid.oldbin" && shortly 60 test -s "$DIR/pid" && shortly 60 renewed "$(cat "$DIR/pid")" || return
  kill -QUIT "$master"
  shortly 90 eval "! kill -0 $master 2>/dev/null"
}
nginx-upgrade_ask() {
  local client rc
  mkfifo "$DIR/stop"
  # A connection for each request, since one at rest may be closed by a worker that ends.
  ADDRESS=$ADDR FRESH=1 "${P[@]}" "$PYTHON" "$HERE/http_client.py" "$PORT" 3 eof 700 60000 900000 <"$DIR/stop" >"$DIR/out" 2>&1 &
  client=$!
  exec 9>"$DIR/stop"
  echo >"$SHARED/upgrade.load"
  shortly 240 test -e "$SHARED/upgrade.done"
  exec 9>&-
  wait $client
  rc=$?
  [ "$rc $(cat "$SHARED/upgrade.done" 2>/dev/null)" = "0 0" ] ||
    because "clients: exit $rc, $(tail -n 2 "$DIR/out"); server: $(cat "$SHARED/upgrade.done" "$SHARED/upgrade.why" 2>&1)" || return
  quiet limit 60 "${P[@]}" wrk -t 2 -c "${CROWD:-20}" -d "${SECS}s" --timeout 60s "http://$ADDR:$PORT/60000" || return
  ! grep -Eq 'Socket errors|Non-2xx| 0 requests in' "$DIR/out" || because "the new binary: $(tail -n 4 "$DIR/out")"
}
# The new master is its predecessor's child and not ours: ended by the id in its file.
nginx-upgrade_end() {
  local now
  now=$(cat "$DIR/pid" 2>/dev/null) && watch "$now" && kill -QUIT "$now" 2>/dev/null && gone "$now" 60 || because "the new binary did not end" || return
  SERVERS=()
  [ -z "$(grep -Ev '\[(notice|info)\]' "$DIR/error.log" 2>/dev/null)" ] || because "$(tail -n 3 "$DIR/error.log")"
}

# Workers with threads keep connections alive; the plain kind ends each after one answer, too early
# for it to leave TCP.
gunicorn_serve() {
  serve env -C "$HERE" PYTHONDONTWRITEBYTECODE=1 "${P[@]}" "$(command -v gunicorn)" -w 4 -k gthread --threads 4 -b "$ADDR:$PORT" --worker-tmp-dir "$DIR" --timeout 120 app:app
}
gunicorn_ask() {
  ADDRESS=$ADDR quiet limit 180 "${P[@]}" "$PYTHON" "$HERE/http_client.py" "$PORT" 3 4 700 60000 900000 || return
  quiet limit 60 "${P[@]}" wrk -t 2 -c "${CROWD:-16}" -d "${SECS}s" --timeout 60s "http://$ADDR:$PORT/60000" || return
  ! grep -Eq 'Socket errors|Non-2xx| 0 requests in' "$DIR/out" || because "wrk: $(tail -n 4 "$DIR/out")"
}
gunicorn_end() { stop_servers && ! grep -iE 'error|critical|timeout' "$DIR/server.0" >&2 || because "gunicorn complained"; }

# ---------------------------------------------------------------- redis that forks while it serves

redis-bgsave_serve() { redis_server a "$PORT" "$ADDR"; }
info() { "$1" info "$2" 2>/dev/null | tr -d '\r' | grep -qx "$3"; }
# BGSAVE and a replica that is cut off, under load; then one that begins from nothing, from disk and
# straight from the child.
redis-bgsave_ask() {
  local how load port=$((PORT + 1)) from to
  quiet redis debug populate 5000 before 300 || return
  redis_server b "$port" "$ADDR_HERE"
  up "${SERVERS[-1]}" "$port" || because "the replica did not start" || return
  for how in no yes; do
    quiet redis config set repl-diskless-sync $how repl-backlog-size 16kb || return
    replica replicaof "$ADDR" "$PORT" >/dev/null 2>&1
    shortly 60 info replica replication master_link_status:up || return
    limit 180 "${P[@]}" redis-benchmark -h "$ADDR" -p "$PORT" -n "$REQUESTS" -c "${CROWD:-20}" -r 2000 -d 300 -t set,incr,lpush --csv >"$DIR/load" 2>&1 &
    load=$!
    redis bgsave >/dev/null 2>&1
    redis client kill type replica >/dev/null 2>&1
    wait $load || because "load: exit $? $(tail -n 3 "$DIR/load")" || return
    shortly 60 info redis persistence rdb_bgsave_in_progress:0 && shortly 5 info redis persistence rdb_last_bgsave_status:ok || return
    replica replicaof no one >/dev/null 2>&1
    replica flushall >/dev/null 2>&1
    replica replicaof "$ADDR" "$PORT" >/dev/null 2>&1
    shortly 60 info replica replication master_link_status:up || return
    caught_up last $how
    from=$(redis debug digest 2>&1)
    to=$(replica debug digest 2>&1)
    [ ${#from} -ge 40 ] && [ "$from" = "$to" ] || because "diskless $how: $from, but the replica holds $to" || return
    replica replicaof no one >/dev/null 2>&1
  done
}
redis-bgsave_end() {
  stop_servers && quiet redis-check-rdb "$DIR/a/dump.rdb"
}

# ---------------------------------------------------------------- a process for each connection

# echoes CONNECTIONS BYTES [BLOCKS [across]] : many bytes, since each process between hosts begins
# to listen by RDMA for itself.
echoes() { ADDRESS=$ADDR quiet limit 180 "${P[@]}" "$PYTHON" "$HERE/echo_client.py" "$PORT" "$@"; }
fork-echo_serve() { ADDRESS=$ADDR serve "${P[@]}" "$FAMILY/inherit" "$PORT" echo; }
fork-echo_ask() { echoes 3 $((ECHO * 6)); }
socat-exec_serve() { serve "${P[@]}" socat "TCP-LISTEN:$PORT,bind=$ADDR,fork,backlog=64" EXEC:cat; }
socat-exec_ask() { echoes 4 "$ECHO"; }
socat-nofork_serve() { serve "${P[@]}" socat "TCP-LISTEN:$PORT,bind=$ADDR,fork,backlog=64" EXEC:cat,nofork; }
socat-nofork_ask() { echoes 3 $((ECHO * 6)); }
# inetd's way, at once and in the midst of a connection: to a program with the library, and to a
# static one. Between hosts a connection that has left TCP does not survive it (docs/limits.md, Over
# RDMA): at once only.
inetd_serve() { ADDRESS=$ADDR serve "${P[@]}" "$FAMILY/inherit" "$PORT" exec cat; }
inetd_ask() { echoes 3 $((ECHO * 6)) 0 && { [ -n "${VM_HOST:-}" ] || echoes 3 $((ECHO * 6)) 30 across; }; }
inetd-static_serve() { ADDRESS=$ADDR serve "${P[@]}" "$FAMILY/inherit" "$PORT" exec "$(command -v busybox)" cat; }
inetd-static_ask() { inetd_ask; }
