#!/usr/bin/env bash
# Two network namespaces joined by a veth pair: there the peer is another host, and the connection
# is TCP's, at once. And a process that goes to another one, and takes along what has left TCP.
. "$(dirname "$0")/common.sh"
need_cc
need ip=iproute2 ss=iproute2
AS=()
[ "$(id -u)" = 0 ] || AS=(sudo -n)
A=rsp-a-$$ B=rsp-b-$$
remove() {
  as_root ip netns del "$A" 2>/dev/null
  as_root ip netns del "$B" 2>/dev/null
}
on_exit() { cleanup; remove; }
MODE=tcp
tmpdir tools
gcc -O2 -o "$tools/elsewhere" "$HERE/elsewhere.c" -lpthread || die "the helper does not compile"
if ! as_root ip netns add "$A" 2>/dev/null || ! as_root ip netns add "$B" ||
  ! as_root ip link add "v$$" netns "$A" type veth peer name "w$$" netns "$B"; then
  say "SKIP $NAME: no network namespaces here"
  exit 0
fi
as_root ip -n "$A" addr add 10.77.0.1/24 dev "v$$"
as_root ip -n "$B" addr add 10.77.0.2/24 dev "w$$"
for n in "$A" "$B"; do as_root ip -n "$n" link set lo up; done
as_root ip -n "$A" link set "v$$" up
as_root ip -n "$B" link set "w$$" up
for m in $(modes_of "$@"); do
  mode "$m"
  # What is begun at the other place stays on TCP.
  only_one=()
  [ "$m" != shm ] || only_one=(once)
  for how in stay unshare setns hop; do
    free_port port
    start server "${P[@]}" "$tools/elsewhere" server "$port"
    wait_port "$port" "$server" || fail "server" "it does not listen"
    limit 60 "${AS[@]}" "${P[@]}" "$tools/elsewhere" client "$port" $how "${only_one[@]}"
    rc=$?
    if [ $rc = 77 ]; then say "SKIP $NAME $MODE $how: not permitted here"
    else check "a process that goes elsewhere: $how" "exit $rc" test $rc = 0; fi
    stop "$server" TERM
  done
  # The last program of each did that.
  [ "$m" != default ] || check "what had left TCP went on so" "$(stat_sum bytes.sent.shm "$STATS") bytes by shm" \
    test "$(stat_sum bytes.sent.shm "$STATS")" -ge 24000
  [ "$m" = shm ] && continue # there is no way but TCP
  mode "$m"
  tmpdir dir
  free_port port
  start server "${AS[@]}" ip netns exec "$A" "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" server 10.77.0.1 "$port" >"$dir/server" 2>&1
  for _ in $(seq 200); do
    as_root ip netns exec "$A" ss -Hltn "sport = :$port" | grep -q . && break
    nap 0.05
  done
  out=$(limit 60 "${AS[@]}" ip netns exec "$B" "${P[@]}" "$PYTHON" "$HERE/asyncio_echo.py" client 10.77.0.1 "$port" 2>&1)
  check "50 clients across the veth" "${out##*$'\n'}" same "${out##*$'\n'}" "50 clients, all bytes as sent"
  # Sixty 1 MiB echoes on one connection: enough for any threshold, each timed; nothing may wait for
  # another transport.
  out=$(limit 60 "${AS[@]}" ip netns exec "$B" "${P[@]}" "$PYTHON" - 10.77.0.1 "$port" 2>&1 <<'PY'
import os, socket, sys, threading, time
t0 = time.monotonic()
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.sendall(b"x")
assert s.recv(1) == b"x"
first, worst = time.monotonic() - t0, 0
for i in range(60):
    data = os.urandom(1 << 20)
    t0 = time.monotonic()
    t = threading.Thread(target=s.sendall, args=(data,))
    t.start()
    got = b""
    while len(got) < len(data):
        part = s.recv(1 << 20)
        assert part
        got += part
    t.join()
    assert got == data
    worst = max(worst, time.monotonic() - t0)
assert first < 5, "the first byte took %.3f s" % first
assert worst < 5, "one echo took %.3f s" % worst
print("first byte %.1f ms, slowest MiB %.0f ms" % (first * 1e3, worst * 1e3))
PY
  )
  if [[ ${out##*$'\n'} == "first byte"* ]]; then ok "TCP at once ($out)"; else fail "TCP at once" "${out##*$'\n'}"; fi
  # The server's id is that of setsid's child chain: its whole group gets the signal.
  kill -INT -- "-$server" 2>/dev/null
  gone_child "$server" 5 || fail stop "the server did not end"
  if [ "$m" = default ]; then
    check "no byte over shared memory" "some went" same "$(stat_sum bytes.sent.shm "$STATS")" 0
    check "bytes counted as tcp" "$(stat_files "$STATS") reports" test "$(stat_sum bytes.sent.tcp "$STATS")" -gt 60000000
  fi
done
remove
check "namespaces removed" "still there" test -z "$(ip netns list | grep -e "$A" -e "$B")"
exit $BAD
