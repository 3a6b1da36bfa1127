// Bytes arrive, all of them, in order, however they are cut: sizes, chunks, which end speaks first,
// which end waits.
#include "sem.h"

static const size_t SIZES[] = {1,    2,    3,     7,     8,     63,    64,    65,     127,    500,     1000,        1447, 1448,
                               1449, 4095, 4096,  4097,  16383, 16384, 65535, 65536,  65537,  131072,  262144 + 13, 1 << 20,
                               (1 << 20) + 1, 8 << 20};
enum { NSIZES = sizeof SIZES / sizeof *SIZES, MIB = 1 << 20 };

// Every size, cut at random on both sides: all there, then all back.
static void sizes_server(int fd) {
  uint64_t at = 0;
  for (int i = 0; i < NSIZES; i++) {
    get_stream(fd, 1, at, at + SIZES[i], SIZES[i] < 40000 ? SIZES[i] : 40000);
    put_stream(fd, 2, at, at + SIZES[i], SIZES[i] < 200000 ? SIZES[i] : 200000);
    at += SIZES[i];
  }
  get_eof(fd);
}
static void sizes_client(int fd) {
  uint64_t at = 0;
  for (int i = 0; i < NSIZES; i++) {
    put_stream(fd, 1, at, at + SIZES[i], SIZES[i] < 70000 ? SIZES[i] : 70000);
    get_stream(fd, 2, at, at + SIZES[i], SIZES[i] < 300000 ? SIZES[i] : 300000);
    at += SIZES[i];
  }
  close(fd);
}
// Each size as one write and one reading loop.
static void whole_server(int fd) {
  char *b = malloc(8 << 20);
  for (int i = 0; i < NSIZES; i++) {
    get(fd, b, SIZES[i]);
    verify(b, SIZES[i], i, 0);
    put(fd, b, SIZES[i]);
  }
}
static void whole_client(int fd) {
  char *b = malloc(8 << 20);
  for (int i = 0; i < NSIZES; i++) {
    fill(b, SIZES[i], i, 0);
    EQ(write(fd, b, SIZES[i]), SIZES[i]);  // blocking: all or an error
    memset(b, 0, SIZES[i]);
    get(fd, b, SIZES[i]);
    verify(b, SIZES[i], i, 0);
  }
}
static void both_ways_server(int fd) {
  nonblock(fd, 1);
  pump(fd, 3, 4, 32 * MIB + 5, 100000);
  get_eof(fd);
}
static void both_ways_client(int fd) {
  nonblock(fd, 1);
  pump(fd, 4, 3, 32 * MIB + 5, 37777);
  shutdown(fd, SHUT_WR);
  get_eof(fd);
}
static void small_both_server(int fd) {
  nonblock(fd, 1);
  pump(fd, 3, 4, 600000, 50);
}
static void small_both_client(int fd) {
  nonblock(fd, 1);
  pump(fd, 4, 3, 600000, 90);
}
static void *writer(void *p) {
  put_stream(*(int *)p, 5 + ctx.is_client, 0, 24 * MIB, 90000);
  return NULL;
}
static void threads(int fd) {
  pthread_t t;
  CHECK(!pthread_create(&t, NULL, writer, &fd));
  get_stream(fd, 6 - ctx.is_client, 0, 24 * MIB, 50000);
  pthread_join(t, NULL);
}
static void one_way_server(int fd) {
  get_stream(fd, 8, 0, 64 * MIB, 65536);
  get_eof(fd);
}
static void one_way_client(int fd) {
  put_stream(fd, 8, 0, 64 * MIB, 262144);
  close(fd);
}
static void speaks_first_server(int fd) {
  put(fd, "220 hello\r\n", 11);
  get_stream(fd, 9, 0, 200000, 3000);
  put_stream(fd, 10, 0, 3 * MIB, 70000);
  close(fd);
}
static void speaks_first_client(int fd) {
  char b[11];
  get(fd, b, 11);
  CHECK(!memcmp(b, "220 hello\r\n", 11));
  put_stream(fd, 9, 0, 200000, 5000);
  get_stream(fd, 10, 0, 3 * MIB, 90000);
  get_eof(fd);
}
static void only_server_server(int fd) {
  put_stream(fd, 11, 0, 16 * MIB, 70000);
  close(fd);
}
static void only_server_client(int fd) {
  get_stream(fd, 11, 0, 16 * MIB, 70000);
  get_eof(fd);
}
// The server sits in recv long before the client writes.
static void reads_first_server(int fd) {
  char c;
  get(fd, &c, 1);
  CHECK(c == 'x');
  put_stream(fd, 12, 0, MIB, 9999);
}
static void reads_first_client(int fd) {
  nap(patience(50));
  put(fd, "x", 1);
  get_stream(fd, 12, 0, MIB, 9999);
}
static void tiny_server(int fd) { get_stream(fd, 13, 0, 200000, 4096); }
static void tiny_client(int fd) {
  put_stream(fd, 13, 0, 200000, 20);
  get_eof(fd);
}
static void ping_server(int fd) {
  char b[256];
  for (int i = 0; i < 3000; i++) {
    size_t n = 1 + i * 7 % 200;
    get(fd, b, n);
    put(fd, b, n);
  }
}
static void ping_client(int fd) {
  char b[256];
  for (int i = 0; i < 3000; i++) {
    size_t n = 1 + i * 7 % 200;
    fill(b, n, i, 0);
    put(fd, b, n);
    get(fd, b, n);
    verify(b, n, i, 0);
  }
}
// A connection that is closed before either end could think of another transport.
static void close_early_server(int lfd) {
  for (int i = 0; i < 20; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    char b[8];
    get(fd, b, 5);
    CHECK(!memcmp(b, "hello", 5));
    get_eof(fd);
    close(fd);
  }
}
static void close_early_client(int fd) {
  for (int i = 0; i < 20; i++) {
    fd = dial();
    put(fd, "hello", 5);
    close(fd);
  }
}
static void close_greeted_server(int lfd) {
  for (int i = 0; i < 20; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    put(fd, "bye", 3);
    close(fd);
  }
}
static void close_greeted_client(int fd) {
  for (int i = 0; i < 20; i++) {
    char b[8];
    fd = dial();
    get(fd, b, 3);
    CHECK(!memcmp(b, "bye", 3));
    get_eof(fd);
    close(fd);
  }
}
static void close_silent_server(int lfd) {
  for (int i = 0; i < 20; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    get_eof(fd);
    close(fd);
  }
}
static void close_silent_client(int fd) {
  for (int i = 0; i < 20; i++) {
    fd = dial();
    close(fd);
  }
}
// A writer that only learns by EAGAIN that its peer does not read; POLLOUT follows the reader.
static void pressure_server(int fd) {
  hear('f');
  uint64_t n = hear_int();
  get_stream(fd, 14, 0, n, 30000);
  tell('d');
  get_stream(fd, 14, n, n + 100000, 30000);
}
static void pressure_client(int fd) {
  char b[30000];
  uint64_t n = 0;
  nonblock(fd, 1);
  for (int quiet = 0, vain = 0; quiet < 5;) {
    fill(b, sizeof b, 14, n);
    ssize_t k = send(fd, b, sizeof b, 0);
    if (k > 0) n += k, quiet = vain = 0;
    else {
      CHECK(k < 0 && errno == EAGAIN);
      nap(patience(10));
      // Where an acknowledgement came late there is room again, which poll and send agree on.
      if (ready(fd, POLLOUT, 0)) quiet = 0, vain++;
      else quiet++;
    }
    CHECK(vain < 50);
    CHECK(n < 256u * MIB);  // a buffer has an end
  }
  tell('f');
  tell_int(n);
  hear('d');
  EQ(ready(fd, POLLOUT, 2000), POLLOUT);
  put_stream(fd, 14, n, n + 100000, 30000);
}
// A reader that takes its time: the writer blocks, nothing is lost.
static void slow_server(int fd) {
  for (uint64_t at = 0; at < 12 * MIB; at += MIB) {
    nap(15);
    get_stream(fd, 15, at, at + MIB, 200000);
  }
  get_eof(fd);
}
static void slow_client(int fd) {
  put_stream(fd, 15, 0, 12 * MIB, 500000);
  close(fd);
}
// Both write before either reads: what TCP has buffers for blocks neither end, and comes late to
// neither.
static void both_write_first(int fd, uint64_t mine, uint64_t its) {
  enum { MUCH = 300000 };
  for (int i = 0; i < 3; i++) {
    put_stream(fd, mine, (uint64_t)i * MUCH, (uint64_t)(i + 1) * MUCH, MUCH);
    get_stream(fd, its, (uint64_t)i * MUCH, (uint64_t)(i + 1) * MUCH, MUCH);
  }
}
static void both_first_server(int fd) { both_write_first(fd, 16, 17); }
static void both_first_client(int fd) { both_write_first(fd, 17, 16); }

const test_case CASES[] = {
    {"sizes_chunked", sizes_server, sizes_client, 0},
    {"sizes_whole", whole_server, whole_client, 0},
    {"both_ways_nonblocking", both_ways_server, both_ways_client, 0},
    {"both_ways_small", small_both_server, small_both_client, 0},
    {"both_write_first", both_first_server, both_first_client, 0},
    {"both_ways_threads", threads, threads, 0},
    {"one_way_64MiB", one_way_server, one_way_client, 0},
    {"server_speaks_first", speaks_first_server, speaks_first_client, COLD},
    {"only_the_server_speaks", only_server_server, only_server_client, COLD},
    {"server_reads_first", reads_first_server, reads_first_client, COLD},
    {"tiny_writes", tiny_server, tiny_client, 0},
    {"ping_pong", ping_server, ping_client, 0},
    {"closed_after_few_bytes", close_early_server, close_early_client, RAW},
    {"closed_after_greeting", close_greeted_server, close_greeted_client, RAW},
    {"closed_without_a_byte", close_silent_server, close_silent_client, RAW},
    {"back_pressure", pressure_server, pressure_client, 0},
    {"slow_reader", slow_server, slow_client, 0},
    {0},
};
