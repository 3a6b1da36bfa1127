#!/usr/bin/env bash
# An asyncio echo server and fifty asyncio clients, every byte compared; IPv4 and IPv6.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  for host in 127.0.0.1 ::1; do
    [ $host = ::1 ] && ! grep -q . /proc/net/if_inet6 2>/dev/null && continue
    free_port port
    start server "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" server $host "$port" >"$dir/server" 2>&1
    if ! wait_port "$port" "$server"; then fail "$host start" "$(tail -3 "$dir/server")"; continue; fi
    out=$(limit 60 "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" client $host "$port" 2>&1)
    rc=$?
    check "$host 50 clients" "exit $rc: $(tail -3 <<<"$out")" test "$rc" = 0 -a "${out##*$'\n'}" = "50 clients, all bytes as sent"
    stop "$server" INT || fail "$host stop" "the server did not end"
  done
  carried
done
exit $BAD
