#!/usr/bin/env bash
# A privileged program (setuid, setgid, file capabilities) under /etc/ld.so.preload goes by no
# variable of its caller's, writes no file, and attaches nothing. Nor does a program that it starts
# as the other user. /etc is a copy, in a mount namespace of the test's own.
. "$(dirname "$0")/common.sh"
need_cc
need setpriv=util-linux unshare=util-linux setcap=libcap2-bin
if [ "$(id -u)" != 0 ] || ! unshare -m true 2>/dev/null; then
  say "SKIP $NAME all of it: only root can make programs setuid, and a mount namespace"
  exit 0
fi
tmpdir dir
cd "$dir" || exit 1
mkdir lib && cp "$LIB" "$RSOCKET" lib/ && chmod -R a+rX lib
cp -a /etc etc && echo "$dir/lib/librspreload.so" >etc/ld.so.preload
cc -o plain "$HERE/privileged.c" || die "privileged.c does not compile"
cc -DRSOCKETS "-I$ROOT/rsocket-capi/include" -o rsockets "$HERE/privileged.c" -Llib -lrsocket "-Wl,-rpath,$dir/lib" || die "it does not link"
for p in plain rsockets; do
  cp $p $p.setuid && chmod 4755 $p.setuid
  cp $p $p.setgid && chmod 2755 $p.setgid
  cp $p $p.caps && setcap cap_net_bind_service+ep $p.caps
done
user=4711

# as_user NAME PROGRAM [ARG] : the user runs it, and says by variables that files are to be written.
# What it says is in out, and what it leaves in the directory for/NAME. Every user may write there,
# so that nothing but the library's refusal keeps files away.
as_user() {
  local name=$1
  shift
  mkdir -p "for/$name" && chmod 1777 "for/$name" && mkdir -m 700 "for/$name/run" && chown $user "for/$name/run"
  free_port port
  if [[ $1 != rsockets* ]]; then
    start server env "LD_PRELOAD=$LIB" "RSOCKET_STATS=$dir/server.$name" ./plain "$port" serve
    wait_port "$port" "$server" || die "the server does not listen"
  fi
  # shellcheck disable=SC2016
  limit 60 unshare -m sh -c 'mount --bind etc /etc; exec "$@"' - setpriv --reuid=$user --regid=$user --clear-groups env \
    RSOCKET_LOG=debug "RSOCKET_LOG_FILE=$dir/for/$name/log" "RSOCKET_STATS=$dir/for/$name/stats" "RSOCKET_PCAP=$dir/for/$name/pcap" \
    "XDG_RUNTIME_DIR=$dir/for/$name/run" RSOCKET_MEM_DEFAULT=nonsense "$dir/$1" "$port" "${@:2}" >out 2>&1
  rc=$?
  gone_child "$server" 5 || stop "$server"
}
left() { find "for/$1" -type f | sed "s,^for/$1/,," | sort | tr '\n' ' '; }
shm() { awk '$1 == "bytes.sent.shm" { s += $2 } END { print s + 0 }' "server.$1"; }

as_user control plain
check "without privileges: the program ran" "exit $rc: $(cat out)" test "$rc $(tr '\n' ' ' <out)" = "0 secure 0 done "
check "and files are where its user wants them" "$(left control)" test "$(left control)" = "log pcap run/rsocket/looked-at stats "
check "and its connection attached" "$(grep -v ' 0$' server.control)" test "$(shm control)" -gt 0
for how in setuid setgid caps; do
  as_user $how plain.$how
  check "$how: the program ran" "exit $rc: $(cat out)" test "$rc $(tr '\n' ' ' <out)" = "0 secure 1 done "
  check "$how: no file" "$(left $how)" test -z "$(left $how)"
  check "$how: nothing attached" "$(grep -v ' 0$' server.$how)" test "$(shm $how)" = 0
done
for how in setuid setgid; do
  as_user $how.child plain.$how "$dir/plain"
  check "$how, then another program: it ran" "exit $rc: $(cat out)" test "$rc $(tr '\n' ' ' <out)" = "0 secure 1 secure 0 done "
  # An ordinary program may leave what it has looked at, where its user wants such files.
  check "$how, then another program: no file" "$(left $how.child)" test -z "$(left $how.child | sed 's,^run/rsocket/looked-at ,,')"
done
# rsockets: no peer is there to talk to, but the log and the statistics would have been begun.
as_user rsockets.control rsockets
check "rsockets without privileges: the program ran" "exit $rc: $(cat out)" test "$rc $(tr '\n' ' ' <out)" = "0 secure 0 done "
check "rsockets without privileges: a log and statistics" "$(left rsockets.control)" has "$(left rsockets.control)" "log pcap stats "
for how in setuid setgid caps; do
  as_user rsockets.$how rsockets.$how
  check "rsockets, $how: the program ran" "exit $rc: $(cat out)" test "$rc $(tr '\n' ' ' <out)" = "0 secure 1 done "
  check "rsockets, $how: no file" "$(left rsockets.$how)" test -z "$(left rsockets.$how)"
done
exit $BAD
