"""Open MPI over its tcp transport, and PyTorch's collectives over gloo."""

import os

from ladder.machine import bench
from ladder.run import free_port

from ..bed import told
from ..row import Row

# Two processes on whatever processors there are, over TCP alone, though both are here.
MPIRUN = ("mpirun", "-np", 2, "--oversubscribe", "--bind-to", "none", "--mca", "pml", "ob1")
BY_TCP = ("--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "lo")
GLOO = "/usr/lib/python3/dist-packages/torch/__init__.py=python3-torch"


def _mpi(what, size):
    def cell(bed):
        root = ("--allow-run-as-root",) if os.getuid() == 0 else ()
        out = bed.client(*MPIRUN, *root, *BY_TCP, bench("mpi"), what, size, bed.seconds)
        return told(out)

    return cell


def _gloo(size):
    def cell(bed):
        return told(bed.talk("gloo_rate.py", free_port(), size, bed.seconds), 1)

    return cell


def _mpi_row(name, title, what, size):
    needs = ("mpirun=openmpi-bin", "/usr/lib/*/openmpi/include/mpi.h=libopenmpi-dev")
    return Row(
        f"mpi-{name}", f"Open MPI over tcp, {title}", _mpi(what, size), needs=needs, mpi=("mpi",)
    )


ROWS = (
    _mpi_row("8", "8 B there and back", "ping", 8),
    _mpi_row("2m", "2 MiB there and back", "ping", 2 << 20),
    _mpi_row("allreduce", "all-reduce of 4 KiB", "allreduce", 4 << 10),
    *(
        Row(
            f"gloo-{name}",
            f"PyTorch, all-reduce over gloo, {title}",
            _gloo(size),
            unit="/s",
            needs=(GLOO,),
        )
        for name, title, size in (
            ("4k", "4 KiB", 4 << 10),
            ("1m", "1 MiB", 1 << 20),
            ("64m", "64 MiB", 64 << 20),
        )
    ),
)
