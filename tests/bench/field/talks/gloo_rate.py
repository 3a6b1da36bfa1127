"""PyTorch's all-reduce over gloo between two processes: `gloo_rate.py PORT BYTES SECONDS`. Prints
`rate N p99 NS`."""

import os
import sys
import time

os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
TOGETHER = 8


def run(rank, port, size, seconds):
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    tensor, go, took = torch.zeros(size // 4), torch.ones(1), []
    began = now = time.perf_counter_ns()
    while go.item():
        for _ in range(TOGETHER):
            before = now
            dist.all_reduce(tensor)
            now = time.perf_counter_ns()
            took.append(now - before)
        # The first says whether they go on: both make as many.
        go[0] = now < began + seconds * 1e9
        dist.broadcast(go, 0)
        now = time.perf_counter_ns()
    dist.destroy_process_group()
    return took, now - began


def main():
    port, size, seconds = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    pid = os.fork()
    took, spent = run(0 if pid else 1, port, size, seconds)
    if not pid:
        sys.exit(0)
    if os.waitpid(pid, 0)[1]:
        sys.exit("the other process failed")
    from talking import told

    told(len(took), spent, took)


main()
