// Datagram rsockets: two of them, and one beside a plain UDP socket. The server's has the number of
// the case's listener.
#include "datagrams.h"

static void sizes_client(int l) {
  (void)l;
  hear('r');
  int fd = connected(port), sizes[] = {1, 2, 7, 8, 28, 500, 1016, 1017, 1500, 2000, most() - 1, most()};
  for (int round = 0; round < 20; round++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      fill(sent, sizes[i], round, i);
      EQ(rsend(fd, sent, sizes[i], 0), sizes[i]);
      EQ(rrecv(fd, got, sizeof got, 0), sizes[i]);
      verify(got, sizes[i], round, i);
    }
  FAILS(rsend(fd, sent, most() + 1, 0), EMSGSIZE);
  FAILS(send_to(fd, sent, 4000, port), EMSGSIZE);
  warm(fd, 1);
  stop_echo(fd);
}

static void names_client(int l) {
  (void)l;
  struct sockaddr_storage a, b;
  socklen_t len = sizeof a, blen;
  hear('r');
  int fd = unbound();
  FAILS(rgetpeername(fd, (struct sockaddr *)&a, &len), ENOTCONN);
  FAILS(rsend(fd, "x", 1, 0), EDESTADDRREQ);
  EQ(option(fd, SOL_SOCKET, SO_TYPE), SOCK_DGRAM);
  // Without a name or a peer: answers come all the same, and say where from.
  for (int i = 0; i < 50; i++) {
    EQ(send_to(fd, "hello", 5, port), 5);
    len = sizeof a;
    EQ(rrecvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&a, &len), 5);
    blen = address(&b, port);
    CHECK(len == blen && a.ss_family == b.ss_family);
    EQ(ntohs(((struct sockaddr_in *)&a)->sin_port), port);
    if (family == AF_INET)
      CHECK(((struct sockaddr_in *)&a)->sin_addr.s_addr == ((struct sockaddr_in *)&b)->sin_addr.s_addr);
    else
      CHECK(memcmp(&((struct sockaddr_in6 *)&a)->sin6_addr, &((struct sockaddr_in6 *)&b)->sin6_addr, 16) == 0);
  }
  CHECK(port_of(fd) != 0);
  join(fd, port);
  len = sizeof a;
  EQ(rgetpeername(fd, (struct sockaddr *)&a, &len), 0);
  EQ(ntohs(((struct sockaddr_in *)&a)->sin_port), port);
  warm(fd, 5);
  // An address beside it goes before it, once.
  int other = bound(0);
  EQ(send_to(fd, "aside", 5, port_of(other)), 5);
  EQ(rrecv(other, got, sizeof got, 0), 5);
  warm(fd, 5);
  // Only the peer is heard.
  EQ(send_to(other, "unwanted", 8, port_of(fd)), 8);
  nap(20);
  warm(fd, 5);
  struct sockaddr none = {.sa_family = AF_UNSPEC};
  EQ(rconnect(fd, &none, sizeof none), 0);
  FAILS(rsend(fd, "x", 1, 0), EDESTADDRREQ);
  // With the peer goes the port, as with UDP.
  EQ(send_to(fd, "hello", 5, port), 5);
  EQ(rrecv(fd, got, sizeof got, 0), 5);
  EQ(send_to(other, "wanted", 6, port_of(fd)), 6);
  EQ(rrecv(fd, got, sizeof got, 0), 6);
  join(fd, port);
  stop_echo(fd);
}

static void cut_client(int l) {
  (void)l;
  hear('r');
  int fd = connected(port);
  for (int i = 0; i < 30; i++) {
    struct sockaddr_storage a;
    struct iovec list[3] = {{sent, 10}, {sent + 10, 0}, {sent + 10, 40}};
    struct msghdr m = {.msg_iov = list, .msg_iovlen = 3};
    fill(sent, 50, i, 0);
    EQ(rsendmsg(fd, &m, 0), 50);
    EQ(rrecv(fd, got, 20, MSG_PEEK), 20);
    EQ(rrecv(fd, got, 20, MSG_PEEK | MSG_TRUNC), 50);
    struct iovec into[2] = {{got, 5}, {got + 5, 20}};
    m = (struct msghdr){.msg_iov = into, .msg_iovlen = 2, .msg_name = &a, .msg_namelen = sizeof a, .msg_flags = 77};
    if (i % 2) {
      EQ(rrecvmsg(fd, &m, 0), 25);
      EQ(m.msg_flags, MSG_TRUNC);
    } else {
      EQ(rrecvmsg(fd, &m, MSG_TRUNC), 50);
      EQ(m.msg_flags, MSG_TRUNC);
    }
    CHECK(m.msg_namelen == (family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)));
    verify(got, 25, i, 0);
    // What was cut off is gone.
    FAILS(rrecv(fd, got, 20, MSG_DONTWAIT), EAGAIN);
    EQ(rsend(fd, sent, 20, 0), 20);
    m.msg_namelen = sizeof a;
    EQ(rrecvmsg(fd, &m, 0), 20);
    EQ(m.msg_flags, 0);
  }
  FAILS(rsend(fd, sent, 1, MSG_OOB), EOPNOTSUPP);
  FAILS(rsend(fd, sent, 1, MSG_MORE), EOPNOTSUPP);
  stop_echo(fd);
}

static void times_client(int l) {
  (void)l;
  hear('r');
  int fd = connected(port);
  warm(fd, 10);
  FAILS(rrecv(fd, got, sizeof got, MSG_DONTWAIT), EAGAIN);
  nonblock(fd, 1);
  FAILS(rrecv(fd, got, sizeof got, 0), EAGAIN);
  nonblock(fd, 0);
  struct timeval limit = {0, 100000};
  CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  double t = now();
  FAILS(rrecv(fd, got, sizeof got, 0), EAGAIN);
  took(t, 0.09, 5);
  limit = (struct timeval){20, 0};
  CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  t = now();
  EQ(ready(fd, POLLIN, 100), 0);
  took(t, 0.09, 5);
  EQ(ready(fd, POLLIN | POLLOUT, 0), POLLOUT);
  stop_echo(fd);
}

// A sleeper, in whatever call, is woken by what comes, and at once.
static void woken_server(int l) {
  (void)l;
  int fd = bound(port), kinds = 3;
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  tell('r');
  for (int i = 0; i < 20; i++) {
    EQ(rrecvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&a, &len), 100);
    EQ(rsendto(fd, got, 100, 0, (struct sockaddr *)&a, len), 100);
  }
  for (int i = 0; i < 4 * kinds; i++) {
    hear('w');
    nap(30);
    EQ(rsendto(fd, &i, sizeof i, 0, (struct sockaddr *)&a, len), sizeof i);
  }
  echo(fd);
}
static void woken_client(int l) {
  (void)l;
  hear('r');
  int fd = connected(port), got_i = -1;
  warm(fd, 20);
  for (int i = 0; i < 12; i++) {
    fd_set set;
    double t = now();
    tell('w');
    switch (i % 3) {
      case 0: break;
      case 1:
        EQ(ready(fd, POLLIN, 15000), POLLIN);
        break;
      case 2:
        FD_ZERO(&set);
        FD_SET(fd, &set);
        struct timeval limit = {15, 0};
        EQ(rselect(fd + 1, &set, NULL, NULL, &limit), 1);
        CHECK(FD_ISSET(fd, &set));
    }
    EQ(rrecv(fd, &got_i, sizeof got_i, 0), sizeof got_i);
    EQ(got_i, i);
    took(t, 0, 10);
  }
  stop_echo(fd);
}

// Nothing is overtaken while the two go over from UDP to something better.
static void order_server(int l) {
  (void)l;
  int fd = bound(port), n = -1;
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  tell('r');
  for (int i = 0; i < 4000; i++) {
    CHECK(rrecvfrom(fd, &n, sizeof n, 0, (struct sockaddr *)&a, &len) == sizeof n);
    if (!getenv("RS_ADDRESS")) EQ(n, i);
    if (i % 20 == 19) EQ(rsendto(fd, &i, sizeof i, 0, (struct sockaddr *)&a, len), sizeof i);
  }
}
static void order_client(int l) {
  (void)l;
  hear('r');
  int fd = connected(port), n = -1;
  for (int i = 0; i < 4000; i++) {
    EQ(rsend(fd, &i, sizeof i, 0), sizeof i);
    if (i % 20 == 19) {
      EQ(rrecv(fd, &n, sizeof n, 0), sizeof n);
      EQ(n, i);
    }
  }
}

// The server begins anew under the same name, while the client goes on.
static void again_server(int l) {
  (void)l;
  for (int i = 0; i < 3; i++) {
    int fd = bound(port);
    tell('r');
    echo(fd);
    EQ(rclose(fd), 0);
    tell('c');
  }
}
static void again_client(int l) {
  (void)l;
  int fd = -1;
  for (int i = 0; i < 3; i++) {
    hear('r');
    if (fd < 0) fd = connected(port);
    // An error of the time in between, or a datagram that went astray, is UDP's way.
    struct timeval soon = {1, 0}, limit = {20, 0};
    CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &soon, sizeof soon) == 0);
    int tries = 0;
    while (rsend(fd, "again", 5, 0) != 5 || rrecv(fd, got, sizeof got, 0) != 5) CHECK(++tries < 15);
    while (rrecv(fd, got, sizeof got, MSG_DONTWAIT) == 5) {
    }
    CHECK(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
    warm(fd, 30);
    stop_echo(fd);
    hear('c');
  }
}

static void crowd(int l) {
  (void)l;
  enum { N = 6 };
  int fd = bound(0), others[N];
  for (int i = 0; i < N; i++) others[i] = connected(port_of(fd));
  for (int round = 0; round < 30; round++) {
    for (int i = 0; i < N; i++) EQ(rsend(others[i], &i, sizeof i, 0), sizeof i);
    for (int i = 0; i < N; i++) {
      struct sockaddr_storage a;
      socklen_t len = sizeof a;
      int n = -1;
      EQ(rrecvfrom(fd, &n, sizeof n, 0, (struct sockaddr *)&a, &len), sizeof n);
      CHECK(n >= 0 && n < N);
      EQ(ntohs(((struct sockaddr_in *)&a)->sin_port), port_of(others[n]));
      EQ(rsendto(fd, &n, sizeof n, 0, (struct sockaddr *)&a, len), sizeof n);
    }
    for (int i = 0; i < N; i++) {
      int n = -1;
      EQ(rrecv(others[i], &n, sizeof n, 0), sizeof n);
      EQ(n, i);
    }
  }
  for (int i = 0; i < N; i++) EQ(rclose(others[i]), 0);
  EQ(rclose(fd), 0);
}

// Whatever is no rsocket is heard, and answered, as it is.
static void plain(int l) {
  (void)l;
  struct sockaddr_storage a;
  socklen_t len = address(&a, 0);
  int fd = bound(0), udp = socket(family, SOCK_DGRAM, 0);
  CHECK(bind(udp, (struct sockaddr *)&a, len) == 0);
  len = address(&a, port_of(fd));
  CHECK(connect(udp, (struct sockaddr *)&a, len) == 0);
  for (int i = 0; i < 20; i++) {
    int size = i == 0 ? 0 : i * 101;
    fill(sent, size, 3, i);
    EQ(send(udp, sent, size, 0), size);
    len = sizeof a;
    EQ(rrecvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&a, &len), size);
    verify(got, size, 3, i);
    EQ(rsendto(fd, got, size, 0, (struct sockaddr *)&a, len), size);
    EQ(recv(udp, got, sizeof got, 0), size);
    verify(got, size, 3, i);
  }
  // Longer than an rsocket may send.
  static unsigned char big[60000];
  fill(big, sizeof big, 4, 0);
  EQ(send(udp, big, sizeof big, 0), sizeof big);
  EQ(ready(fd, POLLIN, 10000), POLLIN);
  EQ(rrecv(fd, got, sizeof got, 0), sizeof big);
  verify(got, sizeof big, 4, 0);
  close(udp);
  EQ(rclose(fd), 0);
}

static void put_header(unsigned char *p, int version, int op, int length) {
  memset(p, 0, 64);
  memset(p, 0x55, 4);
  p[4] = version, p[5] = op, p[6] = length, p[10] = 0x12, p[11] = 0x34;
}

// Packets that look like the exchange's and are not, or lie: nothing of them is seen.
static void hostile(int l) {
  (void)l;
  struct sockaddr_storage a;
  socklen_t len;
  int fd = bound(0), udp = socket(family, SOCK_DGRAM, 0), good = connected(port_of(fd));
  int version = family == AF_INET ? 4 : 6, length = family == AF_INET ? 16 : 28;
  unsigned char p[2048];
  len = address(&a, port_of(fd));
  for (int round = 0; round < 3; round++) {
    for (int v = 0; v < 256; v += v < 10 ? 1 : 49)
      for (int op = 0; op < 256; op += op < 12 ? 1 : 61)
        for (int n = 0; n <= 64; n += n < 4 ? 4 : 3) {
          put_header(p, v, op, n % 2 ? length : n);
          // A datagram, rightly said: that one is to be seen, so it is not sent.
          if (v == version && op == 0 && p[6] == length && n >= length) continue;
          if ((v == 4 || v == 6) && op == 0 && n >= p[6] && p[6] == (v == 4 ? 16 : 28)) continue;
          memset(p + 12, 0xee, 40);
          CHECK(sendto(udp, p, n, 0, (struct sockaddr *)&a, len) == n);
          if (n >= 4) FAILS(rrecv(fd, got, sizeof got, MSG_DONTWAIT), EAGAIN);
          else EQ(rrecv(fd, got, sizeof got, 0), n);
        }
    EQ(ready(fd, POLLIN, 0), 0);
    for (int i = 0; i < 20; i++) {
      EQ(rsend(good, "good", 4, 0), 4);
      EQ(rrecv(fd, got, sizeof got, 0), 4);
      CHECK(memcmp(got, "good", 4) == 0);
    }
  }
  // An invitation that no rsocket can have meant, from a socket to which we send.
  socklen_t mine = address(&a, 0);
  CHECK(bind(udp, (struct sockaddr *)&a, mine) != 0 || 1);
  mine = sizeof a;
  CHECK(getsockname(udp, (struct sockaddr *)&a, &mine) == 0);
  int udp_port = ntohs(((struct sockaddr_in *)&a)->sin_port);
  put_header(p, version, 0, length);
  len = address(&a, port_of(fd));
  CHECK(sendto(udp, p, length, 0, (struct sockaddr *)&a, len) == length);
  EQ(rrecv(fd, got, sizeof got, 0), 0);
  for (int i = 0; i < 5; i++) {
    EQ(send_to(fd, "to you", 6, udp_port), 6);
    put_header(p, version, 9, length);
    memset(p + length, i, 24);
    CHECK(sendto(udp, p, length + 24 + i % 2, 0, (struct sockaddr *)&a, len) == length + 24 + i % 2);
    put_header(p, version, 10, length);
    CHECK(sendto(udp, p, length, 0, (struct sockaddr *)&a, len) == length);
  }
  for (int i = 0; i < 20; i++) {
    EQ(rsend(good, "good", 4, 0), 4);
    EQ(rrecv(fd, got, sizeof got, 0), 4);
  }
  close(udp);
}

static void refused(int l) {
  (void)l;
  int gone = bound(0), to_port = port_of(gone);
  EQ(rclose(gone), 0);
  int fd = connected(to_port);
  EQ(rsend(fd, "x", 1, 0), 1);
  FAILS(rrecv(fd, got, sizeof got, 0), ECONNREFUSED);
  EQ(rsend(fd, "x", 1, 0), 1);
  CHECK(ready(fd, POLLIN, 10000) & POLLERR);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
}

static void halves(int l) {
  (void)l;
  int fd = bound(0), other = connected(port_of(fd));
  FAILS(rshutdown(fd, SHUT_RD), ENOTCONN);
  join(fd, port_of(other));
  for (int i = 0; i < 20; i++) {
    EQ(rsend(other, "x", 1, 0), 1);
    EQ(rrecv(fd, got, sizeof got, 0), 1);
    EQ(rsend(fd, "y", 1, 0), 1);
    EQ(rrecv(other, got, sizeof got, 0), 1);
  }
  FAILS(rshutdown(fd, 7), EINVAL);
  EQ(rshutdown(fd, SHUT_WR), 0);
  FAILS(rsend(fd, "y", 1, 0), EPIPE);
  EQ(rshutdown(fd, SHUT_RD), 0);
  EQ(rrecv(fd, got, sizeof got, 0), 0);
  CHECK(ready(fd, POLLIN, 0) & POLLIN);
}

static void refusals(int l) {
  (void)l;
  struct sockaddr_storage a;
  socklen_t len;
  FAILS(rsocket(family, SOCK_DGRAM, IPPROTO_TCP), EOPNOTSUPP);
  FAILS(rsocket(family, SOCK_RAW, 0), EOPNOTSUPP);
  int fd = rsocket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_UDP);
  CHECK(fd >= 0);
  EQ(rfcntl(fd, F_GETFD), FD_CLOEXEC);
  CHECK(rfcntl(fd, F_GETFL) & O_NONBLOCK);
  FAILS(rlisten(fd, 1), EOPNOTSUPP);
  FAILS(raccept(fd, NULL, NULL), EOPNOTSUPP);
  FAILS(rrecv(fd, got, 10, 0), EAGAIN);
  FAILS(rsend(fd, NULL, 10, 0), EFAULT);
  FAILS(send_to(fd, sent, 10, 0), EINVAL);
  len = address(&a, 9);
  FAILS(rsendto(fd, sent, 10, 0, (struct sockaddr *)&a, 4), EINVAL);
  a.ss_family = AF_UNIX;
  FAILS(rsendto(fd, sent, 10, 0, (struct sockaddr *)&a, len), EAFNOSUPPORT);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 100000);
  CHECK(option(fd, SOL_SOCKET, SO_RCVBUF) >= 100000);
  set_option(fd, SOL_SOCKET, SO_BROADCAST, 1);
  EQ(option(fd, SOL_SOCKET, SO_BROADCAST), 1);
  int copy = rfcntl(fd, F_DUPFD, 0);
  CHECK(copy >= 0);
  EQ(rclose(fd), 0);
  FAILS(rrecv(fd, got, 10, 0), EBADF);
  FAILS(rrecv(copy, got, 10, 0), EAGAIN);
  EQ(rclose(copy), 0);
}

// A child goes on with its parent's socket, and then the parent does.
static void forked_server(int l) {
  (void)l;
  int fd = bound(port), status;
  tell('r');
  echo(fd);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) {
    tell('r');
    echo(fd);
    exit(0);
  }
  CHECK(waitpid(pid, &status, 0) == pid && status == 0);
  tell('r');
  echo(fd);
}
static void forked_client(int l) {
  (void)l;
  for (int i = 0; i < 3; i++) {
    hear('r');
    int fd = connected(port);
    warm(fd, 30);
    stop_echo(fd);
    EQ(rclose(fd), 0);
  }
}

// Many open and close: nothing is left.
static void leaks(int l) {
  (void)l;
  int first = -1, rounds = getenv("RS_ADDRESS") ? 60 : 200;
  for (int i = 0; i < rounds; i++) {
    int fd = bound(0), other = connected(port_of(fd));
    for (int k = 0; k < 3; k++) {
      EQ(rsend(other, "x", 1, 0), 1);
      EQ(rrecv(fd, got, sizeof got, 0), 1);
      FAILS(rrecv(other, got, sizeof got, MSG_DONTWAIT), EAGAIN);
    }
    EQ(rclose(fd), 0);
    EQ(rclose(other), 0);
    int probe = dup(0), high = 0;
    for (int n = 0; n < 4096; n++) high += fcntl(n, F_GETFD) >= 0;
    close(probe);
    if (i == 20) first = high;
    // A few are kept for waking, once they were needed.
    if (i > 20) CHECK(high <= first + 4);
  }
}

const rs_case CASES[] = {
  {"sizes", echo_server, sizes_client, RAW},
  {"names", echo_server, names_client, RAW},
  {"cut", echo_server, cut_client, RAW},
  {"times", echo_server, times_client, RAW},
  {"woken", woken_server, woken_client, RAW},
  {"order", order_server, order_client, RAW},
  {"again", again_server, again_client, RAW},
  {"forked", forked_server, forked_client, RAW},
  {"crowd", crowd, NULL, SOLO},
  {"plain", plain, NULL, SOLO},
  {"hostile", hostile, NULL, SOLO},
  {"refused", refused, NULL, SOLO},
  {"halves", halves, NULL, SOLO},
  {"refusals", refusals, NULL, SOLO},
  {"leaks", leaks, NULL, SOLO},
  {0},
};
