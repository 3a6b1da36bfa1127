"""Python's gRPC and Arrow Flight, both ends in C++ below."""

from ..row import Row
from .talks import talk

ROWS = (
    Row(
        "grpc-unary",
        "Python gRPC, unary calls of 64 B",
        talk("grpc_rate.py", "unary"),
        pip=("grpcio",),
    ),
    Row(
        "grpc-stream",
        "Python gRPC, 64 B to and fro on a stream",
        talk("grpc_rate.py", "stream"),
        pip=("grpcio",),
    ),
    Row(
        "flight",
        "Arrow Flight, tables of 16 MiB",
        talk("flight_rate.py", per=1),
        unit="tables/s",
        pip=("pyarrow",),
    ),
)
