// What poll, select and epoll call writable: a blocking write of a usual length that comes next does
// not sleep. Relays with one thread count on it.
#include "sem.h"

static const size_t SIZES[] = {1, 700, 4096, 8192, 16384};
enum { KINDS = sizeof SIZES / sizeof *SIZES };

// Enough goes to and fro first that nothing is left behind on the way off TCP.
static void to_and_fro(int fd, int first) {
  for (int i = 0; i < 4; i++) {
    if (first) put_stream(fd, 6, 0, 40000, 40000);
    get_stream(fd, 6, 0, 40000, 40000);
    if (!first) put_stream(fd, 6, 0, 40000, 40000);
  }
}
// Reads as many bytes as it is told to, and says so.
static void reads_as_told(int fd) {
  uint64_t at = 0;
  to_and_fro(fd, 0);
  for (long n; (n = hear_int()) > 0; at += n) {
    get_stream(fd, 5, at, at + n, 50000);
    tell('r');
  }
}
// Writes blocks for as long as the connection is writable; where the stream is then.
static uint64_t fill_up(int fd, uint64_t at, size_t size, int (*writable)(int, int)) {
  static char block[16384];
  uint64_t from = at;
  while (writable(fd, 200)) {
    fill(block, size, 5, at);
    double t = now();
    EQ(send(fd, block, size, 0), size);
    if (now() - t > most_at_once()) FAIL("%zu bytes have slept after %llu", size, (unsigned long long)(at - from));
    at += size;
    // Single bytes do not fill anything in time.
    if (at - from >= 4000 * size && size < 4096) break;
    if (at - from > 64 << 20) FAIL("it takes whatever comes");
  }
  return at;
}
static int by_poll(int fd, int ms) { return ready(fd, POLLOUT, ms) == POLLOUT; }
static int by_select(int fd, int ms) {
  fd_set w;
  FD_ZERO(&w);
  FD_SET(fd, &w);
  struct timeval t = {ms / 1000, ms % 1000 * 1000};
  return select(fd + 1, NULL, &w, NULL, &t) == 1;
}
static int by_epoll(int fd, int ms) {
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLOUT};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  int n = epoll_wait(ep, &e, 1, ms);
  close(ep);
  return n == 1;
}
static void begin(int fd) {
  struct timeval t = {20, 0};
  to_and_fro(fd, 1);
  EQ(setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t), 0);
}
static void does_not_sleep(int fd) {
  int (*const by[])(int, int) = {by_poll, by_select, by_epoll};
  uint64_t read = 0, at = 0;
  begin(fd);
  for (int i = 0; i < KINDS; i++) {
    at = fill_up(fd, at, SIZES[i], by[i % 3]);
    tell_int(at - read);
    read = at;
    hear('r');
  }
  tell_int(0);
}
// A reader that takes half of what waits, and then no more, makes it writable: who sleeps is woken.
static void half_wakes(int fd) {
  int (*const by[])(int, int) = {by_poll, by_select, by_epoll};
  uint64_t read = 0, at = 0;
  begin(fd);
  for (int i = 0; i < 9; i++) {
    at = fill_up(fd, at, SIZES[2 + i % 3], by_poll);
    uint64_t half = (at - read) / 2;
    tell_int(half);
    read += half;
    if (!by[i / 3](fd, patience(5000))) FAIL("%llu of %llu bytes read, and it is not writable", (unsigned long long)half, (unsigned long long)(at - read + half));
    hear('r');
  }
  tell_int(at - read);
  hear('r');
  tell_int(0);
}
const test_case CASES[] = {
    {"does_not_sleep", reads_as_told, does_not_sleep, 0},
    {"half_wakes", reads_as_told, half_wakes, 0},
    {0},
};
