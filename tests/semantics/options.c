// What a program can ask of its sockets: names, options, flags, and how a connection begins.
#include "sem.h"

static int opt(int fd, int level, int name) {
  int v = -12345;
  socklen_t n = sizeof v;
  CHECK(!getsockopt(fd, level, name, &v, &n) && n == sizeof v);
  return v;
}
static int port_of(int fd, int peer) {
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  memset(&a, 0, sizeof a);
  CHECK(!(peer ? getpeername(fd, (void *)&a, &n) : getsockname(fd, (void *)&a, &n)));
  EQ(a.ss_family, ctx.family);
  EQ(n, ctx.family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
  return ntohs(ctx.family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
}
static void names_server(int fd) {
  tell_int(port_of(fd, 0));
  tell_int(port_of(fd, 1));
  hear('e');
}
static void names_client(int fd) {
  EQ(port_of(fd, 1), hear_int());
  EQ(port_of(fd, 0), hear_int());
  EQ(port_of(fd, 1), ctx.port);
  struct sockaddr_storage a;
  socklen_t n = 4;
  CHECK(!getsockname(fd, (void *)&a, &n));  // cut, with the real length told
  EQ(n, ctx.family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
  tell('e');
}
static void options_both(int fd) {
  EQ(opt(fd, SOL_SOCKET, SO_TYPE), SOCK_STREAM);
  EQ(opt(fd, SOL_SOCKET, SO_DOMAIN), ctx.family);
  EQ(opt(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_TCP);
  EQ(opt(fd, SOL_SOCKET, SO_ERROR), 0);
  EQ(opt(fd, SOL_SOCKET, SO_ACCEPTCONN), 0);
  for (int on = 1; on >= 0; on--) {
    CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    EQ(opt(fd, IPPROTO_TCP, TCP_NODELAY), on);
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on));
    EQ(opt(fd, SOL_SOCKET, SO_KEEPALIVE), on);
  }
  int size = 100000;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
  EQ(opt(fd, SOL_SOCKET, SO_RCVBUF), 200000);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size));
  EQ(opt(fd, SOL_SOCKET, SO_SNDBUF), 200000);
  struct linger l = {1, 3}, m = {0, 0};
  socklen_t n = sizeof m;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_LINGER, &m, &n) && m.l_onoff == 1 && m.l_linger == 3);
  struct timeval t = {2, 0}, u = {0, 0};
  n = sizeof u;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &u, &n) && u.tv_sec == 2);
  struct tcp_info i;
  n = sizeof i;
  memset(&i, 0, sizeof i);
  CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &n));
  EQ(i.tcpi_state, TCP_ESTABLISHED);
  FAILS(setsockopt(fd, IPPROTO_TCP, 9999, &n, sizeof n), ENOPROTOOPT);
  struct stat st;
  CHECK(!fstat(fd, &st) && S_ISSOCK(st.st_mode));
  // And it still carries data with all that set.
  put_stream(fd, 1, 0, 300000, 9000);
  get_stream(fd, 1, 0, 300000, 9000);
  tell('b');
  hear('b');
}
static void fd_flags(int lfd) {
  int c = dial();
  int s = accept4(lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  EQ(fcntl(s, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EQ(fcntl(s, F_GETFD), FD_CLOEXEC);
  EQ(fcntl(s, F_GETFL) & O_ACCMODE, O_RDWR);
  nonblock(lfd, 1);
  int c2 = dial(), s2 = -1;
  CHECK(ready(lfd, POLLIN, 2000));
  s2 = accept(lfd, NULL, NULL);
  EQ(fcntl(s2, F_GETFL) & O_NONBLOCK, 0);  // not inherited from the listener
  EQ(fcntl(s2, F_GETFD), 0);
  int k = socket(ctx.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  EQ(fcntl(k, F_GETFD), FD_CLOEXEC);
  EQ(fcntl(k, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EQ(opt(lfd, SOL_SOCKET, SO_ACCEPTCONN), 1);
  FAILS(accept4(lfd, NULL, NULL, 0x40000000), EINVAL);
  FAILS(accept(lfd, NULL, NULL), EAGAIN);
  settle(c2, s2);
  put(c2, "x", 1);
  char b;
  get(s2, &b, 1);
  int on = 1;
  CHECK(!ioctl(c, FIONBIO, &on));
  EQ(fcntl(c, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  // New numbers are the lowest free ones: the library's own descriptors are out of the way.
  close(c);
  EQ(dup(0), c);
}
static void refused(int lfd) {
  struct sockaddr_storage a;
  int port;
  int l = listener(&port);
  close(l);
  socklen_t n = address(&a, port);
  int fd = socket(ctx.family, SOCK_STREAM, 0);
  FAILS(connect(fd, (void *)&a, n), ECONNREFUSED);
  close(fd);
  fd = socket(ctx.family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  int r = connect(fd, (void *)&a, n);
  CHECK(r == -1 && (errno == EINPROGRESS || errno == ECONNREFUSED));
  if (errno == EINPROGRESS) {
    EQ(ready(fd, POLLOUT, 2000), POLLOUT | POLLERR | POLLHUP);
    EQ(opt(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
    EQ(opt(fd, SOL_SOCKET, SO_ERROR), 0);
  }
  // The same socket may try again elsewhere.
  n = address(&a, ctx.port);
  nonblock(fd, 0);
  // (Linux answers once more for the failed attempt when its error has been taken by SO_ERROR.)
  if (connect(fd, (void *)&a, n)) {
    CHECK(errno == ECONNABORTED);
    EQ(connect(fd, (void *)&a, n), 0);
  }
  FAILS(connect(fd, (void *)&a, n), EISCONN);
  int s = accept(lfd, NULL, NULL);
  settle(fd, s);
  put(s, "hi", 2);
  char b[2];
  get(fd, b, 2);
  FAILS(connect(s, (void *)&a, n), EISCONN);
  FAILS(listen(fd, 1), EINVAL);
  FAILS(bind(fd, (void *)&a, n), EINVAL);
  fd = socket(ctx.family, SOCK_STREAM, 0);
  FAILS(bind(fd, (void *)&a, n), EADDRINUSE);
  FAILS(connect(fd, (void *)&a, 3), EINVAL);
  a.ss_family = AF_UNIX + 50;
  FAILS(connect(fd, (void *)&a, n), EAFNOSUPPORT);
}
static void bound(int lfd) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, 0);
  int fd = socket(ctx.family, SOCK_STREAM, 0);
  CHECK(!bind(fd, (void *)&a, n));
  int mine = port_of(fd, 0);
  CHECK(mine > 0);
  n = address(&a, ctx.port);
  CHECK(!connect(fd, (void *)&a, n));
  EQ(port_of(fd, 0), mine);
  struct sockaddr_storage p;
  n = sizeof p;
  int s = accept(lfd, (void *)&p, &n);
  CHECK(s >= 0);
  EQ(ntohs(ctx.family == AF_INET6 ? ((struct sockaddr_in6 *)&p)->sin6_port : ((struct sockaddr_in *)&p)->sin_port), mine);
  FAILS(getpeername(lfd, (void *)&p, &n), ENOTCONN);
}
// The backlog is the kernel's: connections wait there, with data, before the server accepts.
static void backlog_server(int lfd) {
  hear('c');
  for (int i = 0; i < 10; i++) {
    int fd = accept(lfd, NULL, NULL);
    char b[20];
    get(fd, b, 20);
    verify(b, 20, i, 0);
    if (i < 5) get_eof(fd);
    else put(fd, b, 20);
  }
  hear('e');
}
static void backlog_client(int fd) {
  int f[10];
  char b[20];
  (void)fd;
  for (int i = 0; i < 10; i++) {
    f[i] = dial();
    fill(b, 20, i, 0);
    put(f[i], b, 20);
    if (i < 5) close(f[i]);
  }
  tell('c');
  for (int i = 5; i < 10; i++) {
    get(f[i], b, 20);
    verify(b, 20, i, 0);
  }
  tell('e');
}
// Accept is to wait for the first bytes, by whatever way they come.
static void deferred_server(int lfd) {
  int seconds = 60;
  char b[20];
  CHECK(!setsockopt(lfd, IPPROTO_TCP, TCP_DEFER_ACCEPT, &seconds, sizeof seconds));
  tell('r');
  int fd = accept(lfd, NULL, NULL);
  CHECK(fd >= 0);
  get(fd, b, 20);
  verify(b, 20, 3, 0);
  put(fd, b, 20);
  get_eof(fd);
}
static void deferred_client(int fd) {
  char b[20];
  hear('r');
  fd = dial();
  fill(b, 20, 3, 0);
  put(fd, b, 20);
  get(fd, b, 20);
  verify(b, 20, 3, 0);
  close(fd);
}
// A v6 listener that also takes v4 clients.
static void dual_server(int lfd) {
  (void)lfd;
  struct sockaddr_in6 a = {.sin6_family = AF_INET6};
  socklen_t n = sizeof a;
  int l = socket(AF_INET6, SOCK_STREAM, 0), off = 0;
  CHECK(l >= 0 && !setsockopt(l, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off));
  CHECK(!bind(l, (void *)&a, sizeof a) && !listen(l, 5) && !getsockname(l, (void *)&a, &n));
  tell_int(ntohs(a.sin6_port));
  int fd = accept(l, (void *)&a, &n);
  CHECK(fd >= 0 && (ctx.family == AF_INET6) == !IN6_IS_ADDR_V4MAPPED(&a.sin6_addr));
  warm(fd, 0);
  get_stream(fd, 1, 0, 3 << 20, 20000);
  put_stream(fd, 2, 0, 3 << 20, 20000);
  get_eof(fd);
}
static void dual_client(int fd) {
  fd = dial_port(hear_int());
  warm(fd, 1);
  put_stream(fd, 1, 0, 3 << 20, 20000);
  get_stream(fd, 2, 0, 3 << 20, 20000);
  close(fd);
}
static void reuseport_server(int lfd) {
  (void)lfd;
  struct sockaddr_storage a;
  int port = 0, one = 1, l[2];
  for (int i = 0; i < 2; i++) {
    socklen_t n = address(&a, port);
    l[i] = socket(ctx.family, SOCK_STREAM, 0);
    CHECK(!setsockopt(l[i], SOL_SOCKET, SO_REUSEPORT, &one, sizeof one));
    CHECK(!bind(l[i], (void *)&a, n) && !listen(l[i], 64));
    port = port_of(l[i], 0);
  }
  tell_int(port);
  for (int i = 0; i < 20; i++) {
    struct pollfd p[2] = {{l[0], POLLIN, 0}, {l[1], POLLIN, 0}};
    CHECK(poll(p, 2, 5000) > 0);
    int fd = accept(l[p[0].revents ? 0 : 1], NULL, NULL);
    get_stream(fd, i, 0, 30000, 5000);
    put(fd, "y", 1);
    get_eof(fd);
    close(fd);
  }
}
static void reuseport_client(int fd) {
  int port = hear_int();
  for (int i = 0; i < 20; i++) {
    char c;
    fd = dial_port(port);
    put_stream(fd, i, 0, 30000, 5000);
    get(fd, &c, 1);
    close(fd);
  }
}
// Times of arrival come to the caller that gives room for them; no other caller is disturbed.
static int stamp_of(int fd) {
  char b[100], control[200];
  struct iovec v = {b, sizeof b};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  EQ(recvmsg(fd, &m, MSG_WAITALL), sizeof b);
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  if (!c) return 0;
  struct timeval then, now;
  CHECK(c->cmsg_level == SOL_SOCKET && c->cmsg_type == SO_TIMESTAMP && c->cmsg_len >= CMSG_LEN(sizeof then));
  memcpy(&then, CMSG_DATA(c), sizeof then);
  CHECK(!gettimeofday(&now, NULL) && now.tv_sec - then.tv_sec >= 0 && now.tv_sec - then.tv_sec < 20);
  return 1;
}
static void stamped(int fd) {
  char b[100];
  int on = 1;
  EQ(stamp_of(fd), 0);
  put(fd, b, 1);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on));
  EQ(opt(fd, SOL_SOCKET, SO_TIMESTAMP), 1);
  for (int i = 0; i < 1000; i++) {
    get(fd, b, sizeof b);
    put(fd, b, 1);
  }
  // The kernel starts to note the time a while after it was asked to; what it has taken before has
  // none.
  int times = 0;
  for (int more = 20; more >= 0 && times < 18; more--) {
    nap(50);
    times = 0;
    for (int i = 0; i < 20; i++) {
      times += stamp_of(fd);
      put(fd, b, 1);
    }
    tell_int(more > 0 && times < 18);
  }
  if (times < 18) FAIL("%d of the last 20 messages have a time", times);
  get_stream(fd, 1, 0, 100000, 5000);
  EQ(read(fd, b, 1), 0);
}
static void stamped_client(int fd) {
  char b[100] = {0};
  for (int i = 0; i < 1001; i++) {
    put(fd, b, sizeof b);
    get(fd, b, 1);
  }
  do {
    for (int i = 0; i < 20; i++) {
      put(fd, b, sizeof b);
      get(fd, b, 1);
    }
  } while (hear_int());
  put_stream(fd, 1, 0, 100000, 1000);
  CHECK(!shutdown(fd, SHUT_WR));
}
// Other kinds of socket are not touched.
static void others(int lfd) {
  char b[10];
  int s[2];
  (void)lfd;
  for (int type = SOCK_STREAM; type <= SOCK_DGRAM; type++) {
    CHECK(!socketpair(AF_UNIX, type, 0, s));
    CHECK(write(s[0], "abc", 3) == 3 && recv(s[1], b, 10, 0) == 3);
    close(s[0]), close(s[1]);
  }
  struct sockaddr_storage a;
  socklen_t n = address(&a, 0);
  int u = socket(ctx.family, SOCK_DGRAM, 0), v = socket(ctx.family, SOCK_DGRAM, 0);
  CHECK(!bind(u, (void *)&a, n) && !getsockname(u, (void *)&a, &n));
  EQ(sendto(v, "dgram", 5, 0, (void *)&a, n), 5);
  EQ(ready(u, POLLIN, 1000), POLLIN);
  EQ(recvfrom(u, b, 3, MSG_TRUNC, NULL, NULL), 5);
  CHECK(!connect(v, (void *)&a, n));
  EQ(send(v, "x", 1, 0), 1);
  EQ(recv(u, b, 10, 0), 1);
}
const test_case CASES[] = {
    {"names", names_server, names_client, 0},
    {"options", options_both, options_both, 0},
    {"fd_flags", fd_flags, NULL, SOLO},
    {"refused_and_again", refused, NULL, SOLO},
    {"bound_client", bound, NULL, SOLO},
    {"deferred", deferred_server, deferred_client, RAW},
    {"backlog", backlog_server, backlog_client, RAW | EARLY},
    {"dual_stack", dual_server, dual_client, RAW},
    {"reuseport", reuseport_server, reuseport_client, RAW},
    {"times_of_arrival", stamped, stamped_client, NOSHM},
    {"other_sockets", others, NULL, SOLO},
    {0},
};
