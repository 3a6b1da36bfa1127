#!/usr/bin/env bash
# What inherits a connection in the midst of a transfer, by exec as from inetd or as a message over
# a UNIX socket. The heir has the library or has it not. Bytes are on their way in both directions,
# and all of them arrive.
. "$(dirname "$0")/common.sh"
need_cc
need socat busybox=busybox-static /usr/bin/python3=python3 setcap=libcap2-bin setpriv=util-linux
size=6000000 many=6
[ "$QUICK" = 1 ] && size=1500000 many=3
tmpdir work
chmod 755 "$work"
cc -O2 -Wall -Wextra -Werror -o "$work/inherit" "$HERE/inherit.c" || die "inherit.c does not compile"
cc -O2 -Wall -Wextra -Werror -o "$work/mail" "$HERE/mail.c" || die "mail.c does not compile"
cc -O2 -Wall -Wextra -Werror -static -o "$work/mail.static" "$HERE/mail.c" || die "mail.c does not compile without libraries"
cc -O2 -Wall -Wextra -Werror -o "$work/raw" "$HERE/rawcat.c" && cc -O2 -Wall -Wextra -Werror -DPRINTS -o "$work/raw.prints" "$HERE/rawcat.c" ||
  die "rawcat.c does not compile"
printf '#!%s\n' "$work/raw" >"$work/raw.script"
busybox=$(command -v busybox)
file -L "$busybox" 2>/dev/null | grep -q dynamically && die "busybox is not static"
printf '#!%s sh\nexec %s cat\n' "$busybox" "$busybox" >"$work/static.script"
printf 'exec cat\n' >"$work/no.interpreter"
for copy in setuid setgid capable; do cp "$(command -v cat)" "$work/$copy"; done
chmod 755 "$work"/*
# Another user's program, so that executing it changes the user; and one that gains something, for a
# user without it.
user=23456 as=()
if [ "$(id -u)" = 0 ]; then
  chown $user:$user "$work/setuid" "$work/setgid"
  as=(setpriv --reuid=$user --regid=$user --clear-groups)
fi
chmod 4755 "$work/setuid"
chmod 2755 "$work/setgid"
capable=1
as_root env PATH="$PATH:/usr/sbin:/sbin" setcap cap_net_bind_service=ep "$work/capable" 2>/dev/null || capable=0

# serve NAME CLIENT-WORDS COMMAND... : starts the server, asks it, ends it.
serve() {
  local name=$1 words=$2 server rc
  shift 2
  free_port port
  start server "${P[@]}" "${@//PORT/$port}" >"$dir/server.log" 2>&1
  wait_port "$port" "$server" || { fail "$name" "it does not listen: $(tail -3 "$dir/server.log")"; return; }
  # shellcheck disable=SC2086
  limit 120 "${P[@]}" "$PYTHON" "$HERE/echo_client.py" "$port" $many $size $words >"$dir/out" 2>&1
  rc=$?
  check "$name" "exit $rc: $(tail -2 "$dir/out") $(tail -2 "$dir/server.log")" same $rc 0
  stop "$server" TERM || fail "$name" "the server did not end"
}
# becomes NAME PROGRAM... : right after accept, and when the connection has gone where such
# connections go.
becomes() {
  local name=$1 blocks
  shift
  for blocks in 0 30; do serve "exec after $blocks blocks: $name" "$blocks across" "$work/inherit" PORT exec "$@"; done
}
# left_tcp NAME COMMAND... : the command's connections leave TCP, which shows that the receivers
# know them.
left_tcp() {
  local name=$1 before after
  shift
  before=$(stat_sum bytes.sent.shm "$STATS")
  "$@"
  [ "$MODE" = tcp ] && return
  after=$(stat_sum bytes.sent.shm "$STATS")
  check "$name: by shared memory" "$((after - before)) bytes of $((2 * many * size)); $(stat_reasons "$STATS")" [ $((after - before)) -gt $((many * size)) ]
}
for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  [ "$m" = tcp ] || chmod 777 "$STATS"
  becomes "a program with the library" cat
  becomes "a shell with the library" sh -c 'exec cat'
  left_tcp "passed at once" serve "passed by message to workers" "" "$work/mail" PORT connections "$work/mail"
  left_tcp "listener passed" serve "workers get the listening socket by message" "" "$work/mail" PORT listener "$work/mail"
  if [ "$m" != shm ]; then  # without the library there is only TCP
    becomes "a static program" "$busybox" cat
    becomes "a program with system calls of its own" "$work/raw"
    becomes "one that imports libc's as well" "$work/raw.prints"
    becomes "a script whose interpreter has system calls of its own" "$work/raw.script"
    becomes "a cleared environment" env -i cat
    becomes "a script whose interpreter is static" "$work/static.script"
    becomes "a script without an interpreter" "$work/no.interpreter"
    becomes "a program that changes its user" "$work/setuid"
    becomes "a program that changes its group" "$work/setgid"
    if [ $capable = 1 ]; then
      serve "exec after 30 blocks: a program with capabilities" "30 across" "${as[@]}" "$work/inherit" PORT exec "$work/capable"
    else
      say "SKIP $NAME $m a program with capabilities: this file system has none"
    fi
    serve "socat EXEC: on the connection itself: a static program" "" \
      socat "TCP-LISTEN:PORT,bind=127.0.0.1,fork,backlog=64" EXEC:"$busybox cat",nofork
    serve "passed by message to workers without the library" "" "$work/mail" PORT connections "$work/mail.static"
    serve "passed after 30 blocks to workers" "30 across" env MAIL_BLOCKS=1 "$work/mail" PORT connections "$work/mail"
    serve "passed after 30 blocks to workers without the library" "30 across" env MAIL_BLOCKS=1 "$work/mail" PORT connections "$work/mail.static"
  fi
  carried
done
exit $BAD
