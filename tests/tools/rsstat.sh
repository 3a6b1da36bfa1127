#!/usr/bin/env bash
# rsstat: what it shows of connections that live, die and stay on TCP; and that nothing breaks where
# no file can be.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3 unshare=util-linux setpriv=util-linux
tmpdir dir
cd "$dir" || exit 1
P=("$RSRUN" -S "$dir/reports")
field() { "$PYTHON" -c 'import json, sys; print(eval(sys.argv[1], {"j": json.load(sys.stdin)}))' "$1"; }

check "nothing at first" "$("$RSSTAT")" test "$("$RSSTAT")" = "no rsockets"
serve server "${P[@]}"
converse client "${P[@]}"
said=$("$RSSTAT" -e)
check "two lines for two ends" "$said" test "$(grep -c ' attached *shm ' <<<"$said")" = 2
check "the client's ends" "$said" grep -Eq "^ *$client .* 127.0.0.1:[0-9]+ +127.0.0.1:$port +attached" <<<"$said"
check "credits and room" "$said" grep -Eq 'credits [1-9][0-9]*\+[1-9][0-9]* +room [1-9]' <<<"$said"
check "each names the other end" "$said" grep -Eq "  other end $server python[^ ]* 127.0.0.1:$port 127.0.0.1:[0-9]+\$" <<<"$said"
check "and is named" "$said" grep -Eq "  other end $client python[^ ]* 127.0.0.1:[0-9]+ 127.0.0.1:$port\$" <<<"$said"
json=$("$RSSTAT" --json -p "$client")
check "in JSON as well" "$json" test "$(field 'j[0]["connections"][0]["other_end"]["pid"]' <<<"$json")" = "$server"
check "bytes, all of them" "$json" test "$(field 'j[0]["connections"][0]["sent"]["bytes"] + j[0]["connections"][0]["sent_tcp"]["bytes"]' <<<"$json")" = 900000
check "mostly over shared memory" "$json" test "$(field 'j[0]["connections"][0]["received"]["bytes"] > 800000' <<<"$json")" = True
check "the attach is counted" "$json" test "$(field 'j[0]["counters"]["attached.shm"]' <<<"$json")" = 1
# At one of the ends: where both run on one core, the one that rings may find its answer whenever it
# looks.
both=$("$RSSTAT" --json)
check "sleeps or spins" "$both" test \
  "$(field 'sum(c[k] for p in j for c in p["connections"] for k in ("sleeps", "spins_paid", "spins_failed")) > 0' <<<"$both")" = True
check "by port" "" test "$(field 'len(j)' <<<"$("$RSSTAT" -j -P "$port")")" = 2
check "by another port" "" test "$(field 'len(j)' <<<"$("$RSSTAT" -j -P 1)")" = 0
check "by state" "" test "$(field 'len(j)' <<<"$("$RSSTAT" -j -s tcp)")" = 0
check "totals" "$("$RSSTAT" -t)" grep -q "bytes.sent.shm" <<<"$("$RSSTAT" -t)"
limit 5 "$RSSTAT" --watch=0.1 >watched
check "watches" "$(head -c 200 watched)" test "$(grep -c PROGRAM watched)" -ge 3
check "its files are private" "$(ls -la "$LIVE")" test "$(stat -c %a "$LIVE" "$LIVE"/* | sort -u | tr '\n' ' ')" = "600 700 "
leave "$client"
check "a process that ends takes its file along" "$(ls "$LIVE")" test ! -e "$LIVE/$client.live"
check "the report is whole" "$(cat reports)" test "$(awk '$1 ~ /^bytes.sent/ { s += $2 } END { print s }' reports)" = 900007

# A connection whose peer has no library.
stop "$server"
serve server
free_port other
converse client "$RSRUN" -t tcp
said=$("$RSSTAT")
check "on TCP, with the reason" "$said" grep -Eq 'tcp +tcp \(policy_tcp\)' <<<"$said"
check "and the sum" "$said" grep -Eq '^on TCP: 1 × policy_tcp: ' <<<"$said"
leave "$client"
stop "$server"

# No process takes the offer up, or makes one: it is not known yet that the connection stays on TCP.
serve server
converse client "${P[@]}"
said=$("$RSSTAT" -e)
check "an offer that nobody takes" "$said" grep -Eq ' tcp +tcp \(offer_lapsed\)' <<<"$said"
check "has no other end" "$said" hasnt "$said" "other end"
leave "$client"
stop "$server"
serve server "${P[@]}"
converse client
said=$("$RSSTAT")
check "an offer that nobody makes" "$said" grep -Eq ' tcp +tcp \(no_offer\)' <<<"$said"
leave "$client"
stop "$server"

# Killed.
serve server "${P[@]}"
converse client "${P[@]}"
kill -KILL "$client" && gone_child "$client" 10
check "a killed process is not shown" "$("$RSSTAT")" hasnt "$("$RSSTAT")" " $client "
said=$("$RSSTAT" --dead)
check "but its last state is" "$said" grep -Eq "^ *$client +python[^ ]* .* attached +shm" <<<"$said"
said=$("$RSSTAT" --forget)
check "and is forgotten" "$said" grep -Eq '^[1-9][0-9]* forgotten$' <<<"$said"
check "for good" "$("$RSSTAT" --dead)" test "$("$RSSTAT" --dead)" = "no process was killed lately"

# A forked child has a file of its own; a program that is executed replaces its predecessor.
cat >fork.py <<'PY'
import os, socket, sys
port = int(sys.argv[1])
def talk():
    c = socket.create_connection(("127.0.0.1", port))
    for _ in range(200):
        c.sendall(b"x" * 3000); n = 0
        while n < 3000: n += len(c.recv(65536))
    return c
one = talk()
if os.fork() == 0:
    two = talk()
    print("child", os.getpid(), flush=True); open("stay").readline()
    if len(sys.argv) > 2: os._exit(0)
    os.execv(sys.executable, [sys.executable, sys.argv[0], sys.argv[1], "again"])
os.wait()
PY
mkfifo stay && exec 8<>stay
start family "${P[@]}" "$PYTHON" fork.py "$port" >said
until_true 20 grep -q child said
child=$(sed -n 's/child //p' said | head -1)
check "a child has a file of its own" "$(ls "$LIVE")" test -e "$LIVE/$child.live" -a -e "$LIVE/$family.live"
said=$("$RSSTAT")
check "with its connection only" "$said" test "$(grep -c "^ *$child " <<<"$said")" = 1
echo >&8
until_true 20 sh -c 'test $(grep -c child said) = 2'
check "after exec the file is the new program's" "$("$RSSTAT" -p "$child")" test "$(field 'len(j[0]["connections"])' <<<"$("$RSSTAT" -j -p "$child")")" = 1
echo >&8
gone_child "$family" 10

# A connection that the next program inherits is shown as that one's.
cat >inherit.py <<'PY'
import os, socket, sys
def talk(c):
    for _ in range(200):
        c.sendall(b"x" * 3000); n = 0
        while n < 3000: n += len(c.recv(65536))
if len(sys.argv) == 2:
    c = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
    talk(c)
    c.set_inheritable(True)
    os.execv(sys.executable, [sys.executable, sys.argv[0], sys.argv[1], str(c.fileno())])
c, d = socket.socket(fileno=int(sys.argv[2])), socket.create_connection(("127.0.0.1", int(sys.argv[1])))
talk(c); talk(d)
print("heir", flush=True); open("stay").readline()
PY
start heir "${P[@]}" "$PYTHON" inherit.py "$port" >said
until_true 20 grep -q heir said
json=$("$RSSTAT" -j -p "$heir")
check "what a program inherits is shown as its own" "$json" test "$(field '[c["sent"]["bytes"] > 500000 for c in j[0]["connections"]]' <<<"$json")" = "[True, True]"
echo >&8
gone_child "$heir" 10
check "nothing of them is left" "$(ls "$LIVE")" test "$(cd "$LIVE" && ls -- *.live)" = "$server.live"

# Where there cannot be a file the program runs all the same.
alone() { # NAME COMMAND... : a client that must attach, and leave no file
  local what=$1
  shift
  rm -f report
  limit 30 "$@" "${TALK[@]}" talk "$port" 300 3000 >out 2>&1
  check "$what: runs" "$(cat out)" grep -q done out
  check "$what: attaches" "$(cat report 2>&1)" grep -Eq '^bytes.sent.shm [1-9]' report
}
alone "RSOCKET_LIVE=0" env RSOCKET_LIVE=0 "$RSRUN" -S "$dir/report"
echo x >notadir
alone "no directory" env XDG_RUNTIME_DIR="$dir/notadir" "$RSRUN" -S "$dir/report"
chmod 755 "$LIVE"
alone "a directory that others may enter" "$RSRUN" -S "$dir/report"
chmod 700 "$LIVE"
if [ "$(id -u)" = 0 ]; then
  cat >full.sh <<'SH'
mount --bind "$PWD" "$PWD" && mount -t tmpfs -o size=64k,mode=700 none "$XDG_RUNTIME_DIR" && mkdir -m 700 "$XDG_RUNTIME_DIR/rsocket" &&
  head -c 49152 /dev/zero >"$XDG_RUNTIME_DIR/full"
for d in /run /dev/shm /tmp; do mount --rbind -o ro $d $d 2>/dev/null && mount -o remount,bind,ro $d; done
exec "$@"
SH
  alone "a full file system" unshare -m bash "$dir/full.sh" "$RSRUN"  -S "$dir/report"
fi
stop "$server"
"$RSSTAT" >/dev/null
check "what is left over is reaped" "$(ls "$LIVE")" test -z "$(ls "$LIVE" | grep -v "^$server\|^looked-at$")"

# Many connections: the file grows.
serve server "${P[@]}"
cat >many.py <<'PY'
import socket, sys
c = [socket.create_connection(("127.0.0.1", int(sys.argv[1]))) for _ in range(150)]
for s in c:
    for _ in range(25):
        s.sendall(b"y" * 2000); n = 0
        while n < 2000: n += len(s.recv(65536))
print("ready", flush=True); open("stay").readline()
PY
start many "${P[@]}" "$PYTHON" many.py "$port" >said
until_true 60 grep -q ready said
said=$("$RSSTAT" -p "$many")
check "150 connections" "$(tail -3 <<<"$said")" test "$(grep -c "^ *$many " <<<"$said")" = 150
echo >&8
gone_child "$many" 10
stop "$server"
exit $BAD
