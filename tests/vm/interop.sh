#!/usr/bin/env bash
# rsockets against upstream's library, over both devices: upstream's rstream with its own library and with ours in
# its place (librsocket.so preloaded), in all pairings. rstream compares what arrives (-T v).
. "$(dirname "$0")/guest.sh"
OURS=$TARGET/release/librsocket.so
[ -f "$OURS" ] || die "no library at $OURS"
tmpdir tmp
port=7500

# How each side is run.
side() { if [ "$1" = ours ]; then echo "env LD_PRELOAD=$OURS RSOCKET_STATS=$tmp/stats.%p"; else echo env; fi; }

# stream SERVER CLIENT DEVICE MODE SIZE [ADDRESS] : both sides need the same options.
stream() {
  local how="$1 serves, $2 asks" dev=$3 mode=$4 size=$5 addr=${6:-$(address "$3")} name before after server rc count=20
  local family=(-f ip)
  [[ $addr = *:* ]] && family=(-f ipv6)
  [ "$size" -gt 100000 ] && count=2
  name="$how: $dev ${family[1]} -T $mode -S $size"
  port=$((port + 1))
  local args=("${family[@]}" -p $port -S "$size" -C $count -I 2 -T "$mode" -T v)
  before=$(packets "$dev")
  rm -f "$tmp"/stats.*
  # shellcheck disable=SC2046
  start server timeout -k 5 60 $(side "$1") rstream -b "$addr" "${args[@]}" >"$tmp/server" 2>&1
  if ! wait_listen $port "$server" 20; then
    fail "$name" "no server: $(tail -3 "$tmp/server")"
    stop "$server"
    return
  fi
  # shellcheck disable=SC2046
  limit 60 $(side "$2") rstream -s "$addr" "${args[@]}" >"$tmp/client" 2>&1
  rc=$?
  gone_child "$server" 10
  stop "$server" || { fail "$name" "the server does not end: $(tail -3 "$tmp/server")"; return; }
  after=$(packets "$dev")
  if [ $rc != 0 ]; then fail "$name" "exit $rc: $(tail -q -n 3 "$tmp/client" "$tmp/server")"
  elif grep -qi 'error\|failed\|mismatch' "$tmp/client" "$tmp/server"; then
    fail "$name" "$(grep -hi 'error\|failed\|mismatch' "$tmp/client" "$tmp/server" | head -n 3)"
  elif [ "$after" -le "$before" ]; then fail "$name" "no packet went through $dev"
  elif [[ $1$2 = *ours* ]] && ! carried; then fail "$name" "our side counted no byte over RDMA: $(cat "$tmp"/stats.*)"
  else ok "$name ($((after - before)) packets)"; fi
}
carried() {
  mkdir -p "$tmp/all" && rm -f "$tmp/all"/* && cp "$tmp"/stats.* "$tmp/all/" || return 1
  [ "$(stat_sum bytes.sent.rdma "$tmp/all")" -gt 0 ] && [ "$(stat_sum bytes.received.rdma "$tmp/all")" -gt 0 ] &&
    [ "$(stat_sum bytes.sent.tcp "$tmp/all")" = 0 ]
}

sizes=(64 4096 65536 1048576)
modes=(b n)
[ "$QUICK" = 1 ] && sizes=(65536)
for dev in "${DEVICES[@]}"; do
  for pair in "upstream ours" "ours upstream" "ours ours"; do
    read -r server client <<<"$pair"
    for mode in "${modes[@]}"; do
      for size in "${sizes[@]}"; do stream "$server" "$client" "$dev" $mode "$size"; done
    done
    [ "$QUICK" = 1 ] && [ "$pair" != "ours ours" ] || stream "$server" "$client" "$dev" b 4096 "$(address6 "$dev")"
  done
done
check "nothing left" "see above" none_left 10
finish
