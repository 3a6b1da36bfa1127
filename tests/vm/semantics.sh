#!/usr/bin/env bash
# The semantics suite with RSOCKET_TRANSPORT=rdma at both ends: what a program sees over a device is
# what TCP shows. `RSOCKET_SEMANTICS=all tests/vm/run one semantics` runs every case on both
# devices; `RSOCKET_SEMANTICS='TOPIC...'` those.
. "$(dirname "$0")/guest.sh"
tmpdir tmp

# cases DEVICE TOPIC... : the runner's own lines, with the device's name; packets prove that they
# went over it.
cases() {
  local dev=$1 before after
  shift
  before=$(packets "$dev")
  SEM_DEVICE=$dev SEM_ADDRESS=$(address "$dev") SEM_ADDRESS6=$(address6 "$dev") "$ROOT/tests/semantics/run" -m rdma -j 3 -t 120 "$@" 2>&1 |
    tee "$tmp/out" | sed -un "s/^\(ok\|FAIL\|SKIP\) /\1 $SUITE $dev /p"
  after=$(packets "$dev")
  ! grep -q '^FAIL ' "$tmp/out" || BAD=1
  grep -q '^ok rdma/' "$tmp/out" || fail "$dev" "no case ran: $(tail -n 3 "$tmp/out")"
  check "$dev: it all went over the device ($((after - before)) packets)" "it did not" [ "$after" -gt "$before" ]
}

# How a stream ends, and which caller is told of it, is what differs most from one device to
# another.
# (The rest takes too long for every run.)
declare -A SOME=([rxe0]="ending returning outliving waiting flags timing.sndtimeo timing.write_eintr echo.both_write_first crowds.close_leaves_a_reader rest writable" [siw0]="ending returning.sleepers returning.dprintf_peer_is_busy returning.inherited_peer_calls__exit rest gaps_ready.g4_08_flags crowds.close_and_cancel")
[ "$QUICK" = 1 ] && SOME=([rxe0]="ending rest.by_a_child rest.closed" [siw0]="echo.server_speaks_first ending.half_close_by_client ending.half_close_by_server")
for dev in "${DEVICES[@]}"; do
  # shellcheck disable=SC2086
  case ${RSOCKET_SEMANTICS:-} in
    all) cases "$dev" ;;
    ?*) cases "$dev" $RSOCKET_SEMANTICS ;;
    *) cases "$dev" -4 ${SOME[$dev]} ;;
  esac
  check "$dev: nothing left" "see above" none_left 20
done
finish
