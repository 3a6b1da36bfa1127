# shellcheck shell=bash
# What the tests in the virtual machine share (scripts/vm starts it). Source it at the head of a
# suite.
#
# A suite prints `ok NAME` or `FAIL NAME: why` for each thing that it saw, and ends with `finish`.
# `scripts/vm tests/vm/SUITE.sh` runs it alone. It proves that bytes went over RDMA by `packets`
# having grown, and that nothing is left behind by `qps` and `mrs`.
. "$(dirname "${BASH_SOURCE[0]}")/../../scripts/lib.sh"
[ -e /run/vm/job ] || die "this runs in the virtual machine: scripts/vm $0"
SUITE=$(basename "$0" .sh)
BAD=0
QUICK=${QUICK:-0}

ok() { say "ok $SUITE $1"; }
fail() {
  BAD=1
  say "FAIL $SUITE $1: ${2//$'\n'/ | }"
}
# check NAME WHY COMMAND... : ok if the command succeeds
check() {
  local n=$1 why=$2
  shift 2
  if "$@"; then ok "$n"; else fail "$n" "$why"; fi
}
finish() { exit $BAD; }
# A guest runs a few hundred programs a second at most: bounds are in seconds by the clock, and
# generous. RSOCKET_SLOW=N makes them N times as long, for a machine that others use.
SLOW=${RSOCKET_SLOW:-1}
limit() { timeout -k 5 $(($1 * SLOW)) "${@:2}"; }

# Device names are rxe0 and siw0; both are there with one guest and with two. RSOCKET_DEVICES names
# those that the suites go through.
# shellcheck disable=SC2034
read -ra DEVICES <<<"${RSOCKET_DEVICES:-rxe0 siw0}"

# address DEVICE [HOST] : its IPv4 address; with two guests, that of the given one (default: this
# one).
address() {
  local h=${2:-${VM_HOST:-}}
  case $1${h:+2} in
    rxe0) echo 10.99.0.1 ;;
    siw0) echo 10.98.0.1 ;;
    rxe02) echo "10.97.0.$h" ;;
    siw02) echo "10.96.0.$h" ;;
  esac
}
# address6 DEVICE [HOST] : its IPv6 address.
address6() {
  local h=${2:-${VM_HOST:-}}
  case $1${h:+2} in
    rxe0) echo fd99::1 ;;
    siw0) echo fd98::1 ;;
    rxe02) echo "fd97::$h" ;;
    siw02) echo "fd96::$h" ;;
  esac
}

# packets DEVICE : a number that grows with what goes through the device. For rxe0, packets sent.
# siw0 has no counter of its own: how many times it took data from its TCP connections (a probe that
# scripts/vm-init sets).
packets() {
  local name n=
  case $1 in
    siw*) while read -r name n _ && [ "$name" != siw_received ]; do :; done </sys/kernel/tracing/kprobe_profile ;;
    *) read -r n <"/sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts" ;;
  esac
  echo "$n"
}

# qps, mrs, cm_ids [DEVICE] : how many user space queue pairs, memory regions, connection
# identifiers live.
qps() { rdma_count qp "${1:-}"; }
mrs() { rdma_count mr "${1:-}"; }
cm_ids() { rdma_count cm_id "${1:-}"; }
# The kernel's own objects have no process.
rdma_count() {
  local line n=0
  while read -r line; do
    if [[ $line = *' pid '* && $line =~ ^(link|dev)\ ${2:-} ]]; then n=$((n + 1)); fi
  done < <(rdma resource show "$1")
  echo $n
}

# none_left [SECONDS] : waits until no queue pair and no memory region lives; false, and what there
# is, if not.
none_left() {
  local end=$((SECONDS + ${1:-20}))
  while [ $SECONDS -le $end ]; do
    [ "$(qps)$(mrs)" = 00 ] && return 0
    nap 0.1
  done
  rdma resource show qp
  rdma resource show mr
  return 1
}

# helper VAR NAME : a program of these tests' own, which SUITE.prepare makes before the machine
# starts.
helper() {
  local made=$TARGET/vm/$2
  [ -x "$made" ] || die "no program $made: tests/vm/run makes it"
  printf -v "$1" '%s' "$made"
}

# ---------------------------------------------------------------- two guests

# The guests signal to each other by files in a directory of $VM_OUT that each run has for itself.
# tell NAME [TEXT] : the other guest's `hear NAME` returns. The file appears whole or not at all.
tell() {
  printf '%s\n' "${2:-}" >"$VM_SIGNALS/.$1.$$" && mv "$VM_SIGNALS/.$1.$$" "$VM_SIGNALS/$1"
}
# hear NAME [SECONDS] : waits for that and prints TEXT; false if time is up.
hear() {
  local end=$((SECONDS + ${2:-60} * SLOW))
  while [ $SECONDS -le $end ]; do
    [ -e "$VM_SIGNALS/$1" ] && { cat "$VM_SIGNALS/$1"; return 0; }
    nap 0.1
  done
  echo "no $1 from the other host" >&2
  return 1
}
# The machine is off at once: no process ends, no connection is closed, nothing is written.
lose_power() {
  echo o >/proc/sysrq-trigger
  # Programs cannot be started any more when the disk has gone first.
  while :; do :; done
}
