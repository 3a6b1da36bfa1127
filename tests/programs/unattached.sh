#!/usr/bin/env bash
# Where TCP is excluded no call waits for ever for a peer that never attaches. Both directions fail
# when their patience is over, blocking or not, by poll, select and epoll. Nothing of it looks like
# the end of the stream, to either end.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
mode shm
CALLS='send recv sendfile splicein spliceout'
WAITS='pollin pollout pollerr epollin epollout epollerr epollet select selectin selectout'
tmpdir out

# served HOW [PREFIX...] : a server on $port, whose number is $server.
served() {
  local how=$1
  shift
  free_port port
  start server "$@" "$PYTHON" "$HERE/unattached_server.py" "$how" "$port"
  wait_port "$port" "$server" || die "the server does not listen"
}
# ask WHOM HOW... : each call in a client of its own; what they print is in $out.
ask() {
  local whom=$1 how pids=()
  shift
  for how; do
    limit 40 "${P[@]}" "$PYTHON" "$HERE/unattached.py" "$whom" "$how" >"$out/$how" 2>&1 &
    pids+=($!)
  done
  wait "${pids[@]}"
}
# late NAME FEWEST MOST HOW... : each was told ETIMEDOUT, after so many seconds, and what waited was
# told of an error.
late() {
  local name=$1 fewest=$2 most=$3 how found error told seconds asked
  shift 3
  for how; do
    read -r found error told seconds <"$out/$how"
    asked=-
    case $how in poll* | epoll*) asked=ETIMEDOUT ;; esac
    case $how in *out) ready=out ;; *err) ready=err ;; send | recv | splice* | sendfile | *-nb) ready=- ;; *) ready=in ;; esac
    case $how in splice* | *-nb) ready=- ;; esac
    check "$name: $how fails in time" "$(cat "$out/$how")" test \
      "$error/$told" = "$asked/ETIMEDOUT" -a "${found/$ready/}" != "$found" -a \
      "${seconds:-0}" -ge "$fewest" -a "${seconds:-99}" -le "$most"
  done
}
# said NAME WHAT HOW... : each was told that, by SO_ERROR where that was asked, which takes it.
said() {
  local name=$1 what=$2 how
  shift 2
  for how; do
    read -r _ error told _ <"$out/$how"
    [ "$error" = - ] || told=$error
    check "$name: $how says $what" "$(cat "$out/$how")" test "$told" = "$what"
  done
}
nonblocking() { local how; for how in $CALLS; do echo "$how-nb"; done; }

served keep
# shellcheck disable=SC2046,SC2086
{
  ask "$port" $CALLS $(nonblocking) $WAITS
  late 'a peer without the library' 4 15 $CALLS $(nonblocking) $WAITS
  stop "$server"
  ask itself $CALLS $(nonblocking) $WAITS
  late 'nobody else could accept' 4 15 $CALLS $(nonblocking) $WAITS
}
ask accepted send sendfile splicein send-nb sendfile-nb splicein-nb pollout epollout selectout
said 'a peer in the same thread' 1 send send-nb pollout epollout selectout
said 'a peer in the same thread' 2 splicein splicein-nb
said 'a peer in the same thread' 100 sendfile sendfile-nb

served never "${P[@]}"
ask "$port" send recv-nb pollin epollet
late 'nobody accepts' 9 25 send recv-nb pollin epollet
stop "$server"

served refused "${P[@]}"
ask "$port" recv recv-nb pollin epollin select spliceout
said 'a refused peer closes' ECONNRESET recv recv-nb pollin epollin select spliceout
stop "$server"
served refused-exit "${P[@]}"
ask "$port" recv
said 'a refused peer ends' ECONNRESET recv
stop "$server" 2>/dev/null

served stops "${P[@]}"
ask "$port" recv
said 'a peer that stands still' "b'x'" recv
stop "$server"
exit $BAD
