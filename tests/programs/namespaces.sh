#!/usr/bin/env bash
# Programs whose ends have namespaces each: network, and pid, mount and user as well. They meet on a
# bridge, routed, by a published port, behind a rewritten source, by hairpin; over IPv4 and IPv6.
#
#   tests/programs/namespaces.sh [-a] [-k KIND,...] [-p PATH,...] [-r ROW,...] [-6] [MODE...]
#
# Modes: tcp, default, eager, and `alone`: with the library, but no directory to meet in. -a: every
# row on every path in every kind. Else each row on one path, one row on all, and on each kind.
. "$(dirname "$0")/common.sh"
. "$HERE/topology.sh"
. "$HERE/topology_rows.sh"
all=0 kinds='' paths='' rows='' families=4
while getopts ak:p:r:6 o; do
  case $o in
    a) all=1 families='4 6' ;;
    k) kinds=${OPTARG//,/ } ;;
    p) paths=${OPTARG//,/ } ;;
    r) rows=${OPTARG//,/ } ;;
    6) families=6 ;;
    *) exit 2 ;;
  esac
done
shift $((OPTIND - 1))

# The ends that have namespaces of their own meet where there is a directory for it.
tells() {
  case $MODE in
    tcp) ;;
    alone) stayed "$1" peer_elsewhere ;;
    *) attached "$1" ;;
  esac
}

# row NAME PATH FAMILY
row() {
  local end=${END[$1]:-A} what="$KIND $1 $2 IPv$3"
  rm -rf "${STATS:?}"/*
  # By default the first megabytes are TCP's, on a busy machine some more.
  SECS=1
  [ "$MODE" != default ] || SECS=2
  path "$2" "$end" "$3" "${PORT[$1]}"
  "$1_serve" && "$1_ask" "$what"
  "$1_end" && tells "$what"
}

# selection KIND : lines of `ROW PATH FAMILY`.
selection() {
  local r p f
  if [ $all = 1 ] || [ "$rows$paths" ]; then
    for r in ${rows:-${ROWS[@]}}; do
      for p in ${paths:-${PATHS[@]}}; do for f in $families; do echo "$r $p $f"; done; done
    done
    return
  fi
  if [ "$1" != all ]; then echo "nginx both 4"; return; fi
  for r in "${ROWS[@]}"; do echo "$r both 4"; done
  for p in "${PATHS[@]}"; do [ "$p" = both ] || echo "nginx $p 4"; done
  echo "nginx routed 6"
  echo "redis both 6"
}

MODE=tcp
for m in "${@:-tcp}"; do
  case $m in tcp | default | eager | alone) ;; *) die "no such mode: $m" ;; esac
done
need_rows
make_data
[ -f "$LIB" ] || build_lib
cp "$LIB" "$DATA/" && LIBRARY=$DATA/$(basename "$LIB")
for k in ${kinds:-all net pid user}; do
  if ! topology "$k"; then
    say "SKIP $NAME: no such namespaces here: $k"
    unmake
    continue
  fi
  mapfile -t chosen < <(selection "$k")
  ! grep -q '^postgres' <<<"${chosen[*]/#/$'\n'}" || postgres_ready
  for m in ${@:-tcp default eager alone}; do
    MODE=$m
    tmpdir STATS
    for c in "${chosen[@]}"; do
      # shellcheck disable=SC2086
      row $c </dev/null
    done
  done
  MODE=tcp
  held=("${INIT[@]}")
  unmake
  for p in "${held[@]}"; do
    [ ! -e "/proc/$p" ] || fail "$k: namespaces gone" "process $p holds them"
  done
done
exit $BAD
