// How rsockets come and go: names, connecting and accepting with and without blocking, what is
// refused, options, forks and the end of a process.
#include "rs.h"

static int port_of(const struct sockaddr_storage *a) { return ntohs(((const struct sockaddr_in *)a)->sin_port); }

static void names_server(int l) {
  struct sockaddr_storage peer, own;
  socklen_t len = sizeof peer, own_len = sizeof own, short_len = 4;
  int fd = raccept(l, (struct sockaddr *)&peer, &len);
  CHECK(fd >= 0);
  EQ(len, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
  EQ(peer.ss_family, family);
  EQ(rgetsockname(fd, (struct sockaddr *)&own, &own_len), 0);
  EQ(port_of(&own), port);
  int their = port_of(&peer);
  put(fd, &their, sizeof their);
  EQ(rgetpeername(fd, (struct sockaddr *)&own, &own_len), 0);
  EQ(memcmp(&own, &peer, len), 0);
  EQ(rgetpeername(fd, (struct sockaddr *)&own, &short_len), 0);
  EQ(short_len, len);
  FAILS(rgetpeername(l, (struct sockaddr *)&own, &own_len), ENOTCONN);
  get_eof(fd);
}
static void names_client(int fd) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  fd = dial();
  int mine;
  get(fd, &mine, sizeof mine);
  EQ(rgetsockname(fd, (struct sockaddr *)&a, &len), 0);
  EQ(port_of(&a), mine);
  len = sizeof a;
  EQ(rgetpeername(fd, (struct sockaddr *)&a, &len), 0);
  EQ(port_of(&a), port);
  len = address(&a, port);
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), EISCONN);
  EQ(rclose(fd), 0);
}

// A port on which no socket listens.
static int nobody(void) {
  int free_port, l = listener(&free_port);
  EQ(rclose(l), 0);
  return free_port;
}

static void refused_solo(int l) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, nobody());
  int fd = rsocket(family, SOCK_STREAM, 0), other;
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), ECONNREFUSED);
  FAILS(rsend(fd, "x", 1, 0), ENOTCONN);
  // The socket is as good as new.
  len = address(&a, port);
  EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
  CHECK((other = raccept(l, NULL, NULL)) >= 0);
  char c;
  EQ(rsend(fd, "x", 1, 0), 1);
  EQ(rrecv(other, &c, 1, 0), 1);
}

static void refused_later_solo(int l) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, nobody());
  int fd = rsocket(family, SOCK_STREAM | SOCK_NONBLOCK, 0), other;
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), EINPROGRESS);
  CHECK(ready(fd, POLLOUT, 20000) & POLLERR);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  FAILS(rsend(fd, "x", 1, 0), ENOTCONN);
  char c;
  FAILS(rrecv(fd, &c, 1, 0), ENOTCONN);
  len = address(&a, port);
  // Linux says once more that the first attempt has failed.
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), ECONNABORTED);
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), EINPROGRESS);
  CHECK((other = raccept(l, NULL, NULL)) >= 0);
  EQ(ready(fd, POLLOUT, 20000), POLLOUT);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  nonblock(fd, 0);
  EQ(rsend(fd, "x", 1, 0), 1);
  EQ(rrecv(other, &c, 1, 0), 1);
}

// The connection stands, and POLLOUT says so, before the server has accepted it; after that POLLOUT
// means room.
static void later_server(int l) {
  hear('c');
  nap(100);
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get_stream(fd, 1, 100000, 5000);
  put(fd, "!", 1);
  get_eof(fd);
}
static void later_client(int fd) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  fd = rsocket(family, SOCK_STREAM, 0);
  nonblock(fd, 1);
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), EINPROGRESS);
  EQ(ready(fd, POLLIN | POLLOUT, 20000), POLLOUT);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  FAILS(rsend(fd, "x", 1, 0), EAGAIN);
  EQ(ready(fd, POLLOUT, 0), 0);
  double t = now(), cpu = cpu_used();
  tell('c');
  EQ(ready(fd, POLLOUT, 20000), POLLOUT);
  took(t, 0.05, 2);
  CHECK(cpu_used() - cpu < 0.05);
  nonblock(fd, 0);
  put_stream(fd, 1, 100000, 7000);
  char c;
  get(fd, &c, 1);
}

// The server does not accept for longer than an end waits for a peer that has accepted and says
// nothing.
static void slow_accept_server(int l) {
  hear('c');
  nap(6500);
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get_stream(fd, 1, 10, 10);
}
static void slow_accept_client(int fd) {
  fd = dial();
  double t = now();
  tell('c');
  put_stream(fd, 1, 10, 10);
  took(t, 6, 9);
}

static void accept_solo(int l) {
  char c;
  nonblock(l, 1);
  FAILS(raccept(l, NULL, NULL), EAGAIN);
  EQ(ready(l, POLLIN, 0), 0);
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  int fd = rsocket(family, SOCK_STREAM, 0);
  EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
  EQ(ready(l, POLLIN, 20000), POLLIN);
  int other = raccept(l, NULL, NULL);
  CHECK(other >= 0);
  // What is accepted blocks, whatever the listener does.
  EQ(rfcntl(other, F_GETFL) & O_NONBLOCK, 0);
  EQ(rfcntl(other, F_GETFD), 0);
  put(fd, "x", 1);
  get(other, &c, 1);
  // And with a time-out.
  nonblock(l, 0);
  struct timeval t = {0, 300000};
  EQ(rsetsockopt(l, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), 0);
  double since = now();
  FAILS(raccept(l, NULL, NULL), EAGAIN);
  took(since, 0.3, 0.5);
}

static void nothing(int fd) { EQ(rclose(fd), 0); }

static void bad_solo(int l) {
  char buf[8];
  struct iovec v = {buf, sizeof buf};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  int on = 1, pipes[2], gone = rsocket(family, SOCK_STREAM, 0);
  EQ(pipe(pipes), 0);
  EQ(rclose(gone), 0);
  int all[] = {-1, -2147483647 - 1, pipes[1], gone, 1 << 30, 2147483647, 0};
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    int fd = all[i];
    FAILS(rsend(fd, buf, 1, 0), EBADF);
    FAILS(rsendto(fd, buf, 1, 0, NULL, 0), EBADF);
    FAILS(rsendmsg(fd, &m, 0), EBADF);
    FAILS(rwrite(fd, buf, 1), EBADF);
    FAILS(rwritev(fd, &v, 1), EBADF);
    FAILS(rrecv(fd, buf, 1, 0), EBADF);
    FAILS(rrecvfrom(fd, buf, 1, 0, NULL, NULL), EBADF);
    FAILS(rrecvmsg(fd, &m, 0), EBADF);
    FAILS(rread(fd, buf, 1), EBADF);
    FAILS(rreadv(fd, &v, 1), EBADF);
    FAILS(rbind(fd, (struct sockaddr *)&a, len), EBADF);
    FAILS(rlisten(fd, 1), EBADF);
    FAILS(raccept(fd, NULL, NULL), EBADF);
    FAILS(rconnect(fd, (struct sockaddr *)&a, len), EBADF);
    FAILS(rshutdown(fd, SHUT_WR), EBADF);
    FAILS(rgetsockname(fd, (struct sockaddr *)&a, &len), EBADF);
    FAILS(rgetpeername(fd, (struct sockaddr *)&a, &len), EBADF);
    FAILS(rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on), EBADF);
    FAILS(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &on, &len), EBADF);
    FAILS(rfcntl(fd, F_GETFL), EBADF);
    FAILS(rclose(fd), EBADF);
  }
  // What is no rsocket was left alone.
  EQ(write(pipes[1], "x", 1), 1);
  (void)l;
}

static void unconnected_solo(int l) {
  char c;
  int fd = rsocket(family, SOCK_STREAM, 0);
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  for (int i = 0; i < 2; i++) {
    int s = i ? l : fd;
    FAILS(rsend(s, "x", 1, 0), ENOTCONN);
    FAILS(rwritev(s, &v, 1), ENOTCONN);
    FAILS(rsendmsg(s, &m, 0), ENOTCONN);
    FAILS(rrecv(s, &c, 1, 0), ENOTCONN);
    FAILS(rrecv(s, &c, 1, MSG_DONTWAIT), ENOTCONN);
    FAILS(rrecvmsg(s, &m, 0), ENOTCONN);
    FAILS(rreadv(s, &v, 1), ENOTCONN);
    FAILS(rshutdown(s, SHUT_WR), ENOTCONN);
  }
  FAILS(rshutdown(fd, 7), EINVAL);
  FAILS(raccept(fd, NULL, NULL), EINVAL);
  FAILS(rsocket(AF_UNIX, SOCK_STREAM, 0), ENOTSUP);
  FAILS(rsocket(family, SOCK_SEQPACKET, 0), ENOTSUP);
  FAILS(rsocket(family, SOCK_STREAM, IPPROTO_UDP), ENOTSUP);
  struct sockaddr_storage a;
  socklen_t len = address(&a, 9);
  FAILS(rconnect(fd, (struct sockaddr *)&a, 3), EINVAL);
  FAILS(rconnect(fd, NULL, len), EFAULT);
  a.ss_family = AF_UNIX;
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), EAFNOSUPPORT);
  len = address(&a, port);
  FAILS(rbind(fd, (struct sockaddr *)&a, len), EADDRINUSE);
  EQ(rlisten(l, 5), 0);
  EQ(rclose(fd), 0);
}

// Without an RDMA device no other host can be reached: it is said at once, and nothing is sent.
static void elsewhere_solo(int l) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, 9);
  int fd = rsocket(family, SOCK_STREAM, 0);
  if (family == AF_INET)
    inet_pton(AF_INET, "203.0.113.77", &((struct sockaddr_in *)&a)->sin_addr);
  else
    inet_pton(AF_INET6, "2001:db8::77", &((struct sockaddr_in6 *)&a)->sin6_addr);
  double t = now();
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), ENODEV);
  took(t, 0, 0.2);
  (void)l;
}

static void options_server(int l) {
  set_option(l, SOL_RDMA, RDMA_RQSIZE, 100);
  int fd = raccept(l, NULL, NULL);
  EQ(option(fd, SOL_RDMA, RDMA_RQSIZE), 100);
  EQ(option(fd, SOL_RDMA, RDMA_SQSIZE), 384);
  tell('a');
  get_eof(fd);
}
static void options_client(int fd) {
  fd = rsocket(family, SOCK_STREAM, 0);
  int value = 0;
  socklen_t len = sizeof value;
  EQ(option(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  static const int flags[][2] = {{SOL_SOCKET, SO_REUSEADDR}, {SOL_SOCKET, SO_KEEPALIVE}, {SOL_SOCKET, SO_OOBINLINE},
                                 {IPPROTO_TCP, TCP_NODELAY}};
  for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
    EQ(option(fd, flags[i][0], flags[i][1]), 0);
    set_option(fd, flags[i][0], flags[i][1], 1);
    EQ(option(fd, flags[i][0], flags[i][1]), 1);
  }
  if (family == AF_INET6) {
    set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 1);
    EQ(option(fd, IPPROTO_IPV6, IPV6_V6ONLY), 1);
  }
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 1 << 19);
  EQ(option(fd, SOL_SOCKET, SO_SNDBUF), 1 << 20);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 100000);
  EQ(option(fd, SOL_SOCKET, SO_RCVBUF), 200000);
  CHECK(option(fd, IPPROTO_TCP, TCP_MAXSEG) > 0);
  struct linger l = {0, 0}, in = {1, 3};
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &in, sizeof in), 0);
  len = sizeof l;
  EQ(rgetsockopt(fd, SOL_SOCKET, SO_LINGER, &l, &len), 0);
  EQ(l.l_onoff * 10 + l.l_linger, 13);
  static const int sizes[][3] = {{RDMA_SQSIZE, 1000, 1000}, {RDMA_RQSIZE, 70000, 65534}, {RDMA_INLINE, 0, 0},
                                 {RDMA_IOMAPSIZE, 300, 256}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    set_option(fd, SOL_RDMA, sizes[i][0], sizes[i][1]);
    EQ(option(fd, SOL_RDMA, sizes[i][0]), sizes[i][2]);
  }
  FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, 2), EINVAL);
  FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_ROUTE, &value, sizeof value), ENOTSUP);
  FAILS(rgetsockopt(fd, SOL_RDMA, RDMA_ROUTE, &value, &len), ENOTSUP);
  FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", 3), ENOTSUP);
  struct sockaddr_storage a;
  socklen_t size = address(&a, port);
  EQ(rconnect(fd, (struct sockaddr *)&a, size), 0);
  value = 5;
  FAILS(rsetsockopt(fd, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value), EINVAL);
  EQ(option(fd, SOL_RDMA, RDMA_SQSIZE), 1000);
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_SNDBUF, &value, sizeof value), 0);
  EQ(option(fd, SOL_SOCKET, SO_SNDBUF), 1 << 20);
  FAILS(rfcntl(fd, F_SETOWN, getpid()), ENOTSUP);
  EQ(rfcntl(fd, F_SETFD, FD_CLOEXEC), 0);
  EQ(rfcntl(fd, F_GETFD), FD_CLOEXEC);
  hear('a');
}

// A program with sockets of the kernel's connects to an rsocket: none of its bytes is taken.
static void stranger_server(int l) {
  int fd = raccept(l, NULL, NULL);
  char c;
  CHECK(fd >= 0);
  hear('s');
  FAILS(rrecv(fd, &c, 1, 0), ECONNRESET);
  EQ(rclose(fd), 0);
  tell('r');
}
static void stranger_client(int fd) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  fd = socket(family, SOCK_STREAM, 0);
  EQ(connect(fd, (struct sockaddr *)&a, len), 0);
  EQ(write(fd, "hello", 5), 5);
  tell('s');
  hear('r');
  char c;
  CHECK(read(fd, &c, 1) <= 0);
}

static void dup_server(int fd) {
  get_stream(fd, 1, 2000, 1000);
  put(fd, "!", 1);
  get_eof(fd);
}
static void dup_client(int fd) {
  int again = rfcntl(fd, F_DUPFD, 50), third = rfcntl(fd, F_DUPFD_CLOEXEC, 0);
  char c;
  CHECK(again >= 50 && third >= 0);
  EQ(rfcntl(third, F_GETFD), FD_CLOEXEC);
  char buf[2000];
  fill(buf, sizeof buf, 1, 0);
  put(fd, buf, 500);
  put(again, buf + 500, 500);
  EQ(rclose(fd), 0);
  FAILS(rsend(fd, "x", 1, 0), EBADF);
  put(third, buf + 1000, 1000);
  EQ(rclose(third), 0);
  get(again, &c, 1);
  EQ(rclose(again), 0);
}

// Children serve, as in a server that forks for each connection; the parent goes on.
static void children_server(int l) {
  for (int i = 0; i < 4; i++) {
    int fd = raccept(l, NULL, NULL);
    CHECK(fd >= 0);
    if (fork() == 0) {
      rclose(l);
      get_stream(fd, i, 200000, 3000);
      put_stream(fd, i, 200000, 50000);
      exit(0);
    }
    EQ(rclose(fd), 0);
  }
  int status;
  while (wait(&status) > 0) EQ(status, 0);
}
static void children_client(int fd) {
  for (int i = 0; i < 4; i++) {
    fd = dial();
    put_stream(fd, i, 200000, 40000);
    get_stream(fd, i, 200000, 2000);
    get_eof(fd);
    EQ(rclose(fd), 0);
  }
}

// What was accepted is the peer's, even if the program ends at once and closes nothing.
static void exit_server(int fd) {
  hear('s');
  nap(100);
  get_stream(fd, 9, 60000, 1000);
  get_eof(fd);
}
static void exit_client(int fd) {
  put_stream(fd, 9, 60000, 30000);
  tell('s');
  exit(0);
}

const rs_case CASES[] = {
    {"names", names_server, names_client, RAW},
    {"refused", refused_solo, NULL, SOLO},
    {"refused_later", refused_later_solo, NULL, SOLO},
    {"connect_later", later_server, later_client, RAW},
    {"slow_accept", slow_accept_server, slow_accept_client, RAW},
    {"accept", accept_solo, NULL, SOLO},
    {"close_at_once", get_eof, nothing, 0},
    {"bad_descriptors", bad_solo, NULL, SOLO},
    {"unconnected", unconnected_solo, NULL, SOLO},
    {"elsewhere", elsewhere_solo, NULL, SOLO},
    {"options", options_server, options_client, RAW},
    {"stranger", stranger_server, stranger_client, RAW},
    {"dup", dup_server, dup_client, 0},
    {"children", children_server, children_client, RAW},
    {"exit", exit_server, exit_client, 0},
    {0},
};
