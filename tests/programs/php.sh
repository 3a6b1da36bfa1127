#!/usr/bin/env bash
# PHP, whose extensions are loaded with RTLD_DEEPBIND, past the hooks: 200 MB by ext-curl. Also a
# stream of PHP's own that is handed to ext-sockets when it has left TCP, and back.
. "$(dirname "$0")/common.sh"
need php=php-cli
php -m | grep -qx curl || apt_install php-curl
size=$((200 << 20))

for m in $(modes_of "$@"); do
  mode "$m"
  tmpdir dir
  head -c $size /dev/urandom >"$dir/file"
  want=$(sha256sum <"$dir/file" | cut -d' ' -f1)
  free_port port
  start server "${P[@]}" "$PYTHON" "$ROOT/tests/programs/php_server.py" "$dir/file" "$port" >"$dir/server.log" 2>&1
  wait_port "$port" "$server" || { fail start "$(tail -3 "$dir/server.log")"; continue; }

  got=$(limit 120 "${P[@]}" php -r '
    $c = curl_init("http://127.0.0.1:" . $argv[1] . "/");
    curl_setopt($c, CURLOPT_RETURNTRANSFER, true);
    echo hash("sha256", curl_exec($c));' "$port" 2>&1)
  check "200 MB by ext-curl" "$got" same "$got" "$want"
  if [ "$MODE" != tcp ]; then
    curl=$(stat_sum bytes.received.shm "$STATS")
    check "they left TCP: $curl bytes" "$(stat_reasons "$STATS")" test "$curl" -gt $((size / 10))
    check "slots were rebound" "none" test "$(stat_sum deepbind.rebound "$STATS")" -gt 0
    check "and none was left" "some were" same "$(stat_sum deepbind.left "$STATS")" 0
  fi

  got=$(limit 120 "${P[@]}" php -r '
    function must($yes, $what) { if (!$yes) { echo $what; exit(1); } }
    $s = stream_socket_client("tcp://127.0.0.1:" . $argv[1]);
    stream_set_read_buffer($s, 0);
    fwrite($s, "ECHO\n");
    function by_stream($s, $i) {
      $m = str_repeat(chr(97 + $i % 26), 1000); $got = "";
      must(fwrite($s, $m) === 1000, "fwrite");
      while (strlen($got) < 1000) { $more = fread($s, 1000 - strlen($got)); must($more !== false && $more !== "", "fread"); $got .= $more; }
      must($got === $m, "stream: other bytes");
    }
    for ($i = 0; $i < 100; $i++) by_stream($s, $i);
    $k = socket_import_stream($s);
    for ($i = 0; $i < 100; $i++) {
      $m = str_repeat(chr(65 + $i % 26), 1000);
      must(socket_send($k, $m, 1000, 0) === 1000, "socket_send");
      must(socket_recv($k, $got, 1000, MSG_WAITALL) === 1000 && $got === $m, "socket_recv");
      by_stream($s, $i);
    }
    $r = [$k]; $w = $e = null;
    must(socket_send($k, "x", 1, 0) === 1 && socket_select($r, $w, $e, 20) === 1, "socket_select");
    must(socket_read($k, 10) === "x", "socket_read");
    echo "done";' "$port" 2>&1)
  check "a stream handed to ext-sockets" "$got" same "$got" "done"
  stop "$server" INT || fail stop "the server did not end"
  carried
done
exit $BAD
