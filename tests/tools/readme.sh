#!/usr/bin/env bash
# README.md: its commands print what it says, whatever the numbers, and its table has the figures of
# docs/bench.json.
. "$(dirname "$0")/common.sh"
need redis-server redis-benchmark=redis-tools /usr/bin/python3=python3
tmpdir dir
cd "$dir" || exit 1
free_port port
# The first block of its kind: commands behind a `$`, then what they print.
sed -n '/^```console$/,/^```$/p' "$ROOT/README.md" | sed '/^```/d' >block
grep '^\$ ' block | sed "s/^\$ //; s|target/release/rsrun|$RSRUN|; s/7000/$port/" >commands
grep -v '^\$ ' block >wanted
check "has commands and what they print" "$(cat block)" test -s commands -a -s wanted

server=$(sed -n 's/ *&$//p' commands)
check "starts one server" "$(cat commands)" test "$(grep -c '&$' commands)" = 1
# shellcheck disable=SC2086
start pid bash -c "exec ${server%%>*}" >server.log 2>&1
wait_port "$port" "$pid" || die "the server does not listen: $(tail -3 server.log)"
grep -v '&$' commands >rest
limit 120 bash rest >got 2>errors
shape() { sed 's/[0-9][0-9]*/N/g' "$1"; }
check "prints that" "$(cat got errors)" test "$(shape got)" = "$(shape wanted)"
carried() { sed -n "s/^bytes\.sent\.$1 //p" got; }
check "most of it over shared memory" "$(cat got)" test "$(carried shm)" -gt "$((20 * $(carried tcp)))"
stop "$pid"
why=$(ROOT=$ROOT "$PYTHON" "$ROOT/tests/bench/ladder/readme.py" --check 2>&1)
check "its figures are those of docs/bench.json" "$why" test -z "$why"
exit $BAD
