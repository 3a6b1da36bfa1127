#!/usr/bin/env bash
# The same blocking program under Debian's own librspreload at one end and under ours at the other.
# It runs over RDMA, in both directions and over both devices.
. "$(dirname "$0")/guest.sh"
HERE=$(cd "$(dirname "$0")" && pwd)
helper ECHO echo
THEIRS=$(dpkg -L librdmacm1 | grep '/rsocket/librspreload.so$')
[ -n "$THEIRS" ] || die "librdmacm1 has no preload library"
tmpdir tmp
port=7600
bytes=3000000
[ "$QUICK" = 1 ] && bytes=800000

# Debian's library sets its sizes from files; without them it uses its defaults.
side() {
  if [ "$1" = ours ]; then echo "env LD_PRELOAD=$LIB RSOCKET_TRANSPORT=rdma RSOCKET_STATS=$tmp/stats/%p"
  else echo "env LD_PRELOAD=$THEIRS"; fi
}

# echo_between SERVER CLIENT DEVICE : two connections, one after the other.
echo_between() {
  local dev=$3 name="$1 serves, $2 asks: $3" addr before after server rc=0
  addr=$(address "$dev")
  port=$((port + 1))
  rm -rf "$tmp/stats" && mkdir "$tmp/stats"
  before=$(packets "$dev")
  # shellcheck disable=SC2046
  start server timeout -k 5 90 $(side "$1") "$ECHO" server "$addr" $port 2 >"$tmp/server" 2>&1
  wait_listen $port "$server" 20 || { fail "$name" "no server: $(tail -3 "$tmp/server")"; stop "$server"; return; }
  for _ in 1 2; do
    # shellcheck disable=SC2046
    limit 60 $(side "$2") "$ECHO" client "$addr" $port $bytes >"$tmp/client" 2>&1 || rc=$?
  done
  gone_child "$server" 10
  stop "$server" || { fail "$name" "the server does not end: $(tail -3 "$tmp/server")"; return; }
  after=$(packets "$dev")
  if [ $rc != 0 ]; then fail "$name" "exit $rc: $(tail -q -n 3 "$tmp/client" "$tmp/server")"
  elif [ "$after" -le "$before" ]; then fail "$name" "no packet went through $dev"
  elif [ "$(stat_sum bytes.sent.rdma "$tmp/stats")" -ne $((2 * bytes)) ] ||
    [ "$(stat_sum bytes.received.rdma "$tmp/stats")" -ne $((2 * bytes)) ]; then
    fail "$name" "we count $(stat_sum bytes.sent.rdma "$tmp/stats") bytes sent over RDMA: $(head -n 50 "$tmp"/stats/*)"
  else ok "$name ($((after - before)) packets)"; fi
}

# Both ends change their credentials while a connection stands.
change_user() {
  local dev=$1 addr name="both ends become an ordinary user: $1" server out
  addr=$(address "$dev")
  port=$((port + 1))
  rm -rf "$tmp/stats" && mkdir -m 1777 "$tmp/stats"
  # shellcheck disable=SC2046
  start server timeout -k 5 90 $(side ours) "$PYTHON" "$HERE/hosts/talk.py" once "$addr" $port >"$tmp/server" 2>&1
  wait_listen $port "$server" 20 || { fail "$name" "no server: $(tail -3 "$tmp/server")"; stop "$server"; return; }
  # shellcheck disable=SC2046
  out=$(limit 80 $(side ours) "$PYTHON" "$HERE/hosts/talk.py" user "$addr" $port 2>&1)
  gone_child "$server" 10
  stop "$server" || { fail "$name" "the server does not end: $(tail -3 "$tmp/server")"; return; }
  check "$name" "$out; $(tail -n 3 "$tmp/server"); $(stat_sum bytes.sent.rdma "$tmp/stats") bytes by RDMA" \
    [ "${out##*$'\n'}" = warm -a ! -s "$tmp/server" -a "$(stat_sum bytes.sent.rdma "$tmp/stats")" -gt 2000000 ]
}
for dev in "${DEVICES[@]}"; do
  # What soft-iWARP's provider says when it is refused, it says on standard error.
  [ "$dev" = siw0 ] || change_user "$dev"
  echo_between upstream ours "$dev"
  echo_between ours upstream "$dev"
  check "nothing left on $dev" "see above" none_left 10
done
finish
