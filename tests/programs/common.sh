# shellcheck shell=bash
# What the tests of unmodified programs share. Each test is runnable alone: `tests/programs/NAME.sh
# [MODE...]` with the modes tcp (no library), shm (TCP excluded), default and eager (attached from
# the first byte). It prints one line for each thing it saw, `ok name` or `FAIL name: why`, and ends
# with non-zero if anything failed.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
HERE=$ROOT/tests/programs
NAME=$(basename "$0" .sh)
BAD=0
QUICK=${QUICK:-0}

ok() { say "ok $NAME $MODE $1"; }
fail() {
  BAD=1
  say "FAIL $NAME $MODE $1: ${2//$'\n'/ | }"
}
# check NAME WHY COMMAND... : ok if the command succeeds
check() {
  local n=$1 why=$2
  shift 2
  if "$@"; then ok "$n"; else fail "$n" "$why"; fi
}
same() { [ "$1" = "$2" ]; }

# P is the command prefix of a preloaded program in the present mode; STATS is where the reports go.
P=(env)
mode() {
  MODE=$1
  tmpdir STATS
  case $MODE in
    tcp) P=(env) ;;
    shm) P=(env "LD_PRELOAD=$LIB" RSOCKET_TRANSPORT=shm "RSOCKET_STATS=$STATS/%p") ;;
    default) P=(env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$STATS/%p") ;;
    eager) P=(env "LD_PRELOAD=$LIB" RSOCKET_ATTACH=eager "RSOCKET_STATS=$STATS/%p") ;;
    *) die "no such mode: $MODE" ;;
  esac
  [ "$MODE" = tcp ] || [ -f "$LIB" ] || build_lib
}

# Called when all programs of the mode have ended: did the bytes go where they should?
carried() {
  [ "$MODE" = tcp ] && return
  local shm tcp
  shm=$(($(stat_sum bytes.sent.shm "$STATS") + $(stat_sum bytes.received.shm "$STATS")))
  tcp=$(($(stat_sum bytes.sent.tcp "$STATS") + $(stat_sum bytes.received.tcp "$STATS")))
  if [ "$shm" -gt 0 ]; then ok "carried $shm bytes by shm, $tcp by tcp"
  else fail carried "no byte over shared memory ($(stat_files "$STATS") reports; $tcp bytes by tcp; $(stat_reasons "$STATS"))"; fi
}

# idle PID... : five seconds at rest cost no more than the program's own clockwork. What that takes
# is seen under plain TCP, where that mode ran before, and is three clock ticks at least. A moment
# later it may be twice as much: machines change their speed.
OWN_TICKS=0
idle() {
  local p before after ticks try
  # On a busy machine whatever they do takes longer: the best of some rests.
  for try in 1 2 3; do
    before=0 after=0
    for p in "$@"; do before=$((before + $(cpu_ticks "$p" || echo 0))); done
    sleep 5
    for p in "$@"; do after=$((after + $(cpu_ticks "$p" || echo 0))); done
    ticks=$((after - before))
    [ "$ticks" -gt $((3 + 2 * OWN_TICKS)) ] && [ "$MODE" != tcp ] || break
  done
  if [ "$MODE" = tcp ]; then
    OWN_TICKS=$ticks
    check "idle, it takes $ticks clock ticks in 5 s" "$ticks clock ticks in 5 s" test "$ticks" -le 50
  elif [ "$ticks" -le $((3 + 2 * OWN_TICKS)) ]; then ok "idle uses no cpu"
  else fail "idle uses no cpu" "$ticks clock ticks in 5 s, $OWN_TICKS over TCP"; fi
}

# limit SECONDS COMMAND... : a bound for every client, RSOCKET_SLOW times as long.
limit() { timeout -k 5 $(($1 * ${RSOCKET_SLOW:-1})) "${@:2}"; }

# modes_of ARGS... : the modes asked for, or all that there are.
modes_of() { if [ $# -gt 0 ]; then echo "$@"; else echo tcp shm default; fi; }
