#!/usr/bin/env bash
# What rsstat shows of a connection across network namespaces: the names that each of its ends sees,
# which no translation makes the same. It also shows which other line is that of the other end, and
# why the two have not met.
. "$(dirname "$0")/common.sh"
. "$HERE/topology.sh"
need /usr/bin/python3=python3 setpriv=util-linux
MODE=default
[ -f "$LIB" ] || build_lib
build_tools
LIBRARY=$LIB
if ! topology net; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
tmpdir STATS
talk=("$PYTHON" "$ROOT/tests/tools/talk.py")
# Of each end alone, and none of other programs.
for end in A B; do mkdir -m 700 "$WORK/run.$end"; done
shown_by() { XDG_RUNTIME_DIR=$WORK/run.$1 "$RSSTAT" -P "$2"; }
shows() { grep -Eq "$3" <<<"$(shown_by "$1" "$2")"; }
# Both ends, where they leave their files in one place.
joined() { XDG_RUNTIME_DIR=$WORK/run.A "$RSSTAT" -e; }

# talked WHAT SERVER CLIENT : what is shown at A, and at B, after ROUNDS exchanges. SERVES is the
#   server's mode.
talked() {
  local what=$1 client ENTER
  path both A 4 8080
  XDG_RUNTIME_DIR=$WORK/run.A MODE=${SERVES:-$MODE} \
    serve talk_pid A 8080 env TALK_AT="$OWN" "${talk[@]}" serve 8080
  rm -f "$WORK/stay" "$WORK/said"
  mkfifo "$WORK/stay"
  exec 7<>"$WORK/stay"
  preloaded B
  ENTER+=("XDG_RUNTIME_DIR=$WORK/run.${BESIDE:-B}")
  start client "${ENTER[@]}" "${ASKS[@]}" env TALK_AT="$ADDRESS" \
    "${talk[@]}" talk "$AT" "${ROUNDS:-300}" 3000 "$WORK/stay" >"$WORK/said" 2>&1
  until_true grep -q ready "$WORK/said" || fail "$what" "it does not talk: $(cat "$WORK/said")"
  [ -z "$2" ] || check "$what: at the server" "$(shown_by A 8080)" until_true shows A 8080 "$2"
  [ -z "$3" ] || check "$what: at the client" "$(shown_by B "$AT")" until_true shows B "$AT" "$3"
  [ -z "${BESIDE:-}" ] ||
    for end in "$client [^ ]+ 10.78.2.4:$port 10.78.9.12:18080" \
      "$talk_pid [^ ]+ 10.78.1.12:8080 10.78.1.1:$port"; do
      check "$what: the other end of a line" "$(joined)" \
        grep -Eq "  other end $end\$" <<<"$(joined)"
    done
  echo >&7
  exec 7>&-
  gone_child "$client" 10 || fail "$what" "the client does not end"
  finish talk_pid KILL 2>/dev/null
}

port='[0-9]+'
talked "met" " 10.78.1.12:8080 +10.78.1.1:$port +attached +shm" \
  " 10.78.2.4:$port +10.78.9.12:18080 +attached +shm"
BESIDE=A talked "both in one place" '' ''
MEET='' talked "no directory" 'tcp \(peer_elsewhere\)' 'tcp \(peer_elsewhere\)'
setting B net.ipv4.tcp_timestamps=0
talked "no timestamps" 'tcp \(no_handshake\)' 'tcp \(no_handshake\)'
setting B net.ipv4.tcp_timestamps=1
# An end that did not come is looked for again: why the connection is on TCP is shown until then.
ROUNDS=40000 SERVES=tcp talked "nobody there" '' 'tcp +tcp \(nobody_met\)'
check "nobody there: counted at the client" "$(why)" test "$(reason nobody_met)" -ge 1
chown 65533 "$WORK/run.B"
chmod 700 "$MEET"
ASKS=(setpriv --reuid=65533 --regid=65533 --clear-groups)
talked "no access" '' 'tcp \(meet_refused\)'
unmake
exit $BAD
