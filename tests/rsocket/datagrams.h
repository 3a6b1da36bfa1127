// What the tests of datagram rsockets share: sockets, round trips, a peer that sends everything
// back.
#ifndef DATAGRAMS_H
#define DATAGRAMS_H
#include "rs.h"

enum { MOST4 = 2032, MOST6 = 2020 };
static inline int most(void) { return family == AF_INET ? MOST4 : MOST6; }
static unsigned char sent[4096], got[70000];

static inline int unbound(void) {
  int fd = rsocket(family, SOCK_DGRAM, 0);
  CHECK(fd >= 0);
  struct timeval limit = {20, 0};
  CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  return fd;
}

static inline int bound(int to_port) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, to_port);
  int fd = unbound();
  EQ(rbind(fd, (struct sockaddr *)&a, len), 0);
  return fd;
}

static inline int port_of(int fd) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  CHECK(rgetsockname(fd, (struct sockaddr *)&a, &len) == 0);
  return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

static inline void join(int fd, int to_port) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, to_port);
  EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
}

static inline int connected(int to_port) {
  int fd = unbound();
  join(fd, to_port);
  return fd;
}

static inline ssize_t send_to(int fd, const void *buf, size_t n, int to_port) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, to_port);
  return rsendto(fd, buf, n, 0, (struct sockaddr *)&a, len);
}

// A round trip; then both know the way, if there is a better one than UDP.
static inline void warm(int fd, int n) {
  for (int i = 0; i < n; i++) {
    fill(sent, 100, 9, i);
    EQ(rsend(fd, sent, 100, 0), 100);
    EQ(rrecv(fd, got, sizeof got, 0), 100);
    verify(got, 100, 9, i);
  }
}

// Sends back what comes, until something empty does.
static inline void echo(int fd) {
  for (;;) {
    struct sockaddr_storage a;
    socklen_t len = sizeof a;
    ssize_t n = rrecvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&a, &len);
    CHECK(n >= 0);
    EQ(rsendto(fd, got, n, 0, (struct sockaddr *)&a, len), n);
    if (n == 0) return;
  }
}
static inline void stop_echo(int fd) {
  EQ(rsend(fd, "", 0, 0), 0);
  EQ(rrecv(fd, got, sizeof got, 0), 0);
}

static inline void echo_server(int l) {
  (void)l;
  int fd = bound(port);
  tell('r');
  echo(fd);
  EQ(rclose(fd), 0);
}
#endif
