"""Cells of unmodified programs: sockperf, iperf3, redis, nginx with wrk."""

import json
import os
import pwd
import re
import signal

from .run import Failed, free_port


def seconds(bed):
    """Programs that count whole seconds."""
    return max(1, round(bed.seconds))


def found(pattern, text, program):
    m = re.search(pattern, text)
    if not m:
        raise Failed(f"{program} does not say how fast it was: {text[-200:]}".replace("\n", " | "))
    return float(m.group(1))


def _sockperf(bed, *arguments):
    port = free_port()
    s = bed.server(port, "sockperf", "server", "--tcp", "-i", "127.0.0.1", "-p", port)
    out = bed.client(
        "sockperf", arguments[0], "--tcp", "-i", "127.0.0.1", "-p", port, "-t", seconds(bed), "--msg-size=64", *arguments[1:]
    )
    bed.stop(s, signal.SIGINT)
    return out


def sockperf_latency(bed):
    # It gives up above 600 thousand round trips a second unless told to expect more.
    out = _sockperf(bed, "ping-pong", "--mps=5000000")
    if "dropped messages = 0; # duplicated messages = 0; # out-of-order messages = 0" not in out:
        raise Failed("sockperf lost messages")
    return {"p50": found(r"percentile 50\.000 = *([\d.]+)", out, "sockperf"), "p99": found(r"percentile 99\.000 = *([\d.]+)", out, "sockperf")}


def sockperf_rate(bed):
    out = _sockperf(bed, "throughput", "--mps=max")
    return {"rate": found(r"Message Rate is ([\d.]+)", out, "sockperf") / 1e6}


def iperf3(bed, *how):
    port = free_port()
    s = bed.server(port, "iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port)
    out = json.loads(bed.client("iperf3", "-c", "127.0.0.1", "-p", port, "-t", seconds(bed), "-J", *how))
    if "error" in out:
        raise Failed(out["error"])
    # After its one test it ends by itself.
    s.wait(60)
    bed.servers.remove(s)
    ways = [v for k, v in out["end"].items() if k.startswith("sum_received")]
    return {"rate": sum(w["bits_per_second"] for w in ways) / 8e6}


def redis_server(bed):
    """The server, which saves nothing, and its port."""
    port = free_port()
    s = bed.server(
        port,
        *("redis-server", "--port", port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"),
        *("--dir", bed.dir, "--daemonize", "no"),
    )
    return s, port


def redis(bed, clients, pipeline, tcp, ours):
    s, port = redis_server(bed)
    number = max(1000, int((tcp if bed.library is None else ours) * bed.seconds / 2))
    out = bed.client(
        *("redis-benchmark", "-h", "127.0.0.1", "-p", port, "-c", clients, "-P", pipeline),
        *("-n", number, "-t", "get,set", "--csv"),
    )
    bed.stop(s)
    return {w: found(rf'"{w}","([\d.]+)"', out, "redis-benchmark") / 1e3 for w in ("GET", "SET")}


NGINX = """{user}
worker_processes 1;
daemon off;
pid {dir}/pid;
error_log {dir}/error.log warn;
events {{ worker_connections 512; }}
env RSOCKET_STATS;
http {{
  access_log off;
  sendfile {sendfile};
  open_file_cache {files};
  keepalive_requests 100000000;
  client_body_temp_path {dir}/t1; proxy_temp_path {dir}/t2; fastcgi_temp_path {dir}/t3;
  uwsgi_temp_path {dir}/t4; scgi_temp_path {dir}/t5;
  server {{ listen 127.0.0.1:{port}; root {dir}/www; }}
}}
"""


def _user():
    """As root its worker takes another user; the overflow user, nginx's own choice, is never
    trusted."""
    if os.getuid():
        return ""
    return "user www-data;" if any(p.pw_name == "www-data" for p in pwd.getpwall()) else "user root;"


def nginx_server(bed, size, sendfile, keeps=False):
    """The server and its port; it has one file of that size. With `keeps` it keeps the file open
    instead of opening it for each request."""
    port = free_port()
    os.mkdir(bed.path("www"), 0o755)
    with open(bed.path("www/file"), "wb") as f:
        f.write(os.urandom(size))
    with open(bed.path("conf"), "w") as f:
        f.write(
            NGINX.format(
                user=_user(),
                dir=bed.dir,
                port=port,
                sendfile="on" if sendfile else "off",
                files="max=100" if keeps else "off",
            )
        )
    return bed.server(port, "nginx", "-p", bed.dir, "-c", bed.path("conf"), "-e", bed.path("error.log")), port


def nginx(bed, size, connections, sendfile, close=False, keeps=False):
    s, port = nginx_server(bed, size, sendfile, keeps)
    values = wrk(bed, f"http://127.0.0.1:{port}/file", connections, *(("-H", "Connection: close") if close else ()))
    bed.stop(s, signal.SIGTERM)
    return values


_MICROSECONDS = {"us": 1, "ms": 1e3, "s": 1e6, "m": 6e7}


def wrk(bed, url, connections, *more):
    """Requests in k/s, their p99 in µs and the longest of them in ms."""
    out = bed.client("wrk", "--timeout", "60s", "-t", 1, "-c", connections, "-d", f"{seconds(bed)}s", "--latency", *more, url)
    if "Socket errors" in out or "Non-2xx" in out:
        raise Failed(f"wrk saw errors: {out[-200:]}".replace("\n", " | "))
    p99 = re.search(r"99% *([\d.]+)(us|ms|s|m)\b", out)
    if not p99:
        raise Failed(f"wrk tells no latency: {out[-200:]}".replace("\n", " | "))
    longest = re.search(r"Latency +\S+ +\S+ +([\d.]+)(us|ms|s|m)\b", out)
    if not longest:
        raise Failed(f"wrk tells no longest answer: {out[-200:]}".replace("\n", " | "))
    in_us = lambda found: float(found[1]) * _MICROSECONDS[found[2]]
    return {
        "rate": found(r"Requests/sec: *([\d.]+)", out, "wrk") / 1e3,
        "p99": in_us(p99),
        "longest": in_us(longest) / 1e3,
    }
