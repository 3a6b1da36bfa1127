// The lines of the table of options in rsocket(7) at the levels IPPROTO_TCP, IPPROTO_IP and
// IPPROTO_IPV6: what each does.
#include "rs.h"

// TCP_CORK, TCP_QUICKACK, TCP_CONGESTION: what programs ask of TCP for its speed alone is taken,
// and holds nothing back.
static void speed_solo(int l) {
  char name[16] = "", c;
  socklen_t len = sizeof name;
  int ends[2];
  pair(l, ends);
  EQ(option(ends[0], IPPROTO_TCP, TCP_CORK), 0);
  set_option(ends[0], IPPROTO_TCP, TCP_CORK, 1);
  EQ(option(ends[0], IPPROTO_TCP, TCP_CORK), 1);
  set_option(ends[0], IPPROTO_TCP, TCP_QUICKACK, 1);
  CHECK(option(ends[0], IPPROTO_TCP, TCP_QUICKACK) >= 0);
  EQ(rgetsockopt(ends[0], IPPROTO_TCP, TCP_CONGESTION, name, &len), 0);
  CHECK(name[0] > ' ');
  EQ(rsetsockopt(ends[0], IPPROTO_TCP, TCP_CONGESTION, name, sizeof name), 0);
#ifndef PLAIN
  // Not here on every host.
  EQ(rsetsockopt(ends[0], IPPROTO_TCP, TCP_CONGESTION, "no such thing", 13), 0);
#endif
  FAILS(rsetsockopt(ends[0], IPPROTO_TCP, TCP_CONGESTION, NULL, 4), EFAULT);
  put(ends[0], "x", 1);
  get(ends[1], &c, 1);
}

// TCP_KEEPIDLE, TCP_KEEPINTVL, TCP_KEEPCNT, TCP_USER_TIMEOUT: kept, checked, and a listener's go to
// what it accepts. That they take effect is shown between two hosts (tests/vm/hosts/keepalive.sh).
static void keep_alive_solo(int l) {
  static const int names[][3] = {{TCP_KEEPIDLE, 77, 40000}, {TCP_KEEPINTVL, 7, 40000}, {TCP_KEEPCNT, 3, 128}};
  int ends[2], value;
  for (int i = 0; i < 3; i++) {
    CHECK(option(l, IPPROTO_TCP, names[i][0]) > 0);
    set_option(l, IPPROTO_TCP, names[i][0], names[i][1]);
    EQ(option(l, IPPROTO_TCP, names[i][0]), names[i][1]);
    value = 0;
    FAILS(rsetsockopt(l, IPPROTO_TCP, names[i][0], &value, sizeof value), EINVAL);
    FAILS(rsetsockopt(l, IPPROTO_TCP, names[i][0], &names[i][2], sizeof value), EINVAL);
  }
  EQ(option(l, IPPROTO_TCP, TCP_USER_TIMEOUT), 0);
  set_option(l, IPPROTO_TCP, TCP_USER_TIMEOUT, 12345);
  value = -1;
  FAILS(rsetsockopt(l, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, sizeof value), EINVAL);
  set_option(l, SOL_SOCKET, SO_KEEPALIVE, 1);
  pair(l, ends);
  EQ(option(ends[1], SOL_SOCKET, SO_KEEPALIVE), 1);
  for (int i = 0; i < 3; i++) EQ(option(ends[1], IPPROTO_TCP, names[i][0]), names[i][1]);
  EQ(option(ends[1], IPPROTO_TCP, TCP_USER_TIMEOUT), 12345);
  EQ(option(ends[0], SOL_SOCKET, SO_KEEPALIVE), 0);
  // A connection on which nothing happens is left alone by a peer that is there.
  set_option(ends[0], SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(ends[0], IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(ends[0], IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(ends[0], IPPROTO_TCP, TCP_KEEPCNT, 1);
  EQ(ready(ends[0], POLLIN, 4500), 0);
  char c;
  put(ends[0], "x", 1);
  get(ends[1], &c, 1);
}

// TCP_MAXSEG: what goes into one packet. Setting it is checked, and a hint.
static void segment_solo(int l) {
  int ends[2], value = 5;
  pair(l, ends);
  CHECK(option(l, IPPROTO_TCP, TCP_MAXSEG) > 0);
  for (int i = 0; i < 2; i++) {
    value = option(ends[i], IPPROTO_TCP, TCP_MAXSEG);
    CHECK(value >= 88);
#ifndef PLAIN
    // RDMA's packets are powers of two, of at most 4096 bytes.
    if (getenv("RS_ADDRESS")) CHECK(value <= 4096 && value >= 256 && (value & (value - 1)) == 0);
#endif
  }
  int fd = fresh();
  set_option(fd, IPPROTO_TCP, TCP_MAXSEG, 1000);
  value = 5;
  FAILS(rsetsockopt(fd, IPPROTO_TCP, TCP_MAXSEG, &value, sizeof value), EINVAL);
}

// TCP_INFO: the state and the counts are the connection's; no more is written than there is room
// for.
enum { BYTES_RECEIVED = 128, BYTES_SENT = 200 };
static int state(int fd) {
  struct tcp_info i;
  socklen_t len = sizeof i;
  EQ(rgetsockopt(fd, IPPROTO_TCP, TCP_INFO, &i, &len), 0);
  EQ(len, sizeof i);
  return i.tcpi_state;
}
static uint64_t counted(int fd, size_t at) {
  char info[400];
  uint64_t n;
  socklen_t len = sizeof info;
  EQ(rgetsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &len), 0);
  CHECK(len >= at + 8 && len < sizeof info);
  memcpy(&n, info + at, 8);
  return n;
}
static void info_solo(int l) {
  int ends[2], fd = fresh(), value = 0;
  unsigned char info[8];
  EQ(state(fd), TCP_CLOSE);
  EQ(state(l), TCP_LISTEN);
  pair(l, ends);
  EQ(state(ends[0]), TCP_ESTABLISHED);
  EQ(state(ends[1]), TCP_ESTABLISHED);
  // Little is sent, so that it is all in the peer's buffer.
  put_stream(ends[0], 1, 12345, 1000);
  get_stream(ends[1], 1, 12345, 1000);
  EQ(counted(ends[0], BYTES_SENT), 12345);
  EQ(counted(ends[1], BYTES_RECEIVED), 12345);
  EQ(counted(ends[0], BYTES_RECEIVED), 0);
  memset(info, 0xee, sizeof info);
  socklen_t len = 3;
  EQ(rgetsockopt(ends[0], IPPROTO_TCP, TCP_INFO, info, &len), 0);
  EQ(len, 3);
  EQ(info[0], TCP_ESTABLISHED);
  EQ(info[3], 0xee);
  CHECK(rsetsockopt(fd, IPPROTO_TCP, TCP_INFO, &value, sizeof value) == -1 && errno == ENOPROTOOPT);
  EQ(rshutdown(ends[0], SHUT_WR), 0);
  get_eof(ends[1]);
  EQ(ready(ends[1], POLLRDHUP, 20000), POLLRDHUP);
  EQ(state(ends[1]), TCP_CLOSE_WAIT);
  CHECK(state(ends[0]) == TCP_FIN_WAIT1 || state(ends[0]) == TCP_FIN_WAIT2);
}

// IP_TOS, IPV6_TCLASS: one byte or an int, before the connection.
static void service_solo(int l) {
  int level = family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, name = family == AF_INET ? IP_TOS : IPV6_TCLASS;
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  unsigned char byte = 0x10;
  int fd = fresh(), value = 0x08;
  EQ(option(fd, level, name), 0);
  set_option(fd, level, name, 0x20);
  EQ(option(fd, level, name), 0x20);
  if (family == AF_INET) {
    EQ(rsetsockopt(fd, level, name, &byte, 1), 0);
    EQ(option(fd, level, name), 0x10);
  }
  EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
  int other = raccept(l, NULL, NULL);
  CHECK(other >= 0);
#ifndef PLAIN
  if (getenv("RS_ADDRESS")) {
    // A queue pair's cannot be changed.
    FAILS(rsetsockopt(fd, level, name, &value, sizeof value), EINVAL);
  } else
#endif
    EQ(rsetsockopt(fd, level, name, &value, sizeof value), 0);
  char c;
  put(fd, "x", 1);
  get(other, &c, 1);
}

// IPV6_V6ONLY: only then may another socket have the port for IPv4.
static void only_six_solo(int l) {
  struct sockaddr_in six_zero;
  struct sockaddr_in6 any = {.sin6_family = AF_INET6, .sin6_addr = in6addr_any};
  socklen_t len = sizeof any;
  if (family == AF_INET) return;
  for (int only = 0, tries = 0; only < 2; only++) {
    int six = rsocket(AF_INET6, SOCK_STREAM, 0), four = rsocket(AF_INET, SOCK_STREAM, 0);
    set_option(six, IPPROTO_IPV6, IPV6_V6ONLY, only);
    any.sin6_port = 0;
    EQ(rbind(six, (struct sockaddr *)&any, sizeof any), 0);
    if (rlisten(six, 5)) {
      // A listener over RDMA may have it: that has ports of its own.
      CHECK(errno == EADDRINUSE && ++tries < 20);
      rclose(six), rclose(four), only--;
      continue;
    }
    EQ(rgetsockname(six, (struct sockaddr *)&any, &len), 0);
    memset(&six_zero, 0, sizeof six_zero);
    six_zero.sin_family = AF_INET;
    six_zero.sin_port = any.sin6_port;
    if (only) {
      // Some other program may have the port for IPv4; not each that comes by chance.
      if (rbind(four, (struct sockaddr *)&six_zero, sizeof six_zero)) {
        CHECK(errno == EADDRINUSE);
        CHECK(++tries < 20);
        only--;
      }
    } else
      FAILS(rbind(four, (struct sockaddr *)&six_zero, sizeof six_zero), EADDRINUSE);
    EQ(rclose(six), 0);
    EQ(rclose(four), 0);
  }
  (void)l;
}

const rs_case CASES[] = {
    {"speed", speed_solo, NULL, SOLO},
    {"keep_alive", keep_alive_solo, NULL, SOLO},
    {"segment", segment_solo, NULL, SOLO},
    {"info", info_solo, NULL, SOLO},
    {"service", service_solo, NULL, SOLO},
    {"only_six", only_six_solo, NULL, SOLO},
    {0},
};
