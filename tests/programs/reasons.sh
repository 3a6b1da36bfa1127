#!/usr/bin/env bash
# Why a connection is on TCP, at both ends: each reason is provoked at either end, and the
# statistics of both processes name it.
. "$(dirname "$0")/common.sh"
need /usr/bin/python3=python3
need setpriv=util-linux unshare=util-linux
MODE=default
[ -f "$LIB" ] || build_lib
tmpdir T
chmod 755 "$T"
cp "$LIB" "$HERE/reasons.py" "$T/"
chmod a+rx "$T"/*
HERE_LIB=$T/$(basename "$LIB")
LOADED=(env "LD_PRELOAD=$HERE_LIB")
PLAIN=(env)
NOBODY=(setpriv --reuid=65534 --regid=65534 --clear-groups env "LD_PRELOAD=$HERE_LIB")

# named END WANTED : the end's statistics have each of these lines; "-" is an end without the
# library.
named() {
  local want
  [ "$2" = - ] && return
  for want in ${2//,/ }; do
    check "$name: the end that $1 names ${want#on_tcp.}" "$(stat_reasons "$T/$1")" test "$(stat_sum "on_tcp.$want" "$T/$1")" -ge 1
  done
}

# reason NAME SERVER(array) HOW WANTED CLIENT(array) HOW WANTED
reason() {
  local name=$1 port server
  local -n serves=$2 asks=$5
  rm -rf "$T/serves" "$T/asks" "$T/said"
  mkdir -m 777 "$T/serves" "$T/asks"
  "${serves[@]}" "RSOCKET_STATS=$T/serves/%p" "$PYTHON" "$T/reasons.py" serve "$3" >"$T/said" 2>&1 &
  server=$!
  for ((i = 0; i < 3000; i++)); do [ -s "$T/said" ] && break; nap 0.02; done
  read -r port <"$T/said"
  limit 20 "${asks[@]}" "RSOCKET_STATS=$T/asks/%p" "$PYTHON" "$T/reasons.py" ask "$6" "$port" >"$T/asked" 2>&1
  gone_child "$server" 10 || kill "$server"
  named serves "$4"
  named asks "$7"
}

for SIX in "" 1; do
  export SIX
  v=${SIX:+IPv6 }
  for how in "option odd_option,odd_option.SO_TIMESTAMPING" "peek-off odd_option,odd_option.SO_PEEK_OFF" \
    "stamps odd_option,odd_option.SO_TIMESTAMP" "async odd_use" "zerocopy odd_use" "sandbox sandboxed"; do
    read -r what wanted <<<"$how"
    reason "$v$what in the server" LOADED "$what" "$wanted" LOADED none "$wanted"
    reason "$v$what in the client" LOADED none "$wanted" LOADED "$what" "$wanted"
  done
done
unset SIX
reason "an option from the start in the server" LOADED first:option odd_option,odd_option.SO_TIMESTAMPING LOADED none offer_lapsed
reason "an option from the start in the client" LOADED none no_offer LOADED first:option odd_option,odd_option.SO_TIMESTAMPING
reason "a server without the library" PLAIN none - LOADED none offer_lapsed
reason "a client without the library" LOADED none no_offer PLAIN none -
reason "a connection of few bytes" LOADED none too_young LOADED short too_young
NOT_HERE=(env "LD_PRELOAD=$HERE_LIB" RSOCKET_TRANSPORT=tcp)
reason "a server that is to use TCP" NOT_HERE none policy_tcp LOADED none offer_lapsed
reason "a client that is to use TCP" LOADED none no_offer NOT_HERE none policy_tcp
if [ "$(id -u)" = 0 ]; then
  # Of the user nobody's connections the other end knows nothing but what both ends know of the
  # handshake; here the program has that.
  reason "a server of user nobody" NOBODY syn user_nobody LOADED none offer_lapsed
  reason "a client of user nobody" LOADED syn user_nobody NOBODY none offer_lapsed
  reason "both of user nobody" NOBODY syn user_nobody NOBODY none offer_lapsed
  # User and pid namespaces, in which uids and pids mean something else, or nothing.
  OTHER=(setpriv --reuid=4711 --regid=4711 --clear-groups env "LD_PRELOAD=$HERE_LIB")
  SPACE=(unshare -Urpf --mount-proc env "LD_PRELOAD=$HERE_LIB")
  pairs=("NOBODY LOADED" "LOADED NOBODY" "NOBODY NOBODY")
  if unshare -Urpf --mount-proc true 2>/dev/null; then
    pairs+=("SPACE LOADED" "LOADED SPACE" "SPACE SPACE" "SPACE OTHER" "OTHER SPACE")
  else
    say "SKIP $NAME namespaces: not permitted here"
  fi
  for ends in "${pairs[@]}"; do
    read -r one other <<<"$ends"
    reason "$ends" "$one" none - "$other" none -
    check "whom the kernel does not name ($ends): attaches" "$(stat_reasons "$T/serves") $(stat_reasons "$T/asks")" \
      test "$(stat_sum bytes.sent.shm "$T/serves")" -ge 60000
  done
else
  say "SKIP $NAME other users: only root can be user nobody"
fi
exit $BAD
