# shellcheck shell=bash
# What the runner of the generator does with a block of seeds: the reference over TCP, the modes,
# and the judgement of what differs. tests/generator/run sources this file; it says how a mode is
# started (`P_MODE`); `worker` is what it calls.

compile_generator() {
  if [ -n "${RSOCKET_GENERATOR:-}" ]; then
    generator=$RSOCKET_GENERATOR
    return
  fi
  need_cc
  generator=$1
  cc -O2 -Wall -Wextra -Werror -o "$generator" "$here"/{generator,bytes,ready,life,other}.c ||
    die "it does not compile"
}

check_exceptions() {
  local k line
  while read -r k line; do
    [ "$k" = '#' ] || grep -qF "$line" "$ROOT/docs/limits.md" ||
      die "docs/limits.md does not say: $line"
  done <"$here/exceptions"
}

# generate WITH... -- ARG... : what the generator writes, started by WITH..., the other process as
# well where there is one.
generate() {
  local with=() other=() pid=0 rc
  while [ "$1" != -- ]; do with+=("$1") && shift; done
  shift
  if [ "$apart" = 1 ]; then
    rm -f "$dir/door"
    limit 300 "${with[@]}" "$generator" other "$dir/door" &
    pid=$! other=(-o "$dir/door")
  fi
  limit 300 "${with[@]}" "$generator" "$@" "${flag[@]}" "${strict[@]}" "${other[@]}"
  rc=$?
  [ $pid = 0 ] || wait $pid
  return $rc
}
# both SEED KEEP : the two outcomes
outcome() { generate "${@:1:$#-2}" -- replay "${@: -2:1}" -k "${@: -1}"; }
both() {
  outcome env "$1" "$2" >"$dir/a"
  outcome "${P[@]}" "$1" "$2" >"$dir/b"
}
differs() { both "$1" "$2"; ! cmp -s "$dir/a" "$dir/b"; }
# excepted : what differs in the last two outcomes stands behind a line of a kind that is excepted.
excepted() {
  local line
  line=$(cmp "$dir/a" "$dir/b" | sed -n 's/.*line \([0-9]*\)$/\1/p')
  head -n "$((${line:-1} - 1))" "$dir/a" | sed -n 's/^[0-9]* kind //p' |
    grep -qxF -f <(sed -n 's/^\([a-z_]*\) .*/\1/p' "$here/exceptions")
}
# shrink SEED : KEEP, the calls without which the difference is gone
shrink() {
  local keep=11111111111111111111 before='' i try
  until [ "$keep" = "$before" ]; do
    before=$keep
    for ((i = 19; i >= 0; i--)); do
      try=${keep:0:i}0${keep:i+1}
      [ "$try" != "$keep" ] && differs "$1" "$try" && ! excepted && keep=$try
    done
  done
  echo "$keep"
}
# In one piece, whichever other worker is writing.
aloud() { flock "$work" cat "$dir/said"; }

judge() {
  local seed=$1 keep='' name
  name="seed $seed${told[*]:+ ${told[*]}}"
  for _ in 1 2 3; do
    differs "$seed" '' && continue
    unsteady=$((unsteady + 1))
    say "unsteady generator $MODE $name"
    return
  done
  if excepted; then excepted=$((excepted + 1)) && return; fi
  bad=$((bad + 1)) shrunk=$((shrunk + 1))
  if [ "$shrunk" -le "$SHRUNK" ]; then
    keep=$(shrink "$seed")
    both "$seed" "$keep"
  fi
  {
    fail "$name" "generator replay $seed ${flag[*]} ${strict[*]} -k ${keep:-1}"
    [ -z "$keep" ] || diff -y -W 150 "$dir/a" "$dir/b"
  } >"$dir/said"
  aloud
}

# in_mode MODE FIRST COUNT : the block in this mode. What TCP says is kept for the next mode. In
# mode shm the generator leaves out what TCP alone can do, so that mode has a reference of its own.
in_mode() {
  local seed reference bad=0 excepted=0 unsteady=0
  MODE=$1 strict=()
  declare -n prefix=P_$1
  P=("${prefix[@]}")
  unset -n prefix
  [ "$MODE" != shm ] || strict=(-s)
  reference=$dir/plain${strict[*]}
  if [ ! -e "$reference" ] && ! generate env -- run "$2" "$3" >"$reference"; then
    fail "over TCP" "exit $?, after $(tail -1 "$reference")"
    return
  fi
  generate "${P[@]}" -- run "$2" "$3" >"$dir/ours" ||
    fail "the run" "exit $?, after $(tail -1 "$dir/ours")"
  for seed in $(different "$reference" "$dir/ours"); do judge "$seed"; done
  echo "$MODE $3 $bad $excepted $unsteady" >>"$work/counts"
}
# different A B : the seeds whose lines are not the same
different() {
  cmp -s "$1" "$2" || diff "$1" "$2" | sed -n 's/^[<>] \([0-9]*\) .*/\1/p' | sort -nu
}

# worker W : every JOBS-th block, in all modes.
worker() {
  local dir=$work/$1 at n m shrunk=0
  mkdir -p "$dir"
  for ((at = first + BLOCK * $1; at < first + count; at += BLOCK * jobs)); do
    n=$((first + count - at))
    [ $n -le $BLOCK ] || n=$BLOCK
    rm -f "$dir"/plain*
    for m in $modes; do in_mode "$m" "$at" "$n"; done
  done
  return $BAD
}
