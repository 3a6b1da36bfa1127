#!/usr/bin/env bash
# docs/containers.md: what it gives to copy is understood by the programs that it is for. Its podman
# line is run by scripts/demo containers.
. "$(dirname "$0")/common.sh"
MODE=tcp
need systemd-analyze=systemd systemd-tmpfiles=systemd
"$PYTHON" -c 'import yaml' 2>/dev/null || apt_install python3-yaml
[ "$(id -u)" = 0 ] || exec sudo -n -E "$0" "$@"
page=$ROOT/docs/containers.md
tmpdir dir

# block FILE : what the page has for that file, without its first line, which says so.
block() { sed -n "\\|^# file: .*$1\$|,/^\`\`\`\$/p" "$page" | sed '1d;$d' | grep .; }

block rsocket-meet.conf >"$dir/rsocket-meet.conf"
mkdir "$dir/root"
out=$(systemd-tmpfiles --root="$dir/root" --create "$dir/rsocket-meet.conf" 2>&1)
check "the directory is made" "$out" same "$(stat -c '%a %F' "$dir/root/run/rsocket/meet" 2>&1)" \
  "1777 directory"

# A unit as Debian's of redis, and the drop-in.
mkdir -p "$dir/units/redis-server.service.d"
cat >"$dir/units/redis-server.service" <<'UNIT'
[Unit]
Description=a hardened service
[Service]
ExecStart=/bin/true
DynamicUser=yes
ProtectSystem=strict
PrivateTmp=yes
PrivateUsers=yes
ProtectProc=invisible
NoNewPrivileges=yes
MemoryDenyWriteExecute=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallFilter=@system-service
UNIT
block rsocket.conf >"$dir/units/redis-server.service.d/rsocket.conf"
out=$(SYSTEMD_UNIT_PATH="$dir/units:" systemd-analyze verify "$dir/units/redis-server.service" 2>&1)
check "the drop-in is understood" "$out" test -z "$(grep -i 'redis-server\|rsocket' <<<"$out")"
# That it was read at all: the same with a word that no unit has.
echo 'NoSuchWord=yes' >>"$dir/units/redis-server.service.d/rsocket.conf"
out=$(SYSTEMD_UNIT_PATH="$dir/units:" systemd-analyze verify "$dir/units/redis-server.service" 2>&1)
check "the drop-in is read" "$out" grep -q NoSuchWord <<<"$out"

for f in compose.yaml pod.yaml csi-volume.yaml; do block $f >"$dir/$f"; done
out=$("$PYTHON" - "$dir" 2>&1 <<'PY'
import sys, yaml
read = lambda name: yaml.safe_load(open(f"{sys.argv[1]}/{name}"))
MEET, LIBRARY = "/run/rsocket/meet", "/rsocket"
services = read("compose.yaml")["services"]
assert len(services) == 2
for service in services.values():
    mounts = dict(v.split(":")[:2] for v in service["volumes"])
    assert mounts[MEET] == MEET and LIBRARY in mounts.values(), mounts
    assert service["environment"]["LD_PRELOAD"].startswith(LIBRARY + "/")
pod = read("pod.yaml")["spec"]
volumes = {v["name"]: v for v in pod["volumes"]}
assert volumes["meet"]["hostPath"]["path"] == MEET
(container,) = pod["containers"]
mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
assert mounts == {"meet": MEET, "rsocket": LIBRARY}, mounts
assert {"LD_PRELOAD", "RSOCKET_SECCOMP"} == {e["name"] for e in container["env"]}
(volume,) = read("csi-volume.yaml")
assert volume["name"] == "meet" and volume["csi"]["driver"] and not volume["csi"]["readOnly"]
print("right")
PY
)
check "compose and Kubernetes: library, variables and directory" "$out" same "$out" right
exit $BAD
