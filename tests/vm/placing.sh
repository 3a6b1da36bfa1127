#!/usr/bin/env bash
# Direct placement between two of ours, over both devices: the cases of tests/rsocket/placing.c and
# gaps_placing.c.
. "$(dirname "$0")/guest.sh"
helper PLACING placing
helper GAPS gaps_placing
# shellcheck disable=SC2154 # tmpdir makes it
tmpdir tmp
cases=()
[ "$QUICK" = 1 ] && cases=(order by_itself ranges unmapped many closed)
for dev in "${DEVICES[@]}"; do
  before=$(packets "$dev")
  limit 400 env "RS_ADDRESS=$(address "$dev")" RS_SECONDS=60 "$PLACING" "${cases[@]}" >"$tmp/out" 2>&1
  limit 200 env "RS_ADDRESS=$(address "$dev")" RS_SECONDS=60 "$GAPS" >>"$tmp/out" 2>&1
  [ -s "$tmp/out" ] || fail "$dev" "it said nothing"
  while read -r name; do
    if grep -q "^ok $name\$" "$tmp/out"; then ok "$dev: $name"; else fail "$dev: $name" "$(grep "^FAIL $name:" "$tmp/out")"; fi
  done < <(sed -n 's/^\(ok\|FAIL\) \([^ :]*\).*/\2/p' "$tmp/out" | awk '!seen[$0]++')
  grep -qvE '^(ok|FAIL) ' "$tmp/out" && fail "$dev" "$(grep -vE '^(ok|FAIL) ' "$tmp/out" | tail -3)"
  check "$dev: over the device" "$before packets" [ "$(packets "$dev")" -gt "$before" ]
done
check "nothing left" "see above" none_left 10
finish
