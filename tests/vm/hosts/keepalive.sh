#!/usr/bin/env bash
# Two guests, each running this file: rsockets with SO_KEEPALIVE, on both devices. Their peer's host
# loses power while they sleep in a read, a write, rpoll and repoll_wait. Host 2 dies. Alone:
# `tests/vm/run two keepalive`.
#
# dies: 2
# alone
. "$(dirname "$0")/../guest.sh"
[ -n "${VM_HOST:-}" ] || die "this needs two guests"
tmpdir tmp
here="host $VM_HOST"
helper program keepalive
export RSOCKET_TRANSPORT=rdma RSOCKET_LOG=debug
# What is configured: silence, then so many questions at such a distance. The device would take
# longer to notice on soft-RoCE (about fifteen seconds), and a quarter of an hour on soft-iWARP.
IDLE=3 INTERVAL=1 COUNT=4
USER_TIMEOUT=6000
silent() { ! busybox ping -c 1 -W 1 "$(address rxe0 2)" >/dev/null 2>&1; }

if [ "$VM_HOST" = 2 ]; then
  for dev in "${DEVICES[@]}"; do
    start "serve_$dev" "$program" serve "$(address "$dev" 2)" 8100 >"$tmp/serve_$dev" 2>&1
    pid=serve_$dev
    wait_listen 8100 "${!pid}" 60 || fail "$here serves on $dev" "$(cat "$tmp/serve_$dev")"
  done
  tell ready
  hear listens 200 >/dev/null
  for dev in "${DEVICES[@]}"; do start "call_$dev" "$program" call "$(address "$dev" 1)" 8101 >"$tmp/call_$dev" 2>&1; done
  hear warm 300 >/dev/null && lose_power
  fail "$here loses power" "$(cat "$tmp"/*)"
  finish
fi

hear ready 200 >/dev/null || { fail "$here" "host 2 does not serve"; finish; }
ways=(read write poll set accepted timeout)
begin() {
  local dev=$1 way=$2 args=("$IDLE" "$INTERVAL" "$COUNT")
  case $way in
    accepted) args=(accepted "$(address "$dev" 1)" 8101 "${args[@]}") ;;
    # Only the user's time-out can be so early.
    timeout) args=(read "$(address "$dev" 2)" 8100 "$IDLE" 1 100 $USER_TIMEOUT) ;;
    *) args=("$way" "$(address "$dev" 2)" 8100 "${args[@]}") ;;
  esac
  start "${way}_$dev" "$program" "${args[@]}" >"$tmp/$way.$dev" 2>"$tmp/$way.$dev.log"
}
for dev in "${DEVICES[@]}"; do begin "$dev" accepted; done
for dev in "${DEVICES[@]}"; do
  for ((i = 0; i < 300; i++)); do grep -q listens "$tmp/accepted.$dev" && break; nap 0.1; done
done
tell listens
for dev in "${DEVICES[@]}"; do
  for way in read write poll set timeout; do begin "$dev" $way; done
done
for dev in "${DEVICES[@]}"; do
  for way in "${ways[@]}"; do
    for ((i = 0; i < 600; i++)); do grep -q warm "$tmp/$way.$dev" && break; nap 0.1; done
    check "$here $dev $way: connected" "$(cat "$tmp/$way.$dev")" grep -q warm "$tmp/$way.$dev"
  done
done
# A connection whose peer is there stays, however long it is silent.
sleep $((2 * (IDLE + INTERVAL * COUNT)))
for dev in "${DEVICES[@]}"; do
  for way in "${ways[@]}"; do
    pid=${way}_$dev
    check "$here $dev $way: stands while the peer is there" "$(cat "$tmp/$way.$dev")" alive "${!pid}"
  done
done
# A guest takes its time to go, or none. It was there when it last answered, if it answers at all
# after this.
read -r last _ </proc/uptime
misses=0
tell warm
for ((i = 0; i < 500 && misses < 3; i++)); do
  if silent; then misses=$((misses + 1)); else read -r last _ </proc/uptime; misses=0; fi
done
check "$here host 2 is gone" "it answers" [ $misses = 3 ]
wanted=$((IDLE + INTERVAL * COUNT))
for dev in "${DEVICES[@]}"; do
  for way in "${ways[@]}"; do
    pid=${way}_$dev
    gone_child "${!pid}" 60 || kill -KILL "${!pid}"
    most=$((wanted + 5))
    said=$(tail -1 "$tmp/$way.$dev" | awk -v last="$last" '{ printf "%s %.1f", $1, $NF - last }')
    check "$here $dev $way: wakes in time ($said s, at most $most)" "$(cat "$tmp/$way.$dev"; tail -3 "$tmp/$way.$dev.log")" \
      awk -v most=$most '{ exit !($1 == "ETIMEDOUT" && $2 >= 0 && $2 <= most) }' <<<"$said"
  done
done
check "$here nothing left" "see above" none_left 30
finish
