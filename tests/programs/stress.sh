#!/usr/bin/env bash
# Processes and threads that fork, exec, duplicate, pass, read, write, shut down and kill each other
# at random on one set of connections (stress.c). Every byte is checked. `tests/programs/stress.sh
# [MODE...]`; STRESS_SECONDS=300 is the long form, STRESS_SEED repeats a run as far as the machine
# lets it.
. "$(dirname "$0")/common.sh"
need_cc
tmpdir work
cc -O2 -Wall -Wextra -Werror -pthread -o "$work/stress" "$HERE/stress.c" || die "stress.c does not compile"
seconds=${STRESS_SECONDS:-$([ "$QUICK" = 1 ] && echo 10 || echo 24)}
seed=${STRESS_SEED:-$RANDOM}
for m in $(modes_of "$@"); do
  mode "$m"
  library=$LIB time=$seconds
  # Without the library only the test itself is tested: a quarter is enough to have met every act of
  # it.
  [ "$m" = tcp ] && library=- time=$(((seconds + 3) / 4))
  attach=lazy
  [ "$m" = eager ] && attach=eager
  RSOCKET_ATTACH=$attach RSOCKET_STATS="$STATS/%p" RSOCKET_LOG=warn RSOCKET_LOG_FILE="$work/log" limit $((time + 120)) \
    "$work/stress" run "$time" "$seed" "$library" >"$work/out" 2>"$work/err"
  rc=$?
  if [ $rc = 0 ]; then ok "seed $seed, $time s: $(head -1 "$work/out")"
  else fail "seed $seed, $time s" "exit $rc: $(cat "$work/out") $(tail -2 "$work/err") $(tail -2 "$work/log" 2>/dev/null)"; fi
  carried
done
exit $BAD
