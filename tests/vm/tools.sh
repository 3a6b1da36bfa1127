#!/usr/bin/env bash
# rsrun and rsstat where connections are RDMA's: the ends, the device, the bytes.
. "$(dirname "$0")/guest.sh"
tmpdir tmp
mkdir "$tmp/www" "$tmp/run"
chmod 700 "$tmp/run"
export XDG_RUNTIME_DIR=$tmp/run
# Far more than lies in buffers. The client takes no more as long as nobody reads its output: so
# both are still at it when they are looked for, however long that takes.
head -c 16000000 /dev/urandom >"$tmp/www/file"
mkfifo "$tmp/output"
port=7800
for dev in "${DEVICES[@]}"; do
  addr=$(address "$dev") port=$((port + 1)) before=$(packets "$dev")
  start server "$RSRUN" -t rdma -L "$LIB" "$PYTHON" -m http.server "$port" --bind "$addr" --directory "$tmp/www" >"$tmp/server" 2>&1
  wait_listen "$port" "$server" 40 || { fail "$dev: a server" "$(tail -3 "$tmp/server")"; continue; }
  exec 9<>"$tmp/output"
  start client "$RSRUN" -t rdma -L "$LIB" curl -sS "http://$addr:$port/file" >"$tmp/output" 2>"$tmp/client" 9<&-
  for ((i = 0; i < 300; i++)); do
    said=$("$RSSTAT" -s attached)
    [ "$(grep -c attached <<<"$said")" = 2 ] && break
    alive "$client" || break
    nap 0.1
  done
  check "$dev: both ends are shown" "$said" test "$(grep -c attached <<<"$said")" = 2
  check "$dev: the client's peer" "$said" grep -Eq "curl +$addr:[0-9]+ +$addr:$port +attached +rdma" <<<"$said"
  check "$dev: the server's end" "$said" grep -Eq "python3? +$addr:$port +$addr:[0-9]+ +attached +rdma" <<<"$said"
  # Only RoCE's addresses say which device it is.
  [ "$dev" = siw0 ] || check "$dev: the device" "$said" grep -q "rdma:$dev" <<<"$said"
  exec 8<"$tmp/output" 9<&-
  cat <&8 >"$tmp/got"
  wait "$client"
  exec 8<&-
  check "$dev: the file" "$(tail -3 "$tmp/client")" cmp -s "$tmp/got" "$tmp/www/file"
  check "$dev: by the device" "" test "$(packets "$dev")" -gt "$before"
  stop "$server" INT
done
finish
