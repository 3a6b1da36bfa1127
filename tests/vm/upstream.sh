#!/usr/bin/env bash
# The ground the other suites stand on: upstream's rstream with upstream's own library, over both
# devices. If this fails the devices, or Debian's packages, do not work here, whatever the other
# suites say.
. "$(dirname "$0")/guest.sh"
tmpdir tmp

# stream DEVICE MODE SIZE : MODE is rstream's -T: b blocking, n non-blocking. Both sides need the
# same options.
stream() {
  local dev=$1 mode=$2 size=$3 name="rstream $1 -T $2 -S $3" addr before after server rc
  local args=(-p 7471 -S "$size" -C 20 -I 5 -T "$mode")
  addr=$(address "$dev")
  before=$(packets "$dev")
  start server timeout -k 5 60 rstream -b "$addr" "${args[@]}" >"$tmp/server" 2>&1
  if ! wait_listen 7471 "$server"; then
    fail "$name" "no server: $(tail -3 "$tmp/server")"
    stop "$server"
    return
  fi
  limit 60 rstream -s "$addr" "${args[@]}" >"$tmp/client" 2>&1
  rc=$?
  gone_child "$server" 20
  stop "$server" || { fail "$name" "the server does not end: $(tail -3 "$tmp/server")"; return; }
  after=$(packets "$dev")
  if [ $rc != 0 ]; then fail "$name" "exit $rc: $(tail -3 "$tmp/client" "$tmp/server")"
  elif [ "$after" -le "$before" ]; then fail "$name" "no packet went through $dev"
  else ok "$name ($((after - before)) packets)"; fi
}

for dev in "${DEVICES[@]}"; do
  for mode in b n; do
    for size in 64 65536; do stream "$dev" $mode $size; done
  done
done
check "nothing left" "see above" none_left
finish
