"""Arrow Flight: `flight_talk.py serve PORT-FILE`, `flight_talk.py ask PORT MEGABYTES`. So much is
put and got, half each way; what came is compared with what was sent."""
import os
import sys
import threading

import pyarrow
import pyarrow.flight as flight

ROWS = 1 << 17


def batch(i):
    numbers = pyarrow.array(range(i * ROWS, (i + 1) * ROWS), pyarrow.int64())
    return pyarrow.record_batch([numbers], names=["n"])


class Server(flight.FlightServerBase):
    tables = {}

    def do_put(self, _, descriptor, reader, writer):
        self.tables[descriptor.command] = reader.read_all()

    def do_get(self, _, ticket):
        return flight.RecordBatchStream(self.tables[ticket.ticket])


def serve(port_file):
    server = Server("grpc://127.0.0.1:0")
    with open(port_file + ".new", "w") as f:
        f.write(str(server.port))
    os.rename(port_file + ".new", port_file)
    threading.Thread(target=lambda: (sys.stdin.read(), server.shutdown())).start()
    server.serve()


def ask(port, megabytes):
    client = flight.connect(f"grpc://127.0.0.1:{port}")
    batches = [batch(i) for i in range(megabytes // 2)]
    table = pyarrow.Table.from_batches(batches)
    writer, _ = client.do_put(flight.FlightDescriptor.for_command(b"t"), table.schema)
    for b in batches:
        writer.write_batch(b)
    writer.close()
    if not client.do_get(flight.Ticket(b"t")).read_all().equals(table):
        sys.exit("another table came back")
    client.close()
    print("all as sent")


if sys.argv[1] == "serve":
    serve(sys.argv[2])
else:
    ask(int(sys.argv[2]), int(sys.argv[3]))
