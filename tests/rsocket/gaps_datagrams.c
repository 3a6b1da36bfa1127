// What upstream's library gets wrong about datagrams, one case for each row of the list of its
// gaps, section 5. (5.4 needs a device: tests/vm/datagrams.sh.)
#include "datagrams.h"

#include <sys/time.h>

static int descriptors(void) {
  int open = 0;
  for (int n = 0; n < 4096; n++) open += fcntl(n, F_GETFD) >= 0;
  return open;
}

// A round trip to `fd`, which echoes nothing by itself: this process has both. Where from it came.
static int there(int from, int fd, int to_port, int size) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  fill(sent, size, 5, to_port);
  EQ(send_to(from, sent, size, to_port), size);
  EQ(rrecvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&a, &len), size);
  verify(got, size, 5, to_port);
  return ntohs(((struct sockaddr_in *)&a)->sin_port);
}

// The two know the way to each other: over a device, two datagrams that are under way before that
// may change places.
static void meet(int from, int fd, int to_port) {
  for (int i = 0; i < 20; i++) {
    int back = there(from, fd, to_port, 100);
    EQ(send_to(fd, "y", 1, back), 1);
    EQ(rrecv(from, got, sizeof got, 0), 1);
  }
}

static int wildcard(void) {
  struct sockaddr_storage a;
  int fd = unbound();
  socklen_t len = address(&a, 0);
  if (family == AF_INET) ((struct sockaddr_in *)&a)->sin_addr.s_addr = INADDR_ANY;
  else ((struct sockaddr_in6 *)&a)->sin6_addr = in6addr_any;
  EQ(rbind(fd, (struct sockaddr *)&a, len), 0);
  return fd;
}

// 5.1 An unbound sender, or one with a wildcard address, opens sockets until there are no more.
static void gap_5_01_unbound_senders_open_nothing(int l) {
  (void)l;
  int fd = bound(0), to = port_of(fd), before = descriptors();
  for (int i = 0; i < 20; i++) {
    int kinds[] = {unbound(), wildcard(), bound(0)};
    for (int k = 0; k < 3; k++) {
      CHECK(there(kinds[k], fd, to, 100) != 0);
      CHECK(descriptors() <= before + 20);
    }
    for (int k = 0; k < 3; k++) EQ(rclose(kinds[k]), 0);
  }
}

// 5.2 What is too long runs over the buffer.
static void gap_5_02_too_long_is_refused(int l) {
  (void)l;
  static unsigned char big[1 << 20];
  int fd = bound(0), to = port_of(fd), other = connected(to), sizes[] = {most() + 1, 2041, 2049, 4097, 65536, sizeof big};
  for (int round = 0; round < 5; round++) {
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      struct iovec list[2] = {{big, 100}, {big + 100, sizes[i] - 100}};
      struct msghdr m = {.msg_iov = list, .msg_iovlen = 2};
      FAILS(rsend(other, big, sizes[i], 0), EMSGSIZE);
      FAILS(rwrite(other, big, sizes[i]), EMSGSIZE);
      FAILS(send_to(other, big, sizes[i], to), EMSGSIZE);
      FAILS(rsendmsg(other, &m, 0), EMSGSIZE);
      FAILS(rwritev(other, list, 2), EMSGSIZE);
    }
    there(other, fd, to, most());
    FAILS(rrecv(fd, got, sizeof got, MSG_DONTWAIT), EAGAIN);
  }
}

// 5.3 The first datagrams, which go by UDP, are cut.
static void gap_5_03_first_ones_are_whole(int l) {
  (void)l;
  int fd = bound(0), to = port_of(fd);
  for (int i = 0; i < 10; i++) {
    int fresh = unbound();
    there(fresh, fd, to, most() - i);
    EQ(rclose(fresh), 0);
  }
}

// 5.5 Where nothing better leads there, datagrams become a TCP stream, or fail.
static void gap_5_05_a_datagram_stays_one(int l) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  EQ(rgetsockname(l, (struct sockaddr *)&a, &len), 0);
  // A socket listens there by TCP; that is of no concern.
  int tcp_port = ntohs(((struct sockaddr_in *)&a)->sin_port), fd = connected(tcp_port);
  EQ(option(fd, SOL_SOCKET, SO_TYPE), SOCK_DGRAM);
  EQ(option(fd, SOL_SOCKET, SO_PROTOCOL), IPPROTO_UDP);
  EQ(ready(l, POLLIN, 0), 0);
  EQ(rsend(fd, "x", 1, 0), 1);
  FAILS(rrecv(fd, got, sizeof got, 0), ECONNREFUSED);
  int other = bound(tcp_port);
  meet(fd, other, tcp_port);
  for (int i = 0; i < 10; i++) {
    EQ(rsend(fd, "ab", 2, 0), 2);
    EQ(rsend(fd, "cde", 3, 0), 3);
    EQ(rrecv(other, got, sizeof got, 0), 2);
    EQ(rrecv(other, got, sizeof got, 0), 3);
  }
  EQ(ready(l, POLLIN, 0), 0);
}

// 5.6 A sender that has no name yet cannot be answered.
static void gap_5_06_unbound_senders_are_answered(int l) {
  (void)l;
  int fd = bound(0), to = port_of(fd);
  for (int i = 0; i < 10; i++) {
    int other = unbound();
    for (int k = 0; k < 10; k++) {
      int from = there(other, fd, to, 10);
      EQ(from, port_of(other));
      EQ(send_to(fd, "answer", 6, from), 6);
      EQ(rrecv(other, got, sizeof got, 0), 6);
    }
    EQ(rclose(other), 0);
  }
}

// 5.7 A peer's name is compared with its padding.
static void gap_5_07_padding_is_no_name(int l) {
  (void)l;
  int fd = bound(0), to = port_of(fd), other = unbound(), before = 0;
  for (int i = 0; i < 100; i++) {
    struct sockaddr_storage a;
    socklen_t len = address(&a, to);
    if (family == AF_INET) memset(((struct sockaddr_in *)&a)->sin_zero, i, 8);
    // As long as the buffer is, which is longer than the name.
    EQ(rsendto(other, &i, sizeof i, 0, (struct sockaddr *)&a, i % 2 ? sizeof a : len), sizeof i);
    int n = -1;
    EQ(rrecv(fd, &n, sizeof n, 0), sizeof n);
    EQ(n, i);
    if (i == 20) before = descriptors();
    if (i > 20) CHECK(descriptors() <= before + 4);
  }
}

// 5.8 No address on a connected socket crashes; an address becomes the peer.
static void gap_5_08_an_address_is_for_once(int l) {
  (void)l;
  int fd = bound(0), aside = bound(0), other = connected(port_of(fd));
  for (int i = 0; i < 20; i++) {
    EQ(rsendto(other, "a", 1, 0, NULL, 0), 1);
    EQ(rrecv(fd, got, sizeof got, 0), 1);
    EQ(send_to(other, "bb", 2, port_of(aside)), 2);
    EQ(rrecv(aside, got, sizeof got, 0), 2);
    EQ(rsend(other, "ccc", 3, 0), 3);
    EQ(rrecv(fd, got, sizeof got, 0), 3);
  }
  int lone = unbound();
  FAILS(rsendto(lone, "a", 1, 0, NULL, 0), EDESTADDRREQ);
  struct iovec one = {sent, 1};
  struct msghdr m = {.msg_iov = &one, .msg_iovlen = 1};
  FAILS(rsendmsg(lone, &m, 0), EDESTADDRREQ);
}

// 5.9 Calls and options of streams corrupt a datagram socket.
static void gap_5_09_calls_of_streams(int l) {
  (void)l;
  int fd = bound(0), to = port_of(fd), other = connected(to), on = 1, tos = 0x10;
  for (int i = 0; i < 20; i++) {
    FAILS(rlisten(fd, 5), EOPNOTSUPP);
    FAILS(raccept(fd, NULL, NULL), EOPNOTSUPP);
    // Taken or refused, they change nothing else.
    (void)rsetsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    (void)rsetsockopt(fd, IPPROTO_IP, IP_TOS, &tos, sizeof tos);
    (void)rsetsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)rsetsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &on, sizeof on);
    there(other, fd, to, 500);
  }
}

// 5.10 rshutdown does nothing, or leaves the socket blocking.
static void gap_5_10_shutdown(int l) {
  (void)l;
  int fd = bound(0), other = connected(port_of(fd));
  join(fd, port_of(other));
  nonblock(fd, 1);
  EQ(rshutdown(fd, SHUT_WR), 0);
  CHECK(rfcntl(fd, F_GETFL) & O_NONBLOCK);
  signal(SIGPIPE, SIG_IGN);
  FAILS(rsend(fd, "x", 1, 0), EPIPE);
  EQ(rsend(other, "x", 1, 0), 1);
  EQ(ready(fd, POLLIN, 10000) & POLLIN, POLLIN);
  EQ(rrecv(fd, got, sizeof got, 0), 1);
  FAILS(rrecv(fd, got, sizeof got, 0), EAGAIN);
  EQ(rshutdown(fd, SHUT_RD), 0);
  EQ(rrecv(fd, got, sizeof got, 0), 0);
  CHECK(rfcntl(fd, F_GETFL) & O_NONBLOCK);
}

// 5.11 A peer that does not answer delays all others; what was looked up is never given back.
static void gap_5_11_a_silent_peer_delays_nobody(int l) {
  (void)l;
  struct sockaddr_storage a;
  socklen_t len = address(&a, 0);
  int fd = bound(0), to = port_of(fd), good = connected(to), silent = socket(family, SOCK_DGRAM, 0);
  CHECK(silent >= 0 && bind(silent, (struct sockaddr *)&a, len) == 0);
  CHECK(getsockname(silent, (struct sockaddr *)&a, &len) == 0);
  int bad = connected(ntohs(((struct sockaddr_in *)&a)->sin_port)), before = -1;
  for (int i = 0; i < 50; i++) {
    double t = now();
    EQ(rsend(bad, "anybody?", 8, 0), 8);
    there(good, fd, to, 100);
    took(t, 0, 10);
    int brief = unbound();
    there(brief, fd, to, 100);
    EQ(rclose(brief), 0);
    if (i == 20) before = descriptors();
    if (i > 20) CHECK(descriptors() <= before + 4);
  }
  close(silent);
}

// 5.12 Nothing says that a datagram was cut; no broadcasts.
static void gap_5_12_cut_ones_say_so(int l) {
  (void)l;
  int fd = bound(0), to = port_of(fd), other = connected(to);
  meet(other, fd, to);
  for (int i = 0; i < 20; i++) {
    struct iovec into = {got, 10};
    struct msghdr m = {.msg_iov = &into, .msg_iovlen = 1};
    EQ(rsend(other, sent, 50, 0), 50);
    EQ(rsend(other, sent, 10, 0), 10);
    EQ(rrecvmsg(fd, &m, 0), 10);
    EQ(m.msg_flags & MSG_TRUNC, MSG_TRUNC);
    EQ(rrecvmsg(fd, &m, 0), 10);
    EQ(m.msg_flags & MSG_TRUNC, 0);
    EQ(rsend(other, sent, 50, 0), 50);
    EQ(rrecv(fd, got, 10, MSG_TRUNC), 50);
  }
}
static void gap_5_12_broadcast(int l) {
  (void)l;
  struct sockaddr_in a = {.sin_family = AF_INET};
  if (family == AF_INET6) return;  // which has none
  int fd = wildcard(), other = unbound();
  a.sin_port = htons(port_of(fd));
  CHECK(inet_pton(AF_INET, "127.255.255.255", &a.sin_addr) == 1);
  FAILS(rsendto(other, "all", 3, 0, (struct sockaddr *)&a, sizeof a), EACCES);
  set_option(other, SOL_SOCKET, SO_BROADCAST, 1);
  for (int i = 0; i < 10; i++) {
    EQ(rsendto(other, "all", 3, 0, (struct sockaddr *)&a, sizeof a), 3);
    EQ(rrecv(fd, got, sizeof got, 0), 3);
  }
}

const rs_case CASES[] = {
  {"gap_5_01_unbound_senders_open_nothing", gap_5_01_unbound_senders_open_nothing, NULL, SOLO},
  {"gap_5_02_too_long_is_refused", gap_5_02_too_long_is_refused, NULL, SOLO},
  {"gap_5_03_first_ones_are_whole", gap_5_03_first_ones_are_whole, NULL, SOLO},
  {"gap_5_05_a_datagram_stays_one", gap_5_05_a_datagram_stays_one, NULL, SOLO},
  {"gap_5_06_unbound_senders_are_answered", gap_5_06_unbound_senders_are_answered, NULL, SOLO},
  {"gap_5_07_padding_is_no_name", gap_5_07_padding_is_no_name, NULL, SOLO},
  {"gap_5_08_an_address_is_for_once", gap_5_08_an_address_is_for_once, NULL, SOLO},
  {"gap_5_09_calls_of_streams", gap_5_09_calls_of_streams, NULL, SOLO},
  {"gap_5_10_shutdown", gap_5_10_shutdown, NULL, SOLO},
  {"gap_5_11_a_silent_peer_delays_nobody", gap_5_11_a_silent_peer_delays_nobody, NULL, SOLO},
  {"gap_5_12_cut_ones_say_so", gap_5_12_cut_ones_say_so, NULL, SOLO},
  {"gap_5_12_broadcast", gap_5_12_broadcast, NULL, SOLO},
  {0},
};
