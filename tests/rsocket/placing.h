// What the tests of direct placement share: connections whose ends take mappings, and messages
// between them.
#ifndef PLACING_H
#define PLACING_H
#include "rs.h"

#include <sys/mman.h>

// A connection whose ends take `n` mappings each: options are set before it is made.
static inline int take(int l, int n) {
  set_option(l, SOL_RDMA, RDMA_IOMAPSIZE, n);
  tell('l');
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  return fd;
}
static inline int dial_with(int n, int queue) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  int fd = rsocket(family, SOCK_STREAM, 0);
  CHECK(fd >= 0);
  set_option(fd, SOL_RDMA, RDMA_IOMAPSIZE, n);
  if (queue) set_option(fd, SOL_RDMA, RDMA_RQSIZE, queue);
  hear('l');
  EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
  return fd;
}

static inline void say(int fd, char c) { put(fd, &c, 1); }
static inline void wait_for(int fd, char c) {
  char got;
  get(fd, &got, 1);
  EQ(got, c);
}
static inline void place(int fd, const void *buf, size_t n, off_t offset) {
  const char *p = buf;
  while (n) {
    ssize_t done = (ssize_t)riowrite(fd, p, n, offset, 0);
    CHECK(done > 0);
    p += done, offset += done, n -= done;
  }
}
#endif
