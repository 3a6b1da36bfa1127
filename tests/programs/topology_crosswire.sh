# shellcheck shell=bash
# Connections across a topology (topology.sh) that say the same, but for a seed in the last message.
# One that meets another's end is found out (crosswire.c). `build_crosswire` comes first.

build_crosswire() {
  need_cc
  tmpdir work
  chmod 755 "$work"
  cc -O2 -Wall -Wextra -Werror -pthread -o "$work/crosswire" "$HERE/crosswire.c" ||
    die "crosswire.c does not compile"
}
# So many connections to one address use up the ports, while each waits for its time to pass.
more_ports() {
  setting B net.ipv4.ip_local_port_range="10000 65000" net.ipv4.tcp_max_tw_buckets=64
}
# few_ports COUNT : so many to connect from at B. Each of them is free again as soon as the
# connection is closed, at that end at least.
few_ports() { ports "$1" 0; }
# ports COUNT WAITING : so many, and so many closed connections that keep theirs for a second.
ports() {
  setting B net.ipv4.ip_local_port_range="20000 $((19999 + $1))" net.ipv4.tcp_max_tw_buckets="$2" \
    net.ipv4.tcp_tw_reuse=1
}

SERVES=() # What goes before the program that serves.
# alike WHAT COUNT [THREADS] : so many connections by the `path` that was asked for last, 64 at a
# time if not told otherwise. TOOK says how many milliseconds that took. A listens at LISTENS, if
# that is set, and at port SERVED, 8080 without it.
alike() {
  local out began ENTER count=$2 port=${SERVED:-8080}
  rm -rf "${STATS:?}"/* "$WORK/port" "$WORK/in"
  mkfifo "$WORK/in"
  exec 7<>"$WORK/in"
  serve crosswire_pid A "$port" "${SERVES[@]}" env ADDRESS="${LISTENS:-$OWN}" PORT="$port" \
    sh -c 'exec "$1" serve "$2" <"$3"' victim "$work/crosswire" "$WORK/port" "$WORK/in"
  began=$(date +%s%N)
  preloaded "$FROM"
  out=$(limit $((120 + count / 20)) "${ENTER[@]}" "${ASKS[@]}" env ADDRESS="$ADDRESS" \
    "$work/crosswire" ask "$AT" "$count" "${3:-64}" 2>&1)
  TOOK=$((($(date +%s%N) - began) / 1000000))
  echo >&7
  exec 7>&-
  gone_child "$crosswire_pid" 20 || finish crosswire_pid KILL
  check "$1: $count connections right, $TOOK ms" "$out $(tail -3 "$WORK/said.crosswire_pid")" \
    same "$out" "$count"
}
# victims WHAT COUNT : of B, by translated addresses.
victims() {
  path both A 4 "${SERVED:-8080}"
  alike "$@"
}
# beside WHAT COUNT COMMAND... : while it runs, as many connections over TCP have the same
# neighbours; how many milliseconds these took, in TCP_TOOK.
beside() {
  local what=$1 count=$2 tcp own=$WORK/beside
  rm -rf "$own" && mkdir -m 1777 "$own"
  shift 2
  (
    # What was started and made before is not its own to end.
    RS_PIDS=() RS_TMP=()
    trap 'cleanup' EXIT
    WORK=$own STATS=$own SERVED=8081 MODE=tcp
    victims "$what" "$count"
    echo "$TOOK" >"$own/took"
    exit $BAD
  ) &
  tcp=$!
  watch $tcp
  "$@"
  wait $tcp || BAD=1
  TCP_TOOK=$(cat "$own/took" 2>/dev/null || echo 0)
}
# attached_at END : how many connections of the last victims have attached there; outcome END : what
# became of all of them.
attached_at() { stat_sum attached.shm "$STATS/$1"; }
outcome() {
  awk '
    $1 == "attached.shm" { attached += $2 }
    $1 == "attach.strangers" { strangers += $2 }
    !sub(/^on_tcp[.]/, "") { next }
    $1 == "no_evidence" { ambiguous += $2; next }
    $1 ~ /^(nobody_met|offer_lapsed|no_offer)$/ { lapsed += $2; next }
    $1 == "no_handshake" { unknown += $2; next }
    $2 { others = others sprintf(", %s %d", $1, $2) }
    END {
      printf "%d attached, %d ambiguous, %d lapsed, %d handshakes not known%s; ",
        attached, ambiguous, lapsed, unknown, others
      printf "%d strangers sent away\n", strangers
    }' "$STATS/$1"/*
}
# have_attached : of how many connections both ends did, by what the last victims counted.
have_attached() {
  echo $(($(awk '$1 == "attached.shm" { s += $2 } END { print s + 0 }' "$STATS"/*/*) / 2))
}
