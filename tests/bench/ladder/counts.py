"""Cells for what is too small to be timed among other programs. These are instructions counted by
callgrind, the hook of a foreign descriptor, and what the library adds to a program's start."""

import glob
import re

from .machine import bench
from .run import Failed, fields

UPSTREAM = "/usr/lib/*/rsocket/librspreload.so"


def _preload(bed, *more):
    return ":".join(p for p in (bed.library, *more) if p)


def hook_time(bed):
    """write() on a descriptor that is no socket, with a library behind ours whose write returns at
    once."""
    number = int(20000000 * bed.seconds)
    return {"ns": fields(bed.client("env", f"LD_PRELOAD={_preload(bed, bench('nothing.so'))}", bench("once"), "foreign", number))["ns"]}


def _counted(bed, preload, what, number):
    """Instructions inside `measured`, in user space, over that many calls."""
    out = bed.client(
        *("valgrind", "--tool=callgrind", "--trace-children=yes", f"--callgrind-out-file={bed.path('out.%p')}"),
        *("--collect-atstart=no", "--toggle-collect=measured"),
        *("env", f"LD_PRELOAD={preload}", bench("once"), what, number),
        limit=240,
    )
    found = re.findall(r"Collected : (\d+)", out)
    if not found:
        raise Failed(f"callgrind says nothing: {out[-200:]}".replace("\n", " | "))
    return int(found[-1])


def _each(bed, preload, what):
    """For one call: the difference of two runs, which leaves out whatever happens once."""
    few, many = 500, 2500
    return (_counted(bed, preload, what, many) - _counted(bed, preload, what, few)) / (many - few)


def hook_count(bed):
    return {"count": _each(bed, _preload(bed, bench("nothing.so")), "foreign")}


def message(bed, what):
    # The program that starts it must not be preloaded: only the one that is measured.
    return {"count": _each(bed, _preload(bed), what)}


def start_up(bed):
    """Beyond the same program without a library; the baseline is upstream's."""
    library = bed.library
    if library is None:
        found = glob.glob(UPSTREAM)
        if not found:
            raise Failed("no upstream library (librdmacm1)")
        library = found[0]
    f = fields(bed.client("env", "-u", "LD_PRELOAD", bench("execs"), int(200 * bed.seconds) + 40, library))
    more = f["with"] - f["without"]
    # Less than a hundredth of the whole is noise, and makes no ratio.
    return {"us": more} if more > f["without"] / 100 else {}
