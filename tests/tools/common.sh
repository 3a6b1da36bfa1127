# shellcheck shell=bash
# What the tests of rsrun and rsstat share. Each is runnable alone, `tests/tools/NAME.sh`. It prints
# `ok NAME what` or `FAIL NAME what: why` for each thing it has seen and ends with non-zero if
# anything failed.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
HERE=$ROOT/tests/tools
NAME=$(basename "$0" .sh)
BAD=0
QUICK=${QUICK:-0}
TALK=("$PYTHON" "$HERE/talk.py")

ok() { say "ok $NAME $1"; }
fail() {
  BAD=1
  say "FAIL $NAME $1: ${2//$'\n'/ | }"
}
# check WHAT WHY COMMAND... : ok if the command succeeds
check() {
  local what=$1 why=$2
  shift 2
  if "$@"; then ok "$what"; else fail "$what" "$why"; fi
}
has() { [[ $1 == *"$2"* ]]; }
hasnt() { [[ $1 != *"$2"* ]]; }
limit() { timeout -k 5 "$@"; }

# until_true SECONDS COMMAND... : tries until it succeeds; false if it never does.
until_true() {
  local i n=$(($1 * 20))
  shift
  for ((i = 0; i < n; i++)); do
    "$@" && return 0
    nap 0.05
  done
  return 1
}

build_lib
build_tools
[ -x "$RSRUN" ] && [ -x "$RSSTAT" ] || die "rsrun and rsstat are not built"
# Files of other programs on this machine are none of our business.
tmpdir RUN
XDG_RUNTIME_DIR=$RUN/run
export XDG_RUNTIME_DIR
mkdir -m 700 "$XDG_RUNTIME_DIR"
LIVE=$XDG_RUNTIME_DIR/rsocket

# serve VAR PREFIX... : an echo server, its process id in VAR, its port in $port; PREFIX comes
# before the command.
serve() {
  local var=$1
  shift
  free_port port
  start "$var" "$@" "${TALK[@]}" serve "$port"
  wait_port "$port" "${!var}" || die "the server does not listen"
}

# converse VAR PREFIX... : a client of $port that has exchanged enough to attach, and stays
# connected until it is told to go (leave). Its process id is in VAR.
converse() {
  local var=$1 fifo=$RUN/stay.$RANDOM$RANDOM said=$RUN/said.$RANDOM$RANDOM
  shift
  mkfifo "$fifo"
  : >"$said"
  exec {STAY}<>"$fifo"
  start "$var" "$@" "${TALK[@]}" talk "$port" 300 3000 "$fifo" >"$said"
  until_true 20 grep -q ready "$said" || die "the client does not get through: $(cat "$said")"
}
leave() { echo >&"$STAY"; gone_child "$1" 10; }
