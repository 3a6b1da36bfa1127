"""What a row is. Its cell is a function from a FieldBed to values: `rate` or another main key, and
`p99` in µs where it is told."""

from dataclasses import dataclass
from typing import Callable

EVERYWHERE = ("idle", "busy", "one")
BUSY = ("busy",)
BUSY_AND_ONE = ("busy", "one")


@dataclass(frozen=True)
class Row:
    name: str
    title: str
    cell: Callable  # (FieldBed) -> {key: value}
    unit: str = "k/s"
    key: str = "rate"
    less: bool = False  # less of the main key is better
    needs: tuple = ()  # PROGRAM or PROGRAM=PACKAGE, of Debian
    pip: tuple = ()  # packages of Python
    builds: tuple = ()  # programs of tests/bench
    mpi: tuple = ()  # those that mpicc builds
    kinds: tuple = EVERYWHERE  # the conditions under which it means something
    strict: tuple = ()  # the conditions other than idle under which it has to be good, too
    most: float | None = None  # instead of a ratio: at most so much, in its unit
    above_tcp: bool = False  # more than TCP takes
    transport: str | None = None  # RSOCKET_TRANSPORT, where the row is about one
