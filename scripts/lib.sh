# shellcheck shell=bash
# What the scripts share: packages, ports, processes, temporary directories, the library's
# statistics.
#
# Source it: `. "$(dirname "$0")/lib.sh"`. It works on a fresh Debian 12 that has Rust, git and apt,
# as root or with sudo. Processes are ended by the id that we were given when we started them, never
# by name. A test machine may run the same programs for other reasons.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export ROOT
TARGET=${CARGO_TARGET_DIR:-$ROOT/target}
LIB=${RSOCKET_LIB:-$TARGET/release/librspreload.so}
RSOCKET=${RSOCKET_CAPI_LIB:-$TARGET/release/librsocket.so}
export TARGET LIB RSOCKET

say() { printf '%s\n' "$*"; }
note() { printf '\n== %s\n' "$*"; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# ---------------------------------------------------------------- packages

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi
}

# need PROGRAM=PACKAGE... : installs the packages whose program is missing. `need gcc` means
# gcc=gcc.
need() {
  local spec prog pkg missing=()
  for spec in "$@"; do
    prog=${spec%%=*} pkg=${spec#*=}
    # Daemons live in sbin, which an ordinary user's PATH may lack.
    PATH=$PATH:/usr/sbin:/sbin command -v "$prog" >/dev/null 2>&1 && continue
    # A path may be a pattern: packages have directories for each version.
    [[ $prog == /* ]] && compgen -G "$prog" >/dev/null || missing+=("$pkg")
  done
  [ ${#missing[@]} = 0 ] && return 0
  command -v apt-get >/dev/null || die "please install: ${missing[*]}"
  apt_install "${missing[@]}"
}

apt_install() {
  say "installing: $*"
  # Not in this shell, which would keep the lock.
  (one_apt && apt_install_now "$@") || exit 1
}

# One of our scripts at a time. apt would wait for its lock too, but not with an update. An update
# removes what another apt is about to install, where its configuration says that packages are not
# kept. Nor would apt wait with the file that keeps services from starting.
one_apt() {
  exec 9>>"${TMPDIR:-/tmp}/rsocket-apt.$(id -u)" && flock 9
}

apt_update() {
  (one_apt && as_root apt-get update -q) >/dev/null </dev/null
}

apt_install_now() {
  local log policy=/usr/sbin/policy-rc.d made=0 rc=0
  local install=(env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends "$@")
  log=$(mktemp)
  # The packages' own services must not start: the tests start what they need. Debian asks this
  # file.
  if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | as_root tee $policy >/dev/null && as_root chmod 755 $policy && made=1
  fi
  if ! as_root "${install[@]}" >"$log" 2>&1 </dev/null; then
    # Most often the package lists are missing or old: fetch them once and try again.
    { as_root apt-get update -q </dev/null && as_root "${install[@]}" </dev/null; } >>"$log" 2>&1 || rc=1
  fi
  [ $made = 1 ] && as_root rm -f $policy
  if [ $rc != 0 ]; then tail -20 "$log" >&2; rm -f "$log"; die "could not install: $*"; fi
  rm -f "$log"
}

# A C compiler with its headers; Rust needs it as its linker.
need_cc() {
  need cc=gcc
  [ -e /usr/include/stdio.h ] || apt_install libc6-dev
}

# What cargo needs to build the library, beside the compiler: the headers of rdma-core, and the
# libclang that reads them. (Crate rdma-sys does; it fails with libclang 16 and newer.) None of it
# is needed to run the library.
need_build() {
  local missing=() clang
  need_cc
  need pkg-config
  [ -e /usr/include/rdma/rdma_cma.h ] || missing+=(librdmacm-dev)
  [ -e /usr/include/infiniband/verbs.h ] || missing+=(libibverbs-dev)
  clang=$(find_libclang)
  if [ -z "$clang" ]; then missing+=(libclang-14-dev); fi
  [ ${#missing[@]} = 0 ] || apt_install "${missing[@]}"
  [ -n "$clang" ] || clang=$(find_libclang)
  # Among several the newest would be taken, which may be too new.
  if [ -n "$clang" ] && [ -z "${LIBCLANG_PATH:-}" ] && compgen -G '/usr/lib/llvm-1[6-9]/lib/libclang*' >/dev/null; then
    export LIBCLANG_PATH=$clang
  fi
}

# The directory of a libclang that will do, with the headers that belong to it.
find_libclang() {
  local v
  for v in 14 15 13 12 11; do
    if [ -e /usr/lib/llvm-$v/lib/libclang.so ] || [ -e /usr/lib/llvm-$v/lib/libclang.so.1 ]; then
      compgen -G "/usr/lib/llvm-$v/lib/clang/*/include/stddef.h" >/dev/null && { echo /usr/lib/llvm-$v/lib; return; }
    fi
  done
}

# venv PACKAGE... : Python's, in an environment of their own that is kept. Its interpreter is
# $VENV/bin/python.
VENV=$TARGET/field
venv() {
  if [ ! -x "$VENV/bin/pip" ]; then
    apt_install python3-venv
    "$PYTHON" -m venv "$VENV" || die "no virtual environment"
  fi
  "$VENV/bin/pip" install -q "$@" || die "not to be had: $*"
}

PATH=$PATH:/usr/sbin:/sbin
# The system's own python: a version manager's shim would be a shell script around it.
PYTHON=/usr/bin/python3
[ -x $PYTHON ] || PYTHON=python3
export PYTHON

# ---------------------------------------------------------------- temporary directories, processes

RS_TMP=()
RS_PIDS=()
declare -gA RS_BORN=()

# nap SECONDS : as sleep(1), without a program being started. Waits look every few milliseconds, and
# where processors are emulated a start takes longer than the time that is waited.
RS_NAP=${TMPDIR:-/tmp}/rsocket-nap.$$
nap() {
  [ -p "$RS_NAP" ] || mkfifo -m 600 "$RS_NAP" 2>/dev/null
  # Nobody writes into it, so that reading ends when the time is up.
  { read -rt "$1" <>"$RS_NAP"; } 2>/dev/null
  [ $? -gt 128 ] || sleep "$1"
}

# tmpdir VAR : a new directory, removed at exit. Others may write into it (servers change their
# user).
tmpdir() {
  local d
  d=$(mktemp -d "${TMPDIR:-/tmp}/rsocket-test.XXXXXX") || die "no temporary directory"
  chmod 1777 "$d"
  RS_TMP+=("$d")
  printf -v "$1" '%s' "$d"
}

# born VAR PID : when it began, in ticks since the boot (proc(5), stat, field 22); empty if it is
# gone.
born() {
  local stat=
  { read -r stat <"/proc/$2/stat"; } 2>/dev/null
  set -- "$1" ${stat##*) }
  printf -v "$1" '%s' "${21-}"
}
# state VAR PID : its state, one letter (proc(5), stat, field 3); empty if it is gone.
state() {
  local stat=
  { read -r stat <"/proc/$2/stat"; } 2>/dev/null
  stat=${stat##*) }
  printf -v "$1" '%s' "${stat%% *}"
}

# watch PID : it is ended at exit. The kernel gives numbers again, within a minute where tests make
# hundreds of processes a second. So a process is known by its number and its birth.
watch() {
  local at
  born at "$1"
  RS_PIDS+=("$1")
  RS_BORN[$1]=$at
}

# start VAR COMMAND... : runs it in the background, in a process group of its own, its id in VAR.
# SIGINT keeps its default meaning (a background job of a script would ignore it).
start() {
  local var=$1
  shift
  setsid env --default-signal=INT,QUIT "$@" &
  watch $!
  printf -v "$var" '%s' $!
}

# alive PID : it runs, or waits to be reaped, and is the one that was watched, if one was.
alive() {
  local at
  [ "${RS_BORN[$1]+watched}" ] || { kill -0 "$1" 2>/dev/null; return; }
  born at "$1"
  [ "$at" ] && [ "$at" = "${RS_BORN[$1]}" ]
}

# gone PID [SECONDS] : waits until it has ended; false if it has not.
gone() {
  local i n=$((${2:-20} * 50))
  for ((i = 0; i < n; i++)); do
    alive "$1" || return 0
    nap 0.02
  done
  return 1
}

# stop PID [SIGNAL] [SECONDS] : asks politely; false (and SIGKILL to its group) if it does not end.
stop() {
  local pid=$1 sig=${2:-TERM}
  alive "$pid" || { wait "$pid" 2>/dev/null; return 0; }
  kill -s "$sig" "$pid" 2>/dev/null
  if gone_child "$pid" "${3:-20}"; then wait "$pid" 2>/dev/null; return 0; fi
  kill -KILL -- "-$pid" 2>/dev/null
  kill -KILL "$pid" 2>/dev/null
  wait "$pid" 2>/dev/null
  return 1
}

# tree PID : its id, and those of all that it has started and that still run.
tree() {
  local p
  echo "$1"
  for p in $(cat "/proc/$1/task/$1/children" 2>/dev/null); do tree "$p"; done
}

# Our own child may be a zombie that bash has not reaped yet: that counts as gone.
gone_child() {
  local i n=$(($2 * 50)) st
  for ((i = 0; i < n; i++)); do
    alive "$1" || return 0
    state st "$1"
    case $st in '' | Z | X) return 0 ;; esac
    nap 0.02
  done
  return 1
}

cleanup() {
  local p d
  for p in "${RS_PIDS[@]}"; do
    alive "$p" || continue
    kill -KILL -- "-$p" 2>/dev/null
    kill -KILL "$p" 2>/dev/null
    wait "$p" 2>/dev/null
  done
  for d in "${RS_TMP[@]}"; do rm -rf "$d"; done
  [ ! -p "$RS_NAP" ] || rm -f "$RS_NAP"
}
on_exit() { cleanup; }
trap 'on_exit' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---------------------------------------------------------------- ports

# free_port VAR : a TCP port on which no process listens, below the range that the kernel hands out
# itself.
free_port() {
  local p i low
  low=$(cut -f1 /proc/sys/net/ipv4/ip_local_port_range 2>/dev/null || echo 32768)
  [ "$low" -gt 12000 ] || low=32768
  for ((i = 0; i < 200; i++)); do
    p=$((10000 + (RANDOM * 32768 + RANDOM) % (low - 10000)))
    port_busy $p || { printf -v "$1" '%s' $p; return 0; }
  done
  die "no free port"
}

# State 0A is LISTEN; read from /proc, so that nothing is connected to.
port_listens() { tcp_line "$1" '[0-9A-F]*:0000 0A '; }
port_busy() { tcp_line "$1" ''; }
# tcp_line PORT REGEX : whether a socket of that local port has a line of proc(5)'s net/tcp that goes
# on like this.
tcp_line() {
  local port
  printf -v port '%04X' "$1"
  grep -qs "^ *[0-9]*: [0-9A-F]*:$port $2" /proc/net/tcp /proc/net/tcp6
}

# wait_port PORT PID [SECONDS] : until a process listens there; false if PID ends first or time is
# up.
wait_port() {
  local i n=$((${3:-10} * 50))
  for ((i = 0; i < n; i++)); do
    port_listens "$1" && return 0
    alive "$2" || return 1
    nap 0.02
  done
  return 1
}

# wait_listen PORT PID [SECONDS] : until a process listens there by rdma_cm; false if PID ends or
# time is up.
wait_listen() {
  local end=$((SECONDS + ${3:-30}))
  while [ $SECONDS -le $end ]; do
    [[ $(rdma resource show cm_id) =~ state\ LISTEN\ [^$'\n']*src-addr\ [^\ ]*:$1\  ]] && return 0
    alive "$2" || return 1
    nap 0.1
  done
  return 1
}

# wait_udp PORT PID [SECONDS] : until a socket has that UDP port; false if PID ends first or time is
# up.
wait_udp() {
  local i n=$((${3:-10} * 50)) hex
  printf -v hex ':%04X ' "$1"
  for ((i = 0; i < n; i++)); do
    grep -qi "$hex" /proc/net/udp /proc/net/udp6 2>/dev/null && return 0
    alive "$2" || return 1
    nap 0.02
  done
  return 1
}

# ---------------------------------------------------------------- the library

build_lib() {
  [ -n "${RSOCKET_LIB:-}" ] && [ -f "$RSOCKET" ] && return 0
  need_build
  (cd "$ROOT" && cargo build --release -p rspreload -p rsocket-capi) || die "the libraries do not build"
  [ -f "$LIB" ] || die "no library at $LIB"
  [ -f "$RSOCKET" ] || die "no library at $RSOCKET"
}

# rsrun and rsstat; RSOCKET_TOOLS names the directory of another build.
RSRUN=${RSOCKET_TOOLS:-$TARGET/release}/rsrun
RSSTAT=${RSOCKET_TOOLS:-$TARGET/release}/rsstat
export RSRUN RSSTAT
build_tools() {
  [ -n "${RSOCKET_TOOLS:-}" ] && return 0
  need_build
  (cd "$ROOT" && cargo build --release -p rsrun -p rsstat) || die "the tools do not build"
}

# stat_sum NAME DIR : the sum of that counter over all processes that wrote a report into DIR.
stat_sum() { stat_sums "$2" "$1"; }
# stat_sums DIR NAME... : the sums of those counters, on one line.
stat_sums() {
  local f files=()
  for f in "$1"/*; do [ -f "$f" ] && files+=("$f"); done
  shift
  # Without a file it would read its standard input.
  awk -v names="$*" '{ s[$1] += $2 }
    END { n = split(names, name, " "); for (i = 1; i <= n; i++) printf "%.0f%s", s[name[i]], i < n ? " " : "\n" }' \
    /dev/null "${files[@]}"
}
stat_files() { find "$1" -type f 2>/dev/null | wc -l; }

# Why connections stayed on TCP, one line.
stat_reasons() {
  local f files=()
  for f in "$1"/*; do [ -f "$f" ] && files+=("$f"); done
  [ ${#files[@]} = 0 ] && { echo "no report was written"; return; }
  awk '/^on_tcp\./ { s[$1] += $2 } END { for (k in s) if (s[k]) printf "%s=%d ", k, s[k] }' "${files[@]}"
}

# cpu_ticks PID : user and system time that it has used, in clock ticks.
cpu_ticks() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '{ print $12 + $13 }'; }

median() { sort -n | awk '{ a[NR] = $1 } END { if (NR) print (NR % 2) ? a[(NR + 1) / 2] : (a[NR / 2] + a[NR / 2 + 1]) / 2 }'; }
