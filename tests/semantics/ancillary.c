// What recvmsg tells beside the bytes, and options that tell nothing of a stream.
#include "pair.h"

#include <netinet/tcp.h>

static char x[4096];

// One recvmsg of so many bytes; what TCP_INQ says, or -1 where it says nothing.
static int told(int fd, size_t n, ssize_t want) {
  char control[CMSG_SPACE(sizeof(int)) + CMSG_SPACE(16)];
  struct iovec v = {x, n};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  int left = -1;
  EQ(recvmsg(fd, &m, 0), want);
  EQ(m.msg_flags, 0);
  for (struct cmsghdr *h = CMSG_FIRSTHDR(&m); h; h = CMSG_NXTHDR(&m, h)) {
    EQ(h->cmsg_level, IPPROTO_TCP);
    EQ(h->cmsg_type, TCP_CM_INQ);
    EQ(h->cmsg_len, CMSG_LEN(sizeof left));
    memcpy(&left, CMSG_DATA(h), sizeof left);
  }
  return left;
}
static void inq(int lfd) {
  int s[2], one = 1, none = 0;
  struct iovec v = {x, 10};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  two(lfd, s);
  put(s[0], x, 1100);
  EQ(ready(s[1], POLLIN, 2000), POLLIN);
  EQ(told(s[1], 100, 100), -1);
  CHECK(!setsockopt(s[1], IPPROTO_TCP, TCP_INQ, &one, sizeof one));
  EQ(told(s[1], 300, 300), 700);
  // Where there is no room for it, that is said.
  EQ(recvmsg(s[1], &m, 0), 10);
  EQ(m.msg_flags, MSG_CTRUNC);
  EQ(told(s[1], 600, 600), 90);
  EQ(told(s[1], 1000, 90), 0);
  put(s[0], x, 5);
  CHECK(!shutdown(s[0], SHUT_WR));
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
  EQ(told(s[1], 5, 5), 1);
  EQ(told(s[1], 5, 0), 1);
  CHECK(!setsockopt(s[1], IPPROTO_TCP, TCP_INQ, &none, sizeof none));
  EQ(told(s[1], 5, 0), -1);
}
// Of what ip(7) can tell about packets TCP delivers nothing.
static void of_packets(int lfd) {
  static const int names[] = {IP_RECVTOS, IP_RECVTTL, IP_PKTINFO, IP_RECVOPTS, IP_RETOPTS, IP_RECVORIGDSTADDR};
  int s[2], one = 1, got;
  socklen_t l = sizeof got;
  two(lfd, s);
  for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
    CHECK(!setsockopt(s[1], IPPROTO_IP, names[i], &one, sizeof one));
    CHECK(!getsockopt(s[1], IPPROTO_IP, names[i], &got, &l));
    EQ(got, 1);
  }
  put(s[0], x, 10);
  EQ(told(s[1], 10, 10), -1);
}

const test_case CASES[] = {{"inq", inq, NULL, SOLO}, {"of_packets", of_packets, NULL, SOLO}, {0}};
