# shellcheck shell=bash
# Ends in namespaces of their own, joined as a host joins its containers. common.sh comes first.
#
#   B -- second bridge -- R -- first bridge -- A (serves), M (serves, too), C
#
# R routes. It has an address that stands for A as a published port does (the destination is
# rewritten), and one behind which the source is rewritten as well. Nothing here has a name in the
# host: all is held by processes that are ended by id and birth, and goes with them. So two runs
# have the same addresses and do not meet.
#
#   topology KIND     makes it. KIND: net (a network namespace for each end), pid (and pid, mount,
#                     ipc and uts namespaces), user (network and user), all
#   on END COMMAND    runs a program there; `with END COMMAND` one that has the library
#   serve VAR END PORT COMMAND      starts one with the library, returns when it listens
#   path NAME END 4|6 PORT   how to reach END's PORT: FROM, ADDRESS, AT (its port) and HOST for
#                            URLs; OWN is the address of END's that it leads to. NAT says whether
#                            there are those whose addresses are rewritten
#   finish VAR SIGNAL        ends what `serve` started, and waits for its end
# STATS has a directory for each end. MEET is the directory that all of them see.

ENDS=(A M B C)
# What may be reached from outside, by ports that differ by 10,000.
PUBLISHED=(8080 8081 6379 5432 5201 2121 4450)
# Of a kernel bridge each path shows another side. self: an end that goes out and comes back in.
PATHS=(bridge routed published masquerade both hairpin self)
ASKS=() # What goes before a client's program.
declare -A INIT=() OUTER=() UIDS=([A]=100000 [M]=200000 [B]=300000 [C]=400000)

need ip=iproute2 nft=nftables unshare=util-linux nsenter=util-linux sysctl=procps
# All of it needs the privilege, so its files are one user's.
[ "$(id -u)" = 0 ] || exec sudo -n -E "$0" "$@"

# holder NAME FLAG... : a process that holds the namespaces; INIT is what is entered.
holder() {
  local name=$1 into=() outer i
  shift
  if [ "${USERS:-no}" = yes ]; then
    start outer unshare --user sleep 100000 >/dev/null 2>&1
    OUTER[$name.user]=$outer
    until_true other_namespace "$outer" user || return 1
    for i in uid gid; do echo "0 ${UIDS[$name]} 65536" >"/proc/$outer/${i}_map" || return 1; done
    into=(nsenter -t "$outer" -U)
  fi
  rm -f "$WORK/up.$name"
  # The shell reaps what its namespace's orphans leave.
  start outer "${into[@]}" unshare "$@" \
    sh -c 'echo >"$1"; while sleep 100000; do :; done' hold "$WORK/up.$name" >/dev/null 2>&1
  OUTER[$name]=$outer
  until_true test -s "$WORK/up.$name" || return 1
  case " $* " in
    *' --fork '*) for i in $(tree "$outer"); do [ "$(comm "$i")" = sh ] && INIT[$name]=$i; done ;;
    *) INIT[$name]=$outer ;;
  esac
  [ "${INIT[$name]:-}" ]
}
comm() { cat "/proc/$1/comm" 2>/dev/null; }
other_namespace() {
  [ "$(readlink "/proc/$1/ns/$2" 2>/dev/null)" != "$(readlink "/proc/$$/ns/$2")" ]
}
until_true() {
  local i
  for ((i = 0; i < 500; i++)); do
    "$@" && return 0
    nap 0.02
  done
  return 1
}

topology() {
  local name flags=(--net)
  KIND=$1 USERS=no
  case $KIND in
    net) ;;
    pid) ;;
    user | all) USERS=yes ;;
    *) die "no such kind of namespaces: $KIND" ;;
  esac
  case $KIND in pid | all)
    flags+=(--pid --mount --ipc --uts --fork --kill-child --mount-proc) ;;
  esac
  tmpdir WORK
  # A tmpfs, as it is to be.
  TMPDIR=/dev/shm tmpdir MEET
  USERS=no holder R --net || return 1
  for name in "${ENDS[@]}"; do holder "$name" "${flags[@]}" || return 1; done
  network || die "the namespaces cannot be joined"
  case $KIND in pid | all)
    for name in "${ENDS[@]}"; do meeting_place "$name" || return 1; done ;;
  esac
}

# The directory where it is by default, for an end that has its own mounts.
meeting_place() {
  on "$1" sh -c 'mount -t tmpfs none /run && mkdir -p /run/rsocket/meet /run/lock &&
    mount --bind "$1" /run/rsocket/meet' mounts "$MEET"
}

ip_in() { nsenter -t "${INIT[$1]}" -n ip "${@:2}"; }
network() {
  local host=1 name bridge
  ip_in R link set lo up
  for bridge in 1 2; do
    ip_in R link add "br$bridge" type bridge forward_delay 0 mcast_snooping 0
    ip_in R addr add "10.78.$bridge.1/24" dev "br$bridge"
    ip_in R addr add "fd78:$bridge::1/64" dev "br$bridge" nodad
    ip_in R link set "br$bridge" up
  done
  for name in "${ENDS[@]}"; do
    host=$((host + 1)) bridge=1
    [ "$name" != B ] || bridge=2
    ip link add eth netns "${INIT[$name]}" type veth peer name "p$name" netns "${INIT[R]}" ||
      return 1
    ip_in R link set "p$name" master "br$bridge" up
    ip_in R link set "p$name" type bridge_slave hairpin on
    # Its second address is the one behind which the source is rewritten.
    ip_in "$name" addr add "10.78.$bridge.$host/24" dev eth
    ip_in "$name" addr add "10.78.$bridge.1$host/24" dev eth
    ip_in "$name" addr add "fd78:$bridge::$host/64" dev eth nodad
    ip_in "$name" addr add "fd78:$bridge::1$host/64" dev eth nodad
    ip_in "$name" link set eth up
    ip_in "$name" link set lo up
    ip_in "$name" route add default via "10.78.$bridge.1"
    ip_in "$name" -6 route add default via "fd78:$bridge::1"
  done
  setting R net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 \
    net.ipv4.conf.all.send_redirects=0 net.ipv4.conf.br1.send_redirects=0
  NAT=1
  translations | in_router nft -f - 2>/dev/null || NAT=0
}
# setting END NAME=VALUE...
setting() { nsenter -t "${INIT[$1]}" -n sysctl -qw "${@:2}"; }
in_router() { nsenter -t "${INIT[R]}" -n "$@"; }

# late_syns MOST ONE_IN : the router keeps each SYN for up to MOST milliseconds. It keeps one in so
# many for 1.5 seconds, when the kernel has sent another one. False where it cannot. on_time_again
# ends that; WORK/late says how many there were.
late_syns() {
  local rule=(-p tcp --syn -j NFQUEUE --queue-num 33 --queue-bypass)
  in_router iptables -A FORWARD "${rule[@]}" 2>/dev/null || return 1
  start LATE nsenter -t "${INIT[R]}" -n "$PYTHON" "$HERE/late_syns.py" 33 "$@" >"$WORK/late" 2>&1
  until_true eval 'test -s "$WORK/late" || ! alive "$LATE"'
  grep -q there "$WORK/late"
}
on_time_again() { finish LATE TERM; }

# Address translation: 10.78.9.N stands for 10.78.1.N.
translations() {
  local n p
  echo 'table ip nat {
    chain before { type nat hook prerouting priority dstnat;'
  for n in 2 3 12 13; do
    for p in "${PUBLISHED[@]}"; do
      echo "ip daddr 10.78.9.$n tcp dport $((p + 10000)) dnat to 10.78.1.$n:$p;"
    done
    echo "ip daddr 10.78.9.$n dnat to 10.78.1.$n;"
  done
  echo '}
    chain after { type nat hook postrouting priority srcnat;
      ip daddr { 10.78.1.12, 10.78.1.13 } masquerade;
    }
  }
  table ip6 nat {
    chain before { type nat hook prerouting priority dstnat;'
  for n in 2 3 12 13; do
    for p in "${PUBLISHED[@]}"; do
      echo "ip6 daddr fd78:9::$n tcp dport $((p + 10000)) dnat to [fd78:1::$n]:$p;"
    done
    echo "ip6 daddr fd78:9::$n dnat to fd78:1::$n;"
  done
  echo '}
    chain after { type nat hook postrouting priority srcnat;
      ip6 daddr { fd78:1::12, fd78:1::13 } masquerade;
    }
  }'
}

path() {
  local host=2 net port=$4
  [ "$2" != M ] || host=3
  case $1 in
    bridge) FROM=C net=1 ;;
    routed) FROM=B net=1 ;;
    masquerade) FROM=B net=1 host=1$host ;;
    published) FROM=B net=9 port=$((port + 10000)) ;;
    both) FROM=B net=9 host=1$host port=$((port + 10000)) ;;
    hairpin) FROM=C net=9 host=1$host port=$((port + 10000)) ;;
    self) FROM=$2 net=9 host=1$host port=$((port + 10000)) ;;
    *) die "no such path: $1" ;;
  esac
  case $1 in
    bridge | routed) ;;
    *) [ "$NAT" = 1 ] || die "no address translation here" ;;
  esac
  AT=$port
  if [ "$3" = 6 ]; then ADDRESS=fd78:$net::$host OWN=fd78:1::$host HOST="[$ADDRESS]"
  else ADDRESS=10.78.$net.$host OWN=10.78.1.$host HOST=$ADDRESS; fi
}

# entering END : ENTER is what a command there begins with.
entering() {
  ENTER=(nsenter -t "${INIT[$1]}" -n)
  case $KIND in user | all) ENTER+=(-U) ;; esac
  case $KIND in pid | all) ENTER+=(-p -m -i -u) ;; esac
  # The directory that we are in is none of that end's.
  ENTER+=(env -C /)
}
on() {
  local ENTER
  entering "$1"
  "${ENTER[@]}" "${@:2}"
}
# preloaded END : adds to ENTER what a program with the library has in the present mode.
preloaded() {
  entering "$1"
  mkdir -p -m 1777 "$STATS/$1"
  [ "$MODE" != tcp ] || return 0
  ENTER+=("LD_PRELOAD=$LIBRARY" "RSOCKET_STATS=$STATS/$1/%p")
  case $KIND-$MODE in
    *-alone) ENTER+=(RSOCKET_MEET=) ;;
    net-* | user-*) ENTER+=("RSOCKET_MEET=$MEET") ;;
  esac
  [ "$MODE" != eager ] || ENTER+=(RSOCKET_ATTACH=eager)
}
with() {
  local ENTER
  preloaded "$1"
  "${ENTER[@]}" "${@:2}"
}

# listens PID PORT [tcp|tcp6] : a process does, in the network namespace of that process.
listens() {
  # shellcheck disable=SC2086
  (cd "/proc/$1/net" && cat ${3:-tcp tcp6}) 2>/dev/null | awk -v p="$(printf '%04X' "$2")" '
    { n = split($2, a, ":"); if (a[n] == p && $4 == "0A") f = 1 } END { exit !f }'
}
is_free() { ! listens "$@"; }
serve() {
  local var=$1 name=$2 port=$3 ENTER i
  preloaded "$name"
  # Threads or children of the last server may still have its listener, which is not this one's.
  until_true is_free "${INIT[$name]}" "$port" || fail "$var" "somebody listens there"
  : >"$WORK/said.$var"
  start "$var" "${ENTER[@]}" "${@:4}" >"$WORK/said.$var" 2>&1
  for ((i = 0; i < 500; i++)); do
    listens "${INIT[$name]}" "$port" && return 0
    alive "${!var}" || break
    nap 0.02
  done
  fail "$var" "it does not listen: $(tail -3 "$WORK/said.$var")"
  return 1
}
# nsenter makes a process of its own in a pid namespace, and passes no signal on to it.
finish() {
  local pid=${!1} child
  case $KIND in pid | all) child=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null) ;; esac
  # shellcheck disable=SC2086
  kill -s "${2:-TERM}" ${child:-$pid} 2>/dev/null
  if gone_child "$pid" 20; then wait "$pid" 2>/dev/null; return 0; fi
  stop "$pid" KILL
  fail "$1" "it did not end by SIG${2:-TERM}"
  return 1
}

# unmake : ends the holders, and so the namespaces. What a test started there has ended before.
unmake() {
  local name pid
  for name in "${!OUTER[@]}"; do
    pid=${OUTER[$name]}
    # The whole group: a shell and what it sleeps by.
    if alive "$pid"; then kill -KILL -- "-$pid"; fi
    wait "$pid" 2>/dev/null
  done
  for name in "${!INIT[@]}"; do gone "${INIT[$name]}" 5; done
  INIT=() OUTER=()
}

# bytes WAY : those that all ends together moved by it.
bytes() {
  local end sum=0
  for end in "$STATS"/*/; do
    sum=$((sum + $(stat_sum "bytes.sent.$1" "$end") + $(stat_sum "bytes.received.$1" "$end")))
  done
  echo $sum
}
# why : the reasons that were counted at all ends; reason NAME : how often that one.
why() {
  awk '/^on_tcp\./ && $2 { s[$1] += $2 } END { for (k in s) printf "%s=%d ", k, s[k] }' \
    "$STATS"/*/* 2>/dev/null
}
reason() {
  awk -v k="on_tcp.$1" '$1 == k { s += $2 } END { print s + 0 }' "$STATS"/*/* 2>/dev/null
}
# attached WHAT [PERCENT] : so many bytes of all ends, 95 of 100 if not told otherwise, went over
# shared memory; stayed WHAT REASON : none.
attached() {
  local shm tcp least=${2:-95}
  shm=$(bytes shm) tcp=$(bytes tcp)
  check "$1: $((shm * 100 / (shm + tcp + 1))) % of $(((shm + tcp) >> 20)) MiB by shm" \
    "$shm bytes by shm, $tcp by tcp, $(why)" \
    test "$shm" -gt 0 -a $((shm / least)) -ge $((tcp / (100 - least)))
}
stayed() {
  local shm tcp
  shm=$(bytes shm) tcp=$(bytes tcp)
  check "$1: on TCP, $2" "$shm bytes by shm, $tcp by tcp, $(why)" \
    test "$shm" = 0 -a "$tcp" -gt 100000 -a "$(reason "$2")" -gt 0
}
