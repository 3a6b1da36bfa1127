// Both ends of a connection in one thread: no other thread is there to answer.
#include "sem.h"

static void pair(int lfd, int fd[2]) {
  fd[0] = dial();
  fd[1] = accept(lfd, NULL, NULL);
  CHECK(fd[1] >= 0);
  settle(fd[0], fd[1]);
}
static void small_blocking(int lfd) {
  int fd[2];
  pair(lfd, fd);
  char b[512], c[512];
  for (int i = 0; i < 3000; i++) {
    size_t n = 1 + i % 500;
    fill(b, n, i, 0);
    EQ(write(fd[i & 1], b, n), n);
    get(fd[!(i & 1)], c, n);
    verify(c, n, i, 0);
  }
  close(fd[0]);
  get_eof(fd[1]);
}
// A message waits unread while the same thread writes the other way.
static void crossing(int lfd) {
  int fd[2];
  pair(lfd, fd);
  char b[16384], c[16384];
  for (int i = 0; i < 200; i++) {
    for (int k = 0; k < 2; k++) {
      fill(b, sizeof b, i * 2 + k, 0);
      EQ(write(fd[k], b, sizeof b), sizeof b);
    }
    for (int k = 0; k < 2; k++) {
      get(fd[!k], c, sizeof c);
      verify(c, sizeof c, i * 2 + k, 0);
    }
  }
}
static void nonblocking(int lfd) {
  int fd[2];
  pair(lfd, fd);
  enum { TOTAL = 16 << 20 };
  uint64_t sent[2] = {0, 0}, got[2] = {0, 0}, r = 1;
  static char b[70000];
  nonblock(fd[0], 1), nonblock(fd[1], 1);
  while (got[0] < TOTAL || got[1] < TOTAL) {
    struct pollfd p[2];
    for (int k = 0; k < 2; k++) {
      p[k].fd = fd[k];
      p[k].events = POLLIN | (sent[k] < TOTAL ? POLLOUT : 0);
    }
    CHECK(poll(p, 2, 10000) > 0);
    for (int k = 0; k < 2; k++) {
      size_t n = 1 + rnd(&r) % sizeof b;
      if (p[k].revents & POLLOUT) {
        if (n > TOTAL - sent[k]) n = TOTAL - sent[k];
        fill(b, n, 20 + k, sent[k]);
        ssize_t m = send(fd[k], b, n, 0);
        CHECK(m > 0 || errno == EAGAIN);
        if (m > 0) sent[k] += m;
      }
      if (p[k].revents & POLLIN) {
        ssize_t m = recv(fd[k], b, 1 + rnd(&r) % sizeof b, 0);
        CHECK(m > 0 || (m < 0 && errno == EAGAIN));
        if (m > 0) verify(b, m, 20 + !k, got[k]), got[k] += m;
      }
    }
  }
  CHECK(!shutdown(fd[0], SHUT_WR));
  get_eof(fd[1]);
  close(fd[1]);
  get_eof(fd[0]);
}
static void connecting_nonblocking(int lfd) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, ctx.port);
  nonblock(lfd, 1);
  FAILS(accept(lfd, NULL, NULL), EAGAIN);
  int c = socket(ctx.family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  FAILS(connect(c, (void *)&a, n), EINPROGRESS);
  CHECK(ready(lfd, POLLIN, 2000) == POLLIN);
  int s = accept4(lfd, NULL, NULL, SOCK_NONBLOCK);
  CHECK(s >= 0);
  CHECK(ready(c, POLLOUT, 2000) == POLLOUT);
  int e = -1;
  socklen_t l = sizeof e;
  CHECK(!getsockopt(c, SOL_SOCKET, SO_ERROR, &e, &l) && e == 0);
  char b[100];
  FAILS(recv(s, b, sizeof b, 0), EAGAIN);
  put(c, "one", 3);
  get(s, b, 3);
  put(s, "two!", 4);
  get(c, b, 4);
}
// Whether it is writable. 0: by poll. 1: by select. 2 and 3: by a set of its own, which is kept, by
// level and by edge.
static int is_writable(int how, int fd, int *ep) {
  struct epoll_event e = {.events = how == 3 ? EPOLLIN | EPOLLOUT | EPOLLET : EPOLLOUT};
  if (how == 0) return ready(fd, POLLOUT, 5000) == POLLOUT;
  if (how == 1) {
    fd_set out;
    FD_ZERO(&out);
    FD_SET(fd, &out);
    struct timeval t = {.tv_sec = 5};
    return select(fd + 1, NULL, &out, NULL, &t) == 1 && FD_ISSET(fd, &out);
  }
  if (*ep < 0) {
    *ep = epoll_create1(0);
    CHECK(!epoll_ctl(*ep, EPOLL_CTL_ADD, fd, &e));
  }
  return epoll_wait(*ep, &e, 1, 5000) == 1 && e.events == EPOLLOUT;
}
// A client that connects without waiting is told that it is connected before the server accepts,
// and may do what has the peer do it.
static void told_before_accept(int lfd) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, ctx.port);
  for (int how = 0; how < 8; how++) {
    int c = socket(ctx.family, SOCK_STREAM | SOCK_NONBLOCK, 0), ep = -1, e = -1;
    FAILS(connect(c, (void *)&a, n), EINPROGRESS);
    if (!is_writable(how & 3, c, &ep)) FAIL("how %d", how);
    if (how < 4) {
      socklen_t l = sizeof e;
      CHECK(!getsockopt(c, SOL_SOCKET, SO_ERROR, &e, &l) && e == 0);
    } else {
      CHECK(!connect(c, (void *)&a, n) || errno == EISCONN);
    }
    int s = accept(lfd, NULL, NULL);
    CHECK(s >= 0);
    ssize_t sent;
    while ((sent = send(c, "one", 3, 0)) < 0 && errno == EAGAIN) CHECK(is_writable(how & 3, c, &ep));
    EQ(sent, 3);
    char b[100];
    get(s, b, 3);
    put(s, "two!", 4);
    CHECK(ready(c, POLLIN, 5000) & POLLIN);
    get(c, b, 4);
    close(c), close(s);
    if (ep >= 0) close(ep);
  }
}
static void one_epoll(int lfd) {
  int ep = epoll_create1(0), fd[2];
  pair(lfd, fd);
  nonblock(fd[0], 1), nonblock(fd[1], 1);
  for (int k = 0; k < 2; k++) {
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = k};
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd[k], &e));
  }
  char b[1000];
  put(fd[0], "go", 2);
  long moved = 0;
  // The ball goes to and fro and grows by what is read.
  for (int i = 0; i < 5000; i++) {
    struct epoll_event e[2];
    int n = epoll_wait(ep, e, 2, 5000);
    CHECK(n >= 1);
    for (int j = 0; j < n; j++) {
      int k = e[j].data.u32;
      CHECK(e[j].events == EPOLLIN);
      ssize_t m = recv(fd[k], b, sizeof b, 0);
      CHECK(m > 0);
      moved += m;
      put(fd[k], b, i < 100 ? (m < 900 ? m + 1 : m) : m);
    }
  }
  CHECK(moved > 5000);
}
const test_case CASES[] = {
    {"blocking_small", small_blocking, 0, SOLO}, {"crossing", crossing, 0, SOLO},
    {"nonblocking_16MiB", nonblocking, 0, SOLO}, {"nonblocking_connect", connecting_nonblocking, 0, SOLO | NOSHM},
    {"one_epoll_set", one_epoll, 0, SOLO},       {"told_before_accept", told_before_accept, 0, SOLO},
    {0},
};
