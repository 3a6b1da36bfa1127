// A set of repoll_create's, its members, and the one event that it has.
#ifndef EPOLL_H
#define EPOLL_H
#include "rs.h"

static inline int put_in(int set, int fd, uint32_t events) {
  struct epoll_event e = {.events = events, .data = {.u64 = 0x1234567800000000u + (unsigned)fd}};
  return repoll_ctl(set, EPOLL_CTL_ADD, fd, &e);
}

static inline int change(int set, int fd, uint32_t events) {
  struct epoll_event e = {.events = events, .data = {.u64 = 0x1234567800000000u + (unsigned)fd}};
  return repoll_ctl(set, EPOLL_CTL_MOD, fd, &e);
}

static inline int create(void) {
  int set = repoll_create(0);
  CHECK(set >= 0);
  return set;
}

// The one event that is there, of the only member: its bits; 0 when time is up.
static inline uint32_t one(int set, int fd, int ms) {
  struct epoll_event e[4];
  int n = repoll_wait(set, e, 4, ms);
  CHECK(n == 0 || n == 1);
  if (n == 0) return 0;
  EQ(e[0].data.u64, 0x1234567800000000u + (unsigned)fd);
  return e[0].events;
}

static inline void hold(int fd) {
  touch(fd, 0);
  get_eof(fd);
}
#endif
