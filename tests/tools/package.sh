#!/usr/bin/env bash
# scripts/install and the Debian package: installed in a throw-away root, used there, removed
# without a trace.
. "$(dirname "$0")/common.sh"
need curl nginx tshark gcc pkg-config unshare=util-linux man=man-db
tmpdir dir
cd "$dir" || exit 1

# listing DIR : every file and directory below it, with its mode.
listing() { (cd "$1" && find . -printf '%M %p\n' | sort); }

mkdir stage
DESTDIR=$dir/stage "$ROOT/scripts/install" --no-build --prefix /opt/rs >said 2>&1
# What the dynamic linker means by $LIB, without asking the linker that scripts/install asks.
lib=$(dirname "$(ldd /bin/sh | sed -n 's,.* => /\(usr/\)\?\(lib.*/libc.so.6\) .*,\2,p')")
check "installs below DESTDIR" "$(cat said)" test -x stage/opt/rs/bin/rsrun -a -f "stage/opt/rs/$lib/rsocket/librspreload.so"
for f in share/man/man1/rsrun.1.gz share/man/man1/rsstat.1.gz include/rdma/rsocket.h "$lib/pkgconfig/rsocket.pc" \
  share/bash-completion/completions/rsrun share/zsh/site-functions/_rsstat share/fish/vendor_completions.d/rsrun.fish \
  "$lib/rsocket/librsocket.so"; do
  check "installs $f" "$(find stage -name "${f##*/}")" test -s "stage/opt/rs/$f"
done
check "samples" "" test -s stage/etc/rdma/rsocket/samples/polling_time
check "rsrun finds the library there" "$(stage/opt/rs/bin/rsrun -e 2>&1)" \
  has "$(stage/opt/rs/bin/rsrun -e 2>&1)" "$dir/stage/opt/rs/$lib/rsocket/librspreload.so"
bash -n stage/opt/rs/share/bash-completion/completions/rsrun
check "the completions are bash" "" test $? = 0
DESTDIR=$dir/stage "$ROOT/scripts/install" --uninstall --prefix /opt/rs >said 2>&1
check "and removes all of it" "$(find stage -type f)" test -z "$(find stage -type f)"

if [ "$QUICK" = 1 ] && ! command -v cargo-deb >/dev/null && [ ! -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo-deb" ]; then
  say "SKIP $NAME the package: cargo-deb would have to be built first"
  exit $BAD
fi
if ! deb=$("$ROOT/scripts/package" --no-build 2>package.err) || [ ! -f "$deb" ]; then
  fail "cargo-deb makes a package" "$(tail -5 package.err)"
  exit 1
fi
ok "cargo-deb makes a package"
dpkg-deb -c "$deb" >contents
check "its programs can be executed, its libraries cannot" "$(cat contents)" \
  test "$(awk '/bin\/rs|\.so$/ { print $1 }' contents | sort | tr '\n' ' ')" = "-rw-r--r-- -rw-r--r-- -rwxr-xr-x -rwxr-xr-x "

# A root that is this machine's, until something is written to it.
cat >root.sh <<'SH'
set -e
mount -t tmpfs none "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
for d in proc dev sys tmp run; do mkdir -p "$1/root/$d"; done
mount --rbind /dev "$1/root/dev"
mount -t proc none "$1/root/proc"
mount -t tmpfs none "$1/root/tmp" && mount -t tmpfs none "$1/root/run"
ip link set lo up
cp "$2" "$1/root/tmp/rsocket.deb"
cp "$3" "$1/root/tmp/inside.sh"
exec chroot "$1/root" bash /tmp/inside.sh
SH
# As a new user would. Every line that begins with a word in capitals is looked at below.
cat >inside.sh <<'SH'
export HOME=/tmp PATH=/usr/sbin:/usr/bin:/sbin:/bin XDG_RUNTIME_DIR=/run LC_ALL=C
unset RSOCKET_LIB RSOCKET_TOOLS LD_PRELOAD
chmod 1777 /tmp
cd /tmp
tree() { find /usr /etc /lib /bin /sbin -xdev \( -name '*rsocket*' -o -name 'rsrun*' -o -name 'rsstat*' -o -name 'librspreload*' \) | sort; }
tree >before
dpkg -i rsocket.deb && echo INSTALLED
echo "WHERE $(rsrun -e | awk '$1 == "library" { print $2 }')"
for page in "1 rsrun" "1 rsstat"; do set -- $page; man -w "$1" "$2" >/dev/null && echo "PAGE $2"; done
# Curl has attached before it asks for the file. Nobody reads that before rsstat has looked, and
# it is more than the kernel's buffers and ours hold.
mkdir www && head -c 50000000 /dev/urandom >www/file && head -c 1000 /dev/urandom >www/small
cat >nginx.conf <<E2
daemon off; user www-data; pid /tmp/nginx.pid; error_log /tmp/error.log; events { }
http { access_log off; keepalive_requests 100000; client_body_temp_path /tmp/a; proxy_temp_path /tmp/b; fastcgi_temp_path /tmp/c;
  uwsgi_temp_path /tmp/d; scgi_temp_path /tmp/e; server { listen 127.0.0.1:8080; root /tmp/www; } }
E2
rsrun nginx -c /tmp/nginx.conf -p /tmp & server=$!
for i in $(seq 200); do curl -s -o /dev/null http://127.0.0.1:8080/ && break; sleep 0.05; done
mkfifo output
exec 9<>output
small=""
for i in $(seq 40); do small="$small -o got2 http://127.0.0.1:8080/small"; done
rsrun --pcap c.pcapng -S stats curl -s $small -o output http://127.0.0.1:8080/file 9<&- & client=$!
for i in $(seq 200); do rsstat >seen; grep -q "curl.*attached.*shm" seen && grep -q "nginx.*attached.*shm" seen && break; sleep 0.05; done
sed 's/^/RSSTAT /' seen
# As much as there is: curl may still be at the small ones, and without a writer it would be the end.
head -c 50000000 <&9 >got
exec 9<&-
wait $client && cmp got www/file && cmp got2 www/small && echo SAME
grep -E '^bytes.received.shm [1-9]' stats | sed 's/^/STATS /'
tshark -r c.pcapng -Y http.response -T fields -e http.response.code 2>/dev/null | sed 's/^/HTTP /'
kill -QUIT $server; wait $server
cat >x.c <<'C'
#include <rdma/rsocket.h>
int main(void) { return rsocket(2, 1, 0) < 0; }
C
PKG_CONFIG_PATH=$(dirname "$(dpkg -L rsocket | grep 'rsocket.pc$')") sh -c 'gcc x.c $(pkg-config --cflags --libs rsocket) -o x' && ./x && echo COMPILED
dpkg -P rsocket >/dev/null && echo REMOVED
tree >after
diff before after && echo CLEAN
SH
mkdir ns
if [ "$(id -u)" = 0 ]; then u=(unshare -mnp --fork --kill-child); else u=(unshare -Urmnp --fork --kill-child); fi
if ! "${u[@]}" sh -c "mount -t tmpfs none ns && mkdir ns/u ns/w ns/r && mount -t overlay overlay -o lowerdir=/,upperdir=ns/u,workdir=ns/w ns/r" 2>/dev/null; then
  say "SKIP $NAME the package in a throw-away root: no overlay can be mounted here"
  exit $BAD
fi
limit 300 "${u[@]}" sh root.sh "$dir/ns" "$deb" "$dir/inside.sh" >said 2>&1
said=$(cat said)
check "dpkg installs it beside rdma-core's" "$said" grep -q '^INSTALLED' said
check "rsrun finds its library" "$said" grep -Eq '^WHERE /usr/lib/[^/]*/rsocket-rs/librspreload.so' said
check "manual pages" "$said" test "$(grep -c '^PAGE' said)" = 2
check "rsstat sees curl and nginx" "$said" test "$(grep -Ec '^RSSTAT .*(curl|nginx).*attached +shm' said)" -ge 2
check "the files arrive" "$said" grep -q '^SAME' said
check "over shared memory" "$said" grep -q '^STATS' said
check "tshark reads the capture" "$said" test "$(grep -c '^HTTP 200' said)" = 41
check "a program compiles with pkg-config, and runs" "$said" grep -q '^COMPILED' said
check "removed" "$said" grep -q '^REMOVED' said
check "without a trace" "$said" grep -q '^CLEAN' said
check "nothing of it outside" "$(dpkg -l rsocket 2>&1 | tail -1)" test -z "$(dpkg -l rsocket 2>/dev/null | grep '^ii')"
exit $BAD
