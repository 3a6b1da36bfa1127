#!/usr/bin/env bash
# OpenSSH: sshd started by hand; commands, their exit codes and both streams, and files by scp both
# ways. The server forks, becomes another program for each connection, locks itself up in a sandbox
# and passes descriptors around.
. "$(dirname "$0")/common.sh"
need sshd=openssh-server ssh=openssh-client scp=openssh-client ssh-keygen=openssh-client
size=256
[ "$QUICK" = 1 ] && size=24

for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  chmod 700 "$dir"
  free_port port
  # Where privileges are separated, by root only; the daemon insists on the directory.
  [ "$(id -u)" != 0 ] || mkdir -p /run/sshd
  ssh-keygen -q -t ed25519 -N '' -f "$dir/host" && ssh-keygen -q -t ed25519 -N '' -f "$dir/user" && cp "$dir/user.pub" "$dir/keys" ||
    { fail keys "no keys"; continue; }
  cat >"$dir/sshd.conf" <<CONF
Port $port
ListenAddress 127.0.0.1
HostKey $dir/host
AuthorizedKeysFile $dir/keys
PidFile none
UsePAM no
StrictModes no
PermitRootLogin yes
MaxStartups 50
Subsystem sftp internal-sftp
CONF
  cat >"$dir/ssh.conf" <<CONF
Host box
  HostName 127.0.0.1
  Port $port
  User $(id -un)
  IdentityFile $dir/user
  IdentitiesOnly yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  BatchMode yes
  LogLevel ERROR
CONF
  # The daemon wants to know its own path.
  start server "${P[@]}" "$(command -v sshd)" -D -e -f "$dir/sshd.conf" >"$dir/server.log" 2>&1
  wait_port "$port" "$server" || { fail start "$(tail -3 "$dir/server.log")"; continue; }
  remote() { limit 120 "${P[@]}" ssh -F "$dir/ssh.conf" box "$@"; }

  out=$(remote 'cat; echo to-stderr >&2; exit 7' <<<'a line' 2>"$dir/err")
  rc=$?
  check "a command: both streams and the exit code" "exit $rc, <$out>, <$(tail -2 "$dir/err")> $(tail -2 "$dir/server.log")" \
    same "$rc $out $(cat "$dir/err")" "7 a line to-stderr"

  head -c ${size}M /dev/urandom >"$dir/file"
  want=$(sha256sum <"$dir/file")
  got=$(remote sha256sum <"$dir/file" 2>"$dir/err")
  check "$size MiB into a command" "$got $(tail -2 "$dir/err")" same "$got" "$want"
  got=$(remote "cat $dir/file" 2>"$dir/err" | sha256sum)
  check "$size MiB out of a command" "$got $(tail -2 "$dir/err")" same "$got" "$want"
  for how in -s -O; do
    limit 240 "${P[@]}" scp -q $how -F "$dir/ssh.conf" "$dir/file" "box:$dir/there$how" >"$dir/err" 2>&1 &&
      limit 240 "${P[@]}" scp -q $how -F "$dir/ssh.conf" "box:$dir/there$how" "$dir/back$how" >>"$dir/err" 2>&1
    rc=$?
    check "scp $how, $size MiB there and back" "exit $rc: $(cmp "$dir/file" "$dir/back$how" 2>&1) $(tail -2 "$dir/err")" \
      cmp -s "$dir/file" "$dir/back$how"
    rm -f "$dir/there$how" "$dir/back$how"
  done

  # Several at a time, each with its own process at the other end.
  pids=() bad=0
  for i in 1 2 3 4 5 6; do
    remote "head -c ${i}000000 $dir/file; echo done-$i" >"$dir/out.$i" 2>"$dir/err.$i" &
    pids+=($!)
  done
  for i in 1 2 3 4 5 6; do
    wait "${pids[i - 1]}" && cmp -s <(head -c ${i}000000 "$dir/file"; echo done-$i) "$dir/out.$i" || bad=$((bad + 1))
  done
  check "six sessions side by side" "$bad of 6 are wrong: $(cat "$dir"/err.*)" same $bad 0

  stop "$server" TERM || fail stop "sshd did not end"
  carried
done
exit $BAD
