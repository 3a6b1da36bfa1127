"""What the clients share: so many seconds of a call, its rate and its p99."""

import sys
import time


def rated(seconds, call, answer):
    """Calls for so long, and prints `rate N p99 NS`; the program ends if another answer comes."""
    took = []
    began = now = time.perf_counter_ns()
    end = began + seconds * 1e9
    while now < end:
        if call() != answer:
            sys.exit(f"answer {len(took)} is another one")
        before, now = now, time.perf_counter_ns()
        took.append(now - before)
    told(len(took), now - began, took)


def told(things, nanoseconds, took):
    p99 = sorted(took)[len(took) * 99 // 100]
    print(f"rate {things / (nanoseconds / 1e9):.1f} p99 {p99}", flush=True)
