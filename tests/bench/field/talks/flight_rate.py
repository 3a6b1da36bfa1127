"""Arrow Flight: `flight_rate.py serve PORT`, `flight_rate.py ask PORT SECONDS`.

A table of 16 MiB is fetched over and over. Prints `rate N p99 NS`, tables a second; MiB are sixteen
times as many.
"""

import signal
import sys
import threading

import pyarrow
import pyarrow.flight as flight
from talking import rated

ROWS, BATCHES = 1 << 17, 16


def table():
    numbers = pyarrow.array(range(ROWS), pyarrow.int64())
    return pyarrow.Table.from_batches([pyarrow.record_batch([numbers], names=["n"])] * BATCHES)


class Server(flight.FlightServerBase):
    def do_get(self, _, ticket):
        return flight.RecordBatchStream(self.table)


def serve(port):
    server = Server(f"grpc://127.0.0.1:{port}")
    server.table = table()

    def end():
        signal.sigwait([signal.SIGTERM])
        server.shutdown()

    threading.Thread(target=end).start()
    server.serve()


def ask(port, seconds):
    client = flight.connect(f"grpc://127.0.0.1:{port}")
    rated(seconds, lambda: client.do_get(flight.Ticket(b"t")).read_all().num_rows, ROWS * BATCHES)
    client.close()


if sys.argv[1] == "serve":
    # Before there are threads, all of which inherit it.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    serve(int(sys.argv[2]))
else:
    ask(int(sys.argv[2]), float(sys.argv[3]))
