#!/usr/bin/env bash
# rsrun: what it finds, sets, keeps, refuses and returns.
. "$(dirname "$0")/common.sh"
need_cc
need /usr/bin/python3=python3
tmpdir dir
cd "$dir" || exit 1
printf 'int main(void) { return 7; }\n' >seven.c
gcc -o seven seven.c && gcc -static -o static seven.c || die "the helpers do not compile"

# status COMMAND... : its exit status, what it said in $said
status() {
  said=$("$@" 2>&1 </dev/null)
  rc=$?
}

status "$RSRUN" ./seven
check "gives the program's status" "$rc: $said" test $rc = 7
status "$RSRUN" -- sh -c 'kill -TERM $$'
check "and its signal" "$rc" test $rc = 143
status "$RSRUN" no-such-program
check "127 for no program" "$rc: $said" test $rc = 127
status "$RSRUN" ./seven.c
check "127 for what cannot be executed" "$rc: $said" test $rc = 127
status "$RSRUN" --no-such-option ./seven
check "125 for a wrong option" "$rc: $said" test $rc = 125
status "$RSRUN" ./static
check "refuses a static program" "$rc: $said" has "$rc$said" "125rsrun: "
check "and says why" "$said" has "$said" "statically linked"

# The first bytes of another machine's program.
cp seven other && printf '\363' | dd of=other bs=1 seek=18 conv=notrunc 2>/dev/null
status "$RSRUN" ./other
check "refuses another architecture" "$said" has "$rc$said" "another architecture"
cp seven go && objcopy --add-section .go.buildinfo=seven.c go
status "$RSRUN" ./go
check "refuses a Go program" "$said" has "$rc$said" "Go program"
if [ "$(id -u)" = 0 ]; then
  cp seven set && chown 1 set && chmod 4755 set
  status "$RSRUN" ./set
  check "refuses a setuid program" "$said" has "$rc$said" "setuid"
  chown 0 set && chmod 4755 set
  status "$RSRUN" ./set
  check "not one that is setuid to ourselves" "$rc: $said" test $rc = 7
fi
printf '#!%s/static\n' "$dir" >script && chmod 755 script
status "$RSRUN" ./script
check "refuses a script of a static program" "$said" has "$rc$said" "statically linked"

status env LD_PRELOAD="libm.so.6 /nowhere/libasan.so.8" "$RSRUN" --explain ./seven
check "keeps LD_PRELOAD, sanitizers first" "$said" has "$(tr -s ' ' <<<"$said")" "LD_PRELOAD /nowhere/libasan.so.8 $LIB libm.so.6"
if gcc -fsanitize=address -o asan seven.c 2>/dev/null; then
  status env ASAN_OPTIONS=detect_leaks=0 "$RSRUN" ./asan
  check "runs a program with the address sanitizer" "$rc: $said" test $rc = 7
else say "SKIP $NAME address sanitizer: the compiler has none"; fi

mkdir conf && echo 44 >conf/polling_time && echo much >conf/mem_default
status env RSOCKET_SQSIZE_DEFAULT=100 "$RSRUN" -c conf --receive-queue 99 -t shm,tcp -R --fork-safe --pcap x.pcapng --explain ./seven
said=$(tr -s ' ' <<<"$said")
for want in "polling_time 44 file $dir/conf/polling_time" "mem_default 131072 default ($dir/conf/mem_default means nothing)" \
  "sqsize_default 100 environment RSOCKET_SQSIZE_DEFAULT" "rqsize_default 99 option" "wmem_default 131072 default" \
  "transport shm,tcp option" "require 1 option" "fork safe 1 option" "pcap $dir/x.pcapng option"; do
  check "explains: $want" "$said" has "$said" "$want"
done
check "and runs nothing" "$rc" test $rc = 0

# The settings arrive.
status "$RSRUN" -p 5 --send-buffer 9000 --log=warn --fork-safe -- env
for want in RSOCKET_POLLING_TIME=5 RSOCKET_WMEM_DEFAULT=9000 RSOCKET_LOG=warn RDMAV_FORK_SAFE=1 "LD_PRELOAD=$LIB"; do
  check "sets $want" "$said" has "$said" "$want"
done

# A conversation over shared memory, and what --require makes of one that cannot leave TCP.
serve server "$RSRUN" -S "$dir/server"
status limit 30 "$RSRUN" -R -S "$dir/client" "${TALK[@]}" talk "$port" 300 3000
check "--require is content with shared memory" "$said" test $rc = 0
check "which carried the bytes" "$(cat client)" grep -Eq '^bytes.sent.shm [1-9]' client
status limit 30 "$RSRUN" -R -t tcp "${TALK[@]}" talk "$port" 300 3000
check "--require over TCP breaks the connection" "$rc $said" test $rc = 1
check "with an error, not an end" "$said" grep -Eq 'ConnectionResetError|BrokenPipeError' <<<"$said"
stop "$server"
serve server
status limit 60 "$RSRUN" -R --log=warn "${TALK[@]}" talk "$port" 3000 65536
check "--require without a library at the other end too" "$rc $said" test $rc = 1
check "and says why" "$said" has "$said" "rsockets["
stop "$server"
serve server "$RSRUN" -R
status limit 60 "${TALK[@]}" talk "$port" 3000 65536
check "--require at the accepting end" "$rc $said" test $rc = 1
status limit 30 "${TALK[@]}" talk "$port" 2 100
check "a short connection is left alone" "$rc $said" test $rc = 0
stop "$server"

status "$RSRUN" --completions bash
check "completes in bash" "$rc" has "$said" "--polling-time"
exit $BAD
