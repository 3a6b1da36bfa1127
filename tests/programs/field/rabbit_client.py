"""Messages through RabbitMQ and back: `rabbit_client.py PORT COUNT`. One connection publishes,
another consumes; each message is told by its number, and none may be missing, twice, or in another
place."""
import sys
import threading

import pika

port, count = int(sys.argv[1]), int(sys.argv[2])
where = pika.ConnectionParameters("127.0.0.1", port, heartbeat=0, blocked_connection_timeout=60)


def body(i):
    return b"%d:" % i + bytes([i % 251]) * (200 + i % 800)


def publish():
    connection = pika.BlockingConnection(where)
    channel = connection.channel()
    for i in range(count):
        channel.basic_publish("", "numbers", body(i))
    connection.close()


connection = pika.BlockingConnection(where)
channel = connection.channel()
channel.queue_declare("numbers")
channel.basic_qos(prefetch_count=500)
publisher = threading.Thread(target=publish)
publisher.start()
seen = 0
for method, _, got in channel.consume("numbers", inactivity_timeout=60):
    if method is None:
        sys.exit(f"nothing more after {seen} messages")
    if got != body(seen):
        sys.exit(f"message {seen} is {got[:40]!r}, {len(got)} bytes")
    seen += 1
    if seen % 100 == 0 or seen == count:
        channel.basic_ack(method.delivery_tag, multiple=True)
    if seen == count:
        break
channel.cancel()
publisher.join()
connection.close()
print("all as sent")
