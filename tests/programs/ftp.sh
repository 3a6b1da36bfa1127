#!/usr/bin/env bash
# FTP: proftpd accepts a passive data connection only when the client, which has connected, has
# asked for the file. curl fetches one, stores one and lists the directory, by EPSV and by PASV.
. "$(dirname "$0")/common.sh"
need /usr/sbin/proftpd=proftpd-core curl=curl openssl=openssl
# Large, so that the peers have met before the end of it on a machine that is busy, too.
size=$((32 << 20))

# configure DIR PORT : a server of one user, whose home is DIR/home.
configure() {
  local dir=$1 uid=65533
  [ "$(id -u)" = 0 ] || uid=$(id -u)
  mkdir "$dir/home"
  head -c $size /dev/urandom >"$dir/home/data"
  printf 'ftper:%s:%d:%d::%s/home:/bin/sh\n' "$(openssl passwd -1 secret)" "$uid" "$uid" "$dir" >"$dir/passwd"
  chmod 600 "$dir/passwd"
  chmod 755 "$dir" "$dir/home"
  [ "$(id -u)" != 0 ] || chown -R $uid:$uid "$dir/home"
  cat >"$dir/conf" <<END
ServerName test
ServerType standalone
DefaultServer on
DefaultAddress 127.0.0.1
UseIPv6 off
UseReverseDNS off
Port $2
User $(id -un)
Group $(id -gn)
ScoreboardFile $dir/scoreboard
PidFile $dir/pid
SystemLog $dir/log
WtmpLog off
TransferLog none
AuthUserFile $dir/passwd
AuthOrder mod_auth_file.c
RequireValidShell off
AllowOverwrite on
END
}

for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  free_port port
  configure "$dir" "$port"
  start server "${P[@]}" /usr/sbin/proftpd -n -q -c "$dir/conf" >"$dir/said" 2>&1
  wait_port "$port" "$server" || { fail start "$(tail -3 "$dir/said" "$dir/log")"; continue; }
  at=ftp://ftper:secret@127.0.0.1:$port
  for how in --epsv --disable-epsv; do
    told=$(limit 60 "${P[@]}" curl -sS $how -o "$dir/got" "$at/data" 2>&1)
    check "a file is fetched, $how" "$told" cmp -s "$dir/got" "$dir/home/data"
    told=$(limit 60 "${P[@]}" curl -sS $how -T "$dir/got" "$at/stored" 2>&1)
    check "a file is stored, $how" "$told" cmp -s "$dir/got" "$dir/home/stored"
    told=$(limit 60 "${P[@]}" curl -sS $how "$at/" 2>&1)
    check "a list, $how" "$told" test "$(grep -c 'data$\|stored$' <<<"$told")" = 2
    rm -f "$dir/got" "$dir/home/stored"
  done
  stop "$server" || fail stop "the server did not end"
  carried
done
exit $BAD
