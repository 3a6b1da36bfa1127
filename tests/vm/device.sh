#!/usr/bin/env bash
# The RDMA device by itself (rsocket-core/tests/rdma_*.rs): the device contract, connecting,
# forking, leaks, on soft-RoCE and on soft-iWARP. Builds the tests, then runs them in the virtual
# machine.
#
#   tests/vm/device.sh [NAME]     all tests, or those whose names contain NAME
if [ ! -e /run/vm/job ]; then
  set -u
  . "$(dirname "$0")/../../scripts/lib.sh"
  . "$ROOT/tests/vm/device.prepare"
  build_lib
  "$ROOT/scripts/vm" --timeout 900 "$ROOT/tests/vm/device.sh" "$@"
  exit
fi
. "$(dirname "$0")/guest.sh"
ulimit -l unlimited
tmpdir tmp
# With few rounds, what takes longest is left out.
[ "$QUICK" = 1 ] && set -- "$@" --skip when_small
for dev in "${DEVICES[@]}"; do
  before=$(packets "$dev")
  for binary in $RSOCKET_TEST_BINARIES; do
    # One at a time: they count objects, and fork.
    RSOCKET_TEST_RDMA=$(address "$dev") limit 400 "$binary" --ignored --test-threads 1 "$@" >"$tmp/log" 2>&1
    rc=$?
    while read -r _ name _ verdict; do
      if [ "$verdict" = ok ]; then ok "$dev ${name}"; else fail "$dev $name" "$verdict"; fi
    done < <(grep -E '^test [^ ]+ \.\.\. ' "$tmp/log" | grep -v '^test result')
    grep -q '^test result: ok\. [1-9]' "$tmp/log" && [ $rc = 0 ] || { fail "$dev $(basename "$binary")" "exit $rc"; tail -60 "$tmp/log"; }
  done
  # The RDMA libraries read, write and close by the names that the preload library hooks.
  [ "$QUICK" = 1 ] || RSOCKET_TEST_RDMA=$(address "$dev") LD_PRELOAD=$LIB limit 400 "${RSOCKET_TEST_BINARIES%%$'\n'*}" \
    --ignored --test-threads 1 --exact keeps_the_contract >"$tmp/log" 2>&1
  [ "$QUICK" = 1 ] || check "$dev keeps_the_contract under the library" "$(tail -20 "$tmp/log")" grep -q '^test result: ok\. [1-9]' "$tmp/log"
  check "$dev carried it" "no packet went through it" [ "$(packets "$dev")" -gt "$before" ]
done
check "nothing left" "see above" none_left
finish
