// A set of one member, and what it says.
#ifndef SET_H
#define SET_H
#include "sem.h"

static inline int set_of(int fd, uint32_t events) {
  int ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = events};
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  return ep;
}
static inline unsigned said(int ep, int ms) {
  struct epoll_event e = {0};
  int n = epoll_wait(ep, &e, 1, ms);
  CHECK(n >= 0);
  return n ? e.events : 0;
}
static inline void quiet(int ep) {
  for (int i = 0; i < 20; i++) EQ(said(ep, 0), 0);
  EQ(said(ep, 2), 0);
}
static inline void here(int fd, int n) {
  int seen = -1;
  for (double end = now() + 10; seen != n;) CHECK(now() < end && !ioctl(fd, FIONREAD, &seen));
}
#endif
