// Bytes that go around the library: a program without it writes to a connection that it was given
// under its old number. TCP delivers them. Where the connection is on a device there is no place for
// them in the stream: the receiver is told of a reset, however it waits. It never sleeps on.
#include <spawn.h>
#include "sem.h"

extern char **environ;

static const char WORD[] = "around";
enum { LENGTH = sizeof WORD - 1 };

static void to_and_fro(int fd, int first) {
  for (int i = 0; i < 4; i++) {
    if (first) put_stream(fd, 6, 0, 40000, 40000);
    get_stream(fd, 6, 0, 40000, 40000);
    if (!first) put_stream(fd, 6, 0, 40000, 40000);
  }
}

// A shell that has nothing of the library, and the connection under its old number.
static void writes_around(int fd) {
  char command[64], *args[] = {"sh", "-c", command, NULL}, *none[] = {NULL};
  pid_t child;
  to_and_fro(fd, 1);
  hear('s');
  nap(patience(100));
  snprintf(command, sizeof command, "printf %s >&%d", WORD, fd);
  SAME(posix_spawn(&child, "/bin/sh", NULL, NULL, args, none), 0);
  EQ(exit_status(child), 0);
  hear('r');
}

static void takes_what_came(int fd) {
  char b[LENGTH];
  ssize_t n = recv(fd, b, sizeof b, MSG_DONTWAIT);
  if (n > 0 && n < LENGTH) get(fd, b + n, LENGTH - n), n = LENGTH;
  if (n == LENGTH) CHECK(!memcmp(b, WORD, LENGTH));
  else if (n != -1 || errno != ECONNRESET) FAIL("recv is %zd, %s", n, strerror(errno));
  tell('r');
}

static void by_poll(int fd) {
  to_and_fro(fd, 0);
  tell('s');
  CHECK(ready(fd, POLLIN, patience(5000)) & POLLIN);
  takes_what_came(fd);
}
static void by_select(int fd) {
  struct timeval t = {patience(5000) / 1000, 0};
  fd_set r;
  FD_ZERO(&r);
  FD_SET(fd, &r);
  to_and_fro(fd, 0);
  tell('s');
  EQ(select(fd + 1, &r, NULL, NULL, &t), 1);
  takes_what_came(fd);
}
static void by_epoll_with(int fd, uint32_t how) {
  struct epoll_event e = {.events = EPOLLIN | how};
  int ep = epoll_create1(0);
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  to_and_fro(fd, 0);
  // Of what it has received there may be an edge left.
  while (epoll_wait(ep, &e, 1, 0) > 0) {}
  tell('s');
  EQ(epoll_wait(ep, &e, 1, patience(5000)), 1);
  CHECK(e.events & EPOLLIN);
  // By level it is said until it is read; an edge once.
  EQ(epoll_wait(ep, &e, 1, 50), !(how & EPOLLET));
  takes_what_came(fd);
  close(ep);
}
static void by_level(int fd) { by_epoll_with(fd, 0); }
static void by_edge(int fd) { by_epoll_with(fd, EPOLLET); }
static void by_receiving(int fd) {
  char b[LENGTH];
  to_and_fro(fd, 0);
  tell('s');
  ssize_t n = recv(fd, b, sizeof b, MSG_WAITALL);
  if (n == LENGTH) CHECK(!memcmp(b, WORD, LENGTH));
  else if (n != -1 || errno != ECONNRESET) FAIL("recv is %zd, %s", n, strerror(errno));
  tell('r');
}
// Who does not want to read hears of it as soon as it does.
static void wanted_later(int fd) {
  struct epoll_event e = {.events = EPOLLIN};
  int ep = epoll_create1(0);
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  to_and_fro(fd, 0);
  e.events = 0;
  CHECK(!epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e));
  tell('s');
  EQ(epoll_wait(ep, &e, 1, patience(300)), 0);
  e.events = EPOLLIN;
  CHECK(!epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e));
  EQ(epoll_wait(ep, &e, 1, patience(5000)), 1);
  CHECK(e.events & EPOLLIN);
  takes_what_came(fd);
  close(ep);
}

const test_case CASES[] = {
    {"by_poll", by_poll, writes_around, NOSHM},
    {"by_select", by_select, writes_around, NOSHM},
    {"by_level", by_level, writes_around, NOSHM},
    {"by_edge", by_edge, writes_around, NOSHM},
    {"by_receiving", by_receiving, writes_around, NOSHM},
    {"wanted_later", wanted_later, writes_around, NOSHM},
    {0},
};
