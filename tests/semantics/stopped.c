// A peer that is stopped (SIGSTOP) and goes on: nothing is lost, and waiting for it costs nothing.
#include "sem.h"

enum { MIB = 1 << 20 };

static void stop_server(int fd) {
  pid_t peer = hear_int();
  static char b[50000];
  uint64_t n = 0;
  CHECK(!kill(peer, SIGSTOP));
  nonblock(fd, 1);
  // As much as goes, and what TCP still finds room for a moment later.
  for (int quiet = 0; quiet < 20;) {
    fill(b, sizeof b, 1, n);
    ssize_t k = send(fd, b, sizeof b, 0);
    if (k > 0) n += k, quiet = 0;
    else quiet++, nap(10);
    CHECK(n < 256u * MIB);
  }
  nonblock(fd, 0);
  // Waiting for a peer that is stopped costs nothing.
  struct timeval t = {0, 500000};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
  double c = cpu_used();
  char x;
  FAILS(recv(fd, &x, 1, 0), EAGAIN);
  EQ(ready(fd, POLLIN | POLLOUT, 300), 0);
  c = cpu_used() - c;
  if (c > 0.05) FAIL("%.3f s of processor time while the peer was stopped", c);
  CHECK(!kill(peer, SIGCONT));
  tell_int(n + 3 * MIB);
  t.tv_sec = 10;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
  put_stream(fd, 1, n, n + 3 * MIB, 60000);
  get_stream(fd, 2, 0, MIB, 20000);
  get_eof(fd);
}
static void stop_client(int fd) {
  tell_int(getpid());
  uint64_t n = hear_int();
  get_stream(fd, 1, 0, n, 30000);
  put_stream(fd, 2, 0, MIB, 30000);
  close(fd);
}
// Stopped before a byte has moved, and again and again in the middle of things.
static void stops_server(int fd) {
  pid_t peer = hear_int();
  for (int i = 0; i < 20; i++) {
    CHECK(!kill(peer, SIGSTOP));
    nap(5 + i);
    CHECK(!kill(peer, SIGCONT));
    put_stream(fd, 1, i * 300000, (i + 1) * 300000, 50000);
    get_stream(fd, 2, i * 300000, (i + 1) * 300000, 50000);
  }
  get_eof(fd);
}
static void stops_client(int fd) {
  tell_int(getpid());
  for (int i = 0; i < 20; i++) {
    put_stream(fd, 2, i * 300000, (i + 1) * 300000, 20000);
    get_stream(fd, 1, i * 300000, (i + 1) * 300000, 20000);
  }
  close(fd);
}

const test_case CASES[] = {
    {"stopped_and_continued", stop_server, stop_client, TOUCH},
    {"stopped_often", stops_server, stops_client, 0},
    {0},
};
