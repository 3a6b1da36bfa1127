// The lines of the table of options in rsocket(7) at the levels SOL_SOCKET and SOL_RDMA: what each
// does. And what is in no table: how it is refused.
#include "rs.h"

static void on_off_solo(int l) {
  static const int flags[][2] = {{SOL_SOCKET, SO_REUSEADDR}, {SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_OOBINLINE},
                                 {IPPROTO_TCP, TCP_NODELAY}, {IPPROTO_IPV6, IPV6_V6ONLY}};
  int fd = fresh();
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    int level = flags[i][0], name = flags[i][1], value = 1;
    char byte;
    socklen_t len = 1;
    if (level == IPPROTO_IPV6 && family == AF_INET) continue;
    EQ(option(fd, level, name), 0);
    set_option(fd, level, name, 7);
    EQ(option(fd, level, name), 1);
    // An answer is cut to the room that there is.
    EQ(rgetsockopt(fd, level, name, &byte, &len), 0);
    EQ(len, 1);
    EQ(byte, 1);
    set_option(fd, level, name, 0);
    EQ(option(fd, level, name), 0);
    FAILS(rsetsockopt(fd, level, name, &value, 2), EINVAL);
    if (level != IPPROTO_IPV6) FAILS(rsetsockopt(fd, level, name, NULL, sizeof value), EFAULT);
  }
  (void)l;
}

// SO_REUSEADDR: a server starts again where one has just ended, whose connections are not forgotten
// yet.
static void reuse_solo(int l) {
  struct sockaddr_storage a;
  int ends[2], first = fresh(), again = fresh();
  char c;
  // Both must agree to it.
  set_option(first, SOL_SOCKET, SO_REUSEADDR, 1);
  set_option(again, SOL_SOCKET, SO_REUSEADDR, 1);
  socklen_t len = address(&a, 0);
  EQ(rbind(first, (struct sockaddr *)&a, len), 0);
  EQ(rlisten(first, 5), 0);
  EQ(rgetsockname(first, (struct sockaddr *)&a, &len), 0);
  pair(first, ends);
  put(ends[1], "x", 1);
  get(ends[0], &c, 1);
  EQ(rclose(ends[1]), 0);
  get_eof(ends[0]);
  EQ(rclose(ends[0]), 0);
  EQ(rclose(first), 0);
  EQ(rbind(again, (struct sockaddr *)&a, len), 0);
  EQ(rlisten(again, 5), 0);
  int other = fresh();
  FAILS(rbind(other, (struct sockaddr *)&a, len), EADDRINUSE);
  (void)l;
}

// SO_SNDBUF, SO_RCVBUF: doubled, as on Linux.
static void buffers_solo(int l) {
  int fd = fresh();
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 40000);
  EQ(option(fd, SOL_SOCKET, SO_SNDBUF), 80000);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 50000);
  EQ(option(fd, SOL_SOCKET, SO_RCVBUF), 100000);
  (void)l;
}

// SO_LINGER: off at first; on for no time, close resets; on for some time, close waits until all
// has been taken.
static void linger_server(int l) {
  char c;
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get(fd, &c, 1);
  put(fd, "a", 1);
  hear('c');
  FAILS(rrecv(fd, &c, 1, 0), ECONNRESET);
  EQ(rclose(fd), 0);
  fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get_stream(fd, 3, 100000, 10000);
  get_eof(fd);
  EQ(rclose(fd), 0);
}
static void linger_client(int fd) {
  struct linger got = {7, 7}, at_once = {1, 0}, patient = {1, 20};
  socklen_t len = sizeof got;
  char c;
  fd = dial();
  EQ(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &got, &len), 0);
  EQ(got.l_onoff, 0);
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once), 0);
  len = sizeof got;
  EQ(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &got, &len), 0);
  EQ(len, sizeof got);
  EQ(got.l_onoff * 100 + got.l_linger, 100);
  put(fd, "x", 1);
  get(fd, &c, 1);
  EQ(rclose(fd), 0);
  tell('c');
  fd = dial();
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &patient, sizeof patient), 0);
  FAILS(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &patient, 4), EINVAL);
  put_stream(fd, 3, 100000, 30000);
  double t = now();
  EQ(rclose(fd), 0);
  took(t, 0, 10);
}

// SO_ERROR: said once, and cleared.
static void error_solo(int l) {
  struct sockaddr_storage a;
  int nobody, other = listener(&nobody), fd, value = 0;
  EQ(rclose(other), 0);
  socklen_t len = address(&a, nobody);
  EQ(option(l, SOL_SOCKET, SO_ERROR), 0);
  fd = rsocket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), EINPROGRESS);
  CHECK(ready(fd, POLLOUT, 20000) & POLLERR);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  FAILS(rsetsockopt(fd, SOL_SOCKET, SO_ERROR, &value, sizeof value), ENOPROTOOPT);
}

// SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN.
static void kind_solo(int l) {
  static const int names[] = {SO_TYPE, SO_DOMAIN, SO_PROTOCOL, SO_ACCEPTCONN};
  int ends[2], value = 1;
  pair(l, ends);
  for (int i = 0; i < 3; i++) {
    int fd = i == 0 ? l : ends[i - 1];
    EQ(option(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
    EQ(option(fd, SOL_SOCKET, SO_DOMAIN), family);
    EQ(option(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
    EQ(option(fd, SOL_SOCKET, SO_ACCEPTCONN), i == 0);
    for (int n = 0; n < 4; n++) FAILS(rsetsockopt(fd, SOL_SOCKET, names[n], &value, sizeof value), ENOPROTOOPT);
  }
}

// SO_RCVTIMEO and SO_SNDTIMEO: for receiving, accepting and sending; a part that was done is what
// is returned.
static void timeouts_client(int fd) {
  static char big[1 << 20];
  struct timeval limit = {0, 200000}, got = {9, 9}, none = {0, 0}, bad = {0, 2000000};
  socklen_t len = sizeof got;
  int unused_port, l = listener(&unused_port);
  touch(fd, 1);
  EQ(rgetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &len), 0);
  EQ(got.tv_sec + got.tv_usec, 0);
  FAILS(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &bad, sizeof bad), EDOM);
  FAILS(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, 4), EINVAL);
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  EQ(rgetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &got, &len), 0);
  CHECK(got.tv_sec == 0 && got.tv_usec == 200000);
  double t = now();
  FAILS(rrecv(fd, big, 1, 0), EAGAIN);
  took(t, 0.2, 5);
  // It limits what a call does, not poll.
  EQ(ready(fd, POLLIN, 300), 0);
  EQ(rsetsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  t = now();
  FAILS(raccept(l, NULL, NULL), EAGAIN);
  took(t, 0.2, 5);
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  t = now();
  ssize_t n;
  while ((n = rsend(fd, big, sizeof big, 0)) > 0) CHECK(now() - t < 20 * slow());
  CHECK(n == -1 && errno == EAGAIN);
  took(t, 0.2, 20);
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none), 0);
}
static void timeouts_server(int fd) {
  static char big[1 << 16];
  touch(fd, 0);
  hear('e');
  while (rrecv(fd, big, sizeof big, 0) > 0) {
  }
}
static void timeouts_client_end(int fd) {
  timeouts_client(fd);
  tell('e');
}

// SO_RCVLOWAT: rrecv waits for so many bytes, rpoll says nothing of fewer; fewer are had without
// waiting, or at the end.
#ifdef PLAIN
// There a call that waits is woken only by as much as the mark says, however little it needs, or
// the end.
enum { FIRST_MORE = 2, LAST_MORE = 5 };
#else
enum { FIRST_MORE = 100, LAST_MORE = 100 };
#endif
static void low_water_server(int fd) {
  char buf[2000];
  touch(fd, 0);
  static const int parts[] = {600, 400, 1500, 500, 600, 600, 600};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
    if (i == FIRST_MORE) i = LAST_MORE + 1;
    hear('a' + i);
    nap(100);
    fill(buf, parts[i], i, 0);
    put(fd, buf, parts[i]);
    tell('s');
  }
}
static void low_water_client(int fd) {
  char buf[4000];
  EQ(option(fd, SOL_SOCKET, SO_RCVLOWAT), 1);
#ifdef PLAIN
  touch(fd, 1);
#endif
  set_option(fd, SOL_SOCKET, SO_RCVLOWAT, 1000);
  EQ(option(fd, SOL_SOCKET, SO_RCVLOWAT), 1000);
#ifndef PLAIN
  // A caller that asks for less than the mark waits for no more than that.
  touch(fd, 1);
#endif
  // Fewer than asked for: not ready, but there.
  tell('a');
  hear('s');
  EQ(ready(fd, POLLIN, 300), 0);
  EQ(rrecv(fd, buf, sizeof buf, MSG_DONTWAIT | MSG_PEEK), 600);
  tell('b');
  EQ(ready(fd, POLLIN, 20000), POLLIN);
  hear('s');
  EQ(rrecv(fd, buf, sizeof buf, 0), 1000);
  verify(buf, 600, 0, 0);
  verify(buf + 600, 400, 1, 0);
#ifndef PLAIN
  // All of what is asked for, in parts of which the last is smaller than the mark.
  tell('c');
  hear('s');
  tell('d');
  EQ(rrecv(fd, buf, 2000, MSG_WAITALL), 2000);
  verify(buf, 1500, 2, 0);
  verify(buf + 1500, 500, 3, 0);
  hear('s');
  // A call that waits takes parts as they come, until there are enough.
  tell('e');
  hear('s');
  tell('f');
  double t = now();
  ssize_t n = rrecv(fd, buf, sizeof buf, 0);
  CHECK(n >= 1000 && n <= 1200);
  took(t, 0.05, 10);
  // A message into which the end of a buffer falls arrives in two.
  if (n < 1200) EQ(rrecv(fd, buf + n, 1200 - n, 0), 1200 - n);
  verify(buf, 600, 4, 0);
  verify(buf + 600, 600, 5, 0);
  hear('s');
#endif
  // The end ends the waiting.
  tell('g');
  hear('s');
  EQ(rrecv(fd, buf, sizeof buf, 0), 600);
  EQ(rrecv(fd, buf, sizeof buf, 0), 0);
}

#ifndef PLAIN
// SOL_RDMA: before the connection; a listener's go to what it accepts.
static void rdma_solo(int l) {
  static const int sizes[][3] = {{RDMA_SQSIZE, 1000, 1000}, {RDMA_RQSIZE, 70000, 65534}, {RDMA_INLINE, 0, 0},
                                 {RDMA_IOMAPSIZE, 300, 256}};
  int fd = fresh(), value = -1, ends[2];
  socklen_t len = sizeof value;
  EQ(option(fd, SOL_RDMA, RDMA_SQSIZE), 384);
  EQ(option(fd, SOL_RDMA, RDMA_RQSIZE), 384);
  EQ(option(fd, SOL_RDMA, RDMA_INLINE), 64);
  EQ(option(fd, SOL_RDMA, RDMA_IOMAPSIZE), 0);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    FAILS(rsetsockopt(fd, SOL_RDMA, sizes[i][0], &value, sizeof value), EINVAL);
    set_option(fd, SOL_RDMA, sizes[i][0], sizes[i][1]);
    EQ(option(fd, SOL_RDMA, sizes[i][0]), sizes[i][2]);
  }
  FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_ROUTE, &value, sizeof value), ENOTSUP);
  FAILS(rgetsockopt(fd, SOL_RDMA, RDMA_ROUTE, &value, &len), ENOTSUP);
  if (getenv("RS_ADDRESS")) {
    // Asked for too few: what there is, is told when there is a connection.
    set_option(l, SOL_RDMA, RDMA_RQSIZE, 3);
    set_option(l, SOL_RDMA, RDMA_SQSIZE, 5);
    pair(l, ends);
    EQ(option(l, SOL_RDMA, RDMA_SQSIZE), 5);
    EQ(option(ends[1], SOL_RDMA, RDMA_RQSIZE), 16);
    EQ(option(ends[1], SOL_RDMA, RDMA_SQSIZE), 16);
    // The end that connects, too.
    struct sockaddr_storage a;
    socklen_t size = sizeof a;
    EQ(rgetsockname(l, (struct sockaddr *)&a, &size), 0);
    int asks = rsocket(family, SOCK_STREAM, 0);
    set_option(asks, SOL_RDMA, RDMA_RQSIZE, 5);
    set_option(asks, SOL_RDMA, RDMA_SQSIZE, 3);
    EQ(rconnect(asks, (struct sockaddr *)&a, size), 0);
    EQ(option(asks, SOL_RDMA, RDMA_RQSIZE), 16);
    EQ(option(asks, SOL_RDMA, RDMA_SQSIZE), 16);
    EQ(rclose(raccept(l, NULL, NULL)), 0);
    EQ(rclose(asks), 0);
  }
  set_option(l, SOL_RDMA, RDMA_RQSIZE, 100);
  set_option(l, SOL_RDMA, RDMA_SQSIZE, 120);
  pair(l, ends);
  EQ(option(ends[1], SOL_RDMA, RDMA_RQSIZE), 100);
  EQ(option(ends[1], SOL_RDMA, RDMA_SQSIZE), 120);
  EQ(option(ends[0], SOL_RDMA, RDMA_RQSIZE), 384);
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    value = 50;
    FAILS(rsetsockopt(ends[0], SOL_RDMA, sizes[i][0], &value, sizeof value), EINVAL);
  }
  char c;
  put(ends[0], "x", 1);
  get(ends[1], &c, 1);
}

// What is not in the table: refused, and not passed on to where it would do nothing.
static void refused_solo(int l) {
  static const int all[][2] = {{SOL_SOCKET, SO_BROADCAST}, {SOL_SOCKET, SO_PRIORITY}, {SOL_SOCKET, SO_MARK},
                               {SOL_SOCKET, SO_BINDTODEVICE}, {SOL_SOCKET, SO_TIMESTAMP}, {SOL_SOCKET, SO_ATTACH_FILTER},
                               {IPPROTO_TCP, TCP_DEFER_ACCEPT}, {IPPROTO_TCP, TCP_FASTOPEN}, {IPPROTO_TCP, 31},
                               {IPPROTO_IP, IP_TTL}, {IPPROTO_IPV6, IPV6_MTU}, {SOL_RDMA, 5}, {SOL_RDMA, -1}, {77, 1}};
  int ends[2], value = 1;
  pair(l, ends);
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    socklen_t len = sizeof value;
    FAILS(rsetsockopt(ends[0], all[i][0], all[i][1], &value, sizeof value), ENOTSUP);
    FAILS(rgetsockopt(ends[0], all[i][0], all[i][1], &value, &len), ENOTSUP);
  }
  FAILS(rgetsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, NULL, NULL), EFAULT);
  FAILS(rfcntl(ends[0], F_SETOWN, getpid()), ENOTSUP);
  char c;
  put(ends[0], "x", 1);
  get(ends[1], &c, 1);
}

// SO_REUSEPORT: where the kernel hands out the ports; RDMA's connection manager has no such thing.
static void reuse_port_solo(int l) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  int one = fresh(), two = fresh(), on = 1;
  if (getenv("RS_ADDRESS")) {
    FAILS(rsetsockopt(one, SOL_SOCKET, SO_REUSEPORT, &on, sizeof on), ENOTSUP);
    return;
  }
  set_option(one, SOL_SOCKET, SO_REUSEPORT, 1);
  EQ(option(one, SOL_SOCKET, SO_REUSEPORT), 1);
  set_option(two, SOL_SOCKET, SO_REUSEPORT, 1);
  len = address(&a, 0);
  EQ(rbind(one, (struct sockaddr *)&a, len), 0);
  EQ(rgetsockname(one, (struct sockaddr *)&a, &len), 0);
  EQ(rbind(two, (struct sockaddr *)&a, len), 0);
  (void)l;
}
#endif

const rs_case CASES[] = {
    {"on_off", on_off_solo, NULL, SOLO},
    {"reuse", reuse_solo, NULL, SOLO},
    {"buffers", buffers_solo, NULL, SOLO},
    {"linger", linger_server, linger_client, RAW},
    {"error", error_solo, NULL, SOLO},
    {"kind", kind_solo, NULL, SOLO},
    {"timeouts", timeouts_server, timeouts_client_end, 0},
    {"low_water", low_water_server, low_water_client, 0},
#ifndef PLAIN
    {"rdma", rdma_solo, NULL, SOLO},
    {"refused", refused_solo, NULL, SOLO},
    {"reuse_port", reuse_port_solo, NULL, SOLO},
#endif
    {0},
};
