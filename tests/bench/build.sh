# shellcheck shell=bash
# Builds the measuring programs of this directory into $BENCH. Source it after scripts/lib.sh.
BENCH=$TARGET/bench
export BENCH

# build_bench NAME... : from NAME.c
build_bench() {
  local p
  mkdir -p "$BENCH"
  for p in "$@"; do
    cc -O2 -Wall -Wextra -Werror -pthread -o "$BENCH/$p" "$ROOT/tests/bench/$p.c" || die "$p.c does not compile"
  done
}
# build_bench_rsocket NAME... : the same with the calls of rsocket(7), as NAME-rsocket
build_bench_rsocket() {
  local p
  mkdir -p "$BENCH"
  for p in "$@"; do
    cc -O2 -Wall -Wextra -Werror -DRSOCKET -I"$ROOT/rsocket-capi/include" -o "$BENCH/$p-rsocket" "$ROOT/tests/bench/$p.c" \
      "$RSOCKET" -Wl,-rpath,"$(dirname "$RSOCKET")" || die "$p.c does not compile with rsocket(7)"
  done
}
# build_bench_mpi NAME... : with the compiler of MPI
build_bench_mpi() {
  local p
  mkdir -p "$BENCH"
  for p in "$@"; do
    mpicc -O2 -Wall -Wextra -Werror -o "$BENCH/$p" "$ROOT/tests/bench/$p.c" || die "$p.c does not compile"
  done
}
