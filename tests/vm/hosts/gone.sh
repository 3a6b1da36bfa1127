#!/usr/bin/env bash
# Two guests, each running this file: attached connections over a network that loses packets, then a
# host that loses power in the middle of everything. Host 2 serves and dies. Alone: `tests/vm/run
# two gone`.
#
# dies: 2
. "$(dirname "$0")/../guest.sh"
[ -n "${VM_HOST:-}" ] || die "this needs two guests"
tmpdir tmp
here="host $VM_HOST"
ip=$(address rxe0 2)
talk=("$PYTHON" "$ROOT/tests/vm/hosts/talk.py")
ours=(env "LD_PRELOAD=$LIB")

if [ "$VM_HOST" = 2 ]; then
  start talking "${ours[@]}" "${talk[@]}" serve "$ip" 8000 >"$tmp/talk" 2>&1
  start plain "${ours[@]}" RSOCKET_TRANSPORT=rdma "${talk[@]}" serve "$ip" 8001 >"$tmp/plain" 2>&1
  wait_port 8000 "$talking" 60 && wait_listen 8001 "$plain" 60 || fail "$here servers" "$(tail -3 "$tmp/talk" "$tmp/plain")"
  # Loss in this direction; the other one's acknowledgements suffer as much as its data.
  tc qdisc add dev eth0 root netem loss 1% || fail "$here netem" "no tc"
  tell ready
  hear lossy 300 >/dev/null
  tc -s qdisc show dev eth0 >"$VM_OUT/netem"
  tc qdisc del dev eth0 root
  tell clean
  hear blocked 200 >/dev/null && lose_power
  fail "$here loses power" "$(tail -3 "$tmp/talk" "$tmp/plain")"
  finish
fi

hear ready 100 >/dev/null || { fail "$here" "host 2 does not serve"; finish; }
t=$SECONDS
got=$(limit 200 "${ours[@]}" RSOCKET_STATS="$tmp/stats" "${talk[@]}" pair "$ip" 8000 2>&1)
check "$here a network that loses packets: every byte" "$(tail -3 <<<"$got")" [ "$got" = warm ]
check "$here over RDMA all the same" "$(cat "$tmp/stats")" \
  awk '$1 ~ /^bytes\.(sent|received)\.rdma$/ && $2 > 2900000 { n++ } END { exit n != 2 }' "$tmp/stats"
say "# $here loss: $((SECONDS - t)) s"
tell lossy
hear clean >/dev/null
lost=$(sed -n 's/.*dropped \([0-9]*\).*/\1/p' "$VM_OUT/netem" | head -1)
check "$here packets were lost ($lost)" "$(cat "$VM_OUT/netem")" [ "${lost:-0}" -gt 5 ]

# Two that only read, two that write for ever; beside TCP, and over RDMA alone.
for how in receive send; do
  start "beside_$how" "${ours[@]}" "${talk[@]}" hold "$ip" 8000 $how >"$tmp/beside_$how" 2>&1
  start "plain_$how" "${ours[@]}" RSOCKET_TRANSPORT=rdma "${talk[@]}" hold "$ip" 8001 $how >"$tmp/plain_$how" 2>&1
done
for who in beside_receive beside_send plain_receive plain_send; do
  for ((i = 0; i < 300; i++)); do
    grep -q . "$tmp/$who" && break
    nap 0.1
  done
  check "$here $who carries bytes over RDMA" "$(cat "$tmp/$who")" [ "$(head -1 "$tmp/$who")" = warm ]
done
sleep 3
died=$SECONDS
tell blocked
for who in beside_receive beside_send plain_receive plain_send; do
  while alive "${!who}" && [ $SECONDS -lt $((died + 90)) ]; do nap 0.2; done
  check "$here $who learns of the loss of power after $((SECONDS - died)) s: $(tail -1 "$tmp/$who")" "$(cat "$tmp/$who")" \
    grep -Eq '^(ECONNRESET|ETIMEDOUT) ' "$tmp/$who"
done
check "$here within a minute" "$((SECONDS - died)) s" [ $((SECONDS - died)) -lt 60 ]
check "$here nothing left" "see above" none_left 30
finish
