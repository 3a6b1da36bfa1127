#!/usr/bin/env bash
# Programs of the field that are too heavy for every run: RabbitMQ and pika, Python's gRPC, Arrow
# Flight, uvicorn with two workers.
#
#   tests/programs/field.sh [rabbit|grpc|flight|uvicorn]... [MODE...]
#
# What they say is compared, and 95 bytes of 100 have to go over shared memory. FIELD_MESSAGES,
# FIELD_ROUNDS, FIELD_MEGABYTES and FIELD_REQUESTS say how much. Their packages are installed when
# this is run, by apt and into a virtual environment of Python.
. "$(dirname "$0")/common.sh"
MESSAGES=${FIELD_MESSAGES:-200000} ROUNDS=${FIELD_ROUNDS:-2000} MEGABYTES=${FIELD_MEGABYTES:-1000} REQUESTS=${FIELD_REQUESTS:-200}
programs=() modes=()
for a in "$@"; do
  case $a in
    rabbit | grpc | flight | uvicorn) programs+=("$a") ;;
    *) modes+=("$a") ;;
  esac
done
[ ${#programs[@]} -gt 0 ] || programs=(rabbit grpc flight uvicorn)
[ ${#modes[@]} -gt 0 ] || modes=(tcp default eager)
TALKS=$HERE/field

# by_shm WHAT : of all bytes of this program, at both ends.
by_shm() {
  local shm tcp
  [ "$MODE" = tcp ] && return
  shm=$(($(stat_sum bytes.sent.shm "$STATS") + $(stat_sum bytes.received.shm "$STATS")))
  tcp=$(($(stat_sum bytes.sent.tcp "$STATS") + $(stat_sum bytes.received.tcp "$STATS")))
  check "$1: $shm bytes by shm, $tcp by tcp" "$(stat_reasons "$STATS")" test $((shm * 100)) -gt $(((shm + tcp) * 95))
}

# port_said FILE PID : the port that a server writes, when it serves.
port_said() {
  local i
  for ((i = 0; i < 1500; i++)); do
    [ -s "$1" ] && { cat "$1"; return 0; }
    alive "$2" || return 1
    nap 0.02
  done
  return 1
}

# talk NAME COUNT : one of the programs that serve on a port of their own until their input ends.
talk() {
  local name=$1 server port got dir
  tmpdir dir
  mkfifo "$dir/in"
  exec 7<>"$dir/in"
  # A background job's input is nothing, whatever the shell's is.
  start server sh -c 'exec "$@" <"$0" 7>&-' "$dir/in" "${P[@]}" "$VENV/bin/python" "$TALKS/${name}_talk.py" serve "$dir/port" 2>"$dir/server.log"
  if port=$(port_said "$dir/port" "$server"); then
    got=$(limit 300 "${P[@]}" "$VENV/bin/python" "$TALKS/${name}_talk.py" ask "$port" "$2" 2>&1 7>&-)
    check "$name, $2" "$got" same "${got##*$'\n'}" "all as sent"
  else fail "$name" "$(tail -n 3 "$dir/server.log")"; fi
  exec 7>&-
  gone_child "$server" 20 || fail "$name" "the server does not end"
  by_shm "$name"
}
grpc() { venv grpcio; talk grpc "$ROUNDS"; }
flight() { venv pyarrow; talk flight "$MEGABYTES"; }

uvicorn() {
  local server port got
  venv uvicorn
  free_port port
  start server "${P[@]}" "$VENV/bin/python" -m uvicorn --app-dir "$HERE" --workers 2 --port "$port" --log-level warning app:asgi
  if wait_port "$port" "$server" 30; then
    got=$(limit 300 "${P[@]}" "$VENV/bin/python" "$TALKS/asgi_client.py" "$port" 8 "$REQUESTS" 2>&1)
    check "uvicorn, two workers, $REQUESTS requests by each of 8" "$got" same "${got##*$'\n'}" "all as sent"
  else fail uvicorn "no server"; fi
  stop "$server" TERM 10 || fail uvicorn "it does not end"
  by_shm uvicorn
}

rabbit() {
  local server port dist epmd got dir i
  need /usr/lib/rabbitmq/bin/rabbitmq-server=rabbitmq-server
  venv pika
  tmpdir dir
  mkdir "$dir/home"
  free_port port; free_port dist; free_port epmd
  local here=(env "HOME=$dir/home" "RABBITMQ_NODENAME=field@localhost" RABBITMQ_NODE_IP_ADDRESS=127.0.0.1 "RABBITMQ_NODE_PORT=$port"
    "RABBITMQ_DIST_PORT=$dist" "ERL_EPMD_PORT=$epmd" ERL_EPMD_ADDRESS=127.0.0.1 "RABBITMQ_MNESIA_BASE=$dir/m" "RABBITMQ_LOG_BASE=$dir/log"
    "RABBITMQ_ENABLED_PLUGINS_FILE=$dir/none" "RABBITMQ_CONFIG_FILE=$dir/no" "RABBITMQ_PID_FILE=$dir/pid")
  start server "${here[@]}" "${P[@]}" /usr/lib/rabbitmq/bin/rabbitmq-server >"$dir/server.log" 2>&1
  if wait_port "$port" "$server" 60; then
    got=$(limit 600 "${P[@]}" "$VENV/bin/python" "$TALKS/rabbit_client.py" "$port" "$MESSAGES" 2>&1)
    check "rabbit, $MESSAGES messages" "$got" same "${got##*$'\n'}" "all as sent"
  else fail rabbit "$(tail -n 3 "$dir/server.log")"; fi
  "${here[@]}" /usr/lib/rabbitmq/bin/rabbitmqctl -q shutdown --no-wait >/dev/null 2>&1
  gone_child "$server" 60 || fail rabbit "it does not end"
  "${here[@]}" epmd -port "$epmd" -kill >/dev/null 2>&1
  by_shm rabbit
}

for m in "${modes[@]}"; do
  for p in "${programs[@]}"; do
    mode "$m"
    "$p"
  done
done
exit $BAD
