#!/usr/bin/env bash
# The packet tap: what tshark makes of it. An HTTP exchange, a file by sendfile, several processes
# in one file.
. "$(dirname "$0")/common.sh"
need curl tshark nginx /usr/bin/python3=python3
tmpdir dir
cd "$dir" || exit 1
mkdir www && head -c 3000000 /dev/urandom >www/big && seq 2000 >www/small.txt
# fields FILE FILTER FIELD... : what tshark sees, a packet a line
fields() {
  local file=$1 filter=$2 f args=()
  shift 2
  for f in "$@"; do args+=(-e "$f"); done
  # Whatever the file says of lengths must hold: a file that is cut short is an error.
  tshark -r "$file" -Y "$filter" -T fields "${args[@]}" 2>>tshark.err
}

free_port port
start server "$RSRUN" -t shm "$PYTHON" -m http.server -d www --bind 127.0.0.1 "$port" >server.log 2>&1
wait_port "$port" "$server" || die "the server does not listen"
limit 60 "$RSRUN" -t shm -P "$dir/client.pcapng" -S "$dir/client" curl -sS -o got "http://127.0.0.1:$port/big"
check "curl gets the file" "$(cmp got www/big 2>&1)" cmp -s got www/big
check "over shared memory" "$(cat client)" grep -Eq '^bytes.received.shm [1-9]' client
said=$(fields client.pcapng http.request http.request.method http.request.uri tcp.dstport)
check "the request" "$said" test "$said" = $'GET\t/big\t'"$port"
said=$(fields client.pcapng http.response http.response.code http.content_length)
check "the response, put together from the whole stream" "$said $(cat tshark.err)" test "$said" = $'200\t3000000'
tshark -r client.pcapng -q --export-objects http,"$dir/objects" >/dev/null 2>>tshark.err
check "its bytes" "$(ls -la objects)" cmp -s objects/big www/big
said=$(fields client.pcapng tcp.analysis.flags frame.number tcp.analysis.flags)
check "nothing lost, nothing twice" "$said" test -z "$said"
said=$(fields client.pcapng 'tcp.flags.syn == 1 || tcp.flags.fin == 1' tcp.flags.str | sed 's/[^A-Z]//g' | tr '\n' ' ')
check "a handshake and two ends" "$said" test "$said" = "S AS AF AF "
check "only this user may read it" "$(stat -c %a client.pcapng)" test "$(stat -c %a client.pcapng)" = 600
stop "$server" INT

# A server that uses sendfile, in processes of its own, one file for all of them; a client without
# the library.
free_port port
cat >nginx.conf <<E2
worker_processes 2; daemon off; pid $dir/nginx.pid; error_log $dir/error.log;
events { worker_connections 64; }
http { sendfile on; access_log off; client_body_temp_path $dir/t1; proxy_temp_path $dir/t2; fastcgi_temp_path $dir/t3;
  uwsgi_temp_path $dir/t4; scgi_temp_path $dir/t5; server { listen 127.0.0.1:$port; root $dir/www; } }
E2
start server "$RSRUN" -P "$dir/server.pcapng" nginx -c "$dir/nginx.conf" -p "$dir" >server.log 2>&1
wait_port "$port" "$server" || die "nginx does not listen: $(cat server.log error.log)"
for i in 1 2 3 4; do limit 30 curl -sS -o "got$i" "http://127.0.0.1:$port/small.txt" -o "more$i" "http://127.0.0.1:$port/small.txt"; done
check "nginx serves" "" cmp -s got4 www/small.txt
stop "$server" QUIT
said=$(fields server.pcapng http.response http.response.code http.content_length | sort | uniq -c | tr -s ' ')
check "eight responses, with what sendfile sent" "$said" test "$said" = " 8 200"$'\t'"$(stat -c %s www/small.txt)"
mkdir objects2
tshark -r server.pcapng -q --export-objects http,"$dir/objects2" >/dev/null 2>>tshark.err
for f in objects2/*; do cmp -s "$f" www/small.txt || fail "what sendfile sent" "$f differs"; done
check "what sendfile sent, all of it" "$(ls objects2)" test "$(ls objects2 | wc -l)" = 8

# IPv6, and a file that cannot be written.
"$PYTHON" -c 'import socket; socket.create_server(("::1", 0), family=socket.AF_INET6)' 2>/dev/null && six=1 || six=0
if [ $six = 1 ]; then
  free_port port
  start server "$PYTHON" -m http.server -d www --bind ::1 "$port" >server.log 2>&1
  wait_port "$port" "$server"
  limit 30 "$RSRUN" -P "$dir/six-%p.pcapng" curl -sS -o got6 "http://[::1]:$port/small.txt"
  said=$(fields six-*.pcapng http.response ipv6.src http.content_length)
  check "IPv6, a file for each process" "$(ls) $said" test "$said" = $'::1\t'"$(stat -c %s www/small.txt)"
  limit 30 "$RSRUN" -P "$dir/nowhere/x" --log=warn curl -sS -o got7 "http://[::1]:$port/small.txt" 2>warned
  check "without its file the program runs" "$(cat warned)" cmp -s got7 www/small.txt
  check "and says so" "$(cat warned)" grep -q "no packets are written" warned
  limit 30 "$RSRUN" -P /dev/full --log=warn curl -sS -o got8 "http://[::1]:$port/small.txt" 2>warned
  check "a full disk does no harm" "$(cat warned)" cmp -s got8 www/small.txt
  stop "$server" INT
else say "SKIP $NAME IPv6: not on this machine"; fi
check "tshark had nothing to complain about" "$(sort -u tshark.err)" test -z "$(grep -v 'Running as user' tshark.err)"
exit $BAD
