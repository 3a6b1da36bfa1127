// What recvmsg tells beside the bytes, and options that tell nothing of a stream.
#include "pair.h"

#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>

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
// Half of what comes is read: at the switch some bytes are TCP's, and others are not.
static void inq_of_both(int lfd) {
  int s[2], one = 1, left = 0;
  two(lfd, s);
  CHECK(!setsockopt(s[1], IPPROTO_TCP, TCP_INQ, &one, sizeof one));
  for (int i = 0; i < 100; i++, left += 250) {
    put(s[0], x, 500);
    // In TCP a segment is on its way for a moment.
    for (int here = 0; here != left + 500;) CHECK(!ioctl(s[1], FIONREAD, &here));
    EQ(told(s[1], 250, 250), left + 250);
  }
  for (; left > 0; left -= 250) EQ(told(s[1], 250, 250), left - 250);
}
// The end is told of at whatever step of leaving TCP the connection stands. The calls that take the
// steps come from either end, in each order.
enum { STEPS = 7 };
static void inq_at_each_step(int lfd) {
  for (unsigned order = 0; order < 1 << STEPS; order++) {
    int s[2], one = 1;
    char c;
    two(lfd, s);
    CHECK(!setsockopt(s[1], IPPROTO_TCP, TCP_INQ, &one, sizeof one));
    put(s[0], "a", 1), get(s[1], &c, 1);
    for (int i = 0; i < STEPS; i++) recv(s[order >> i & 1], &c, 1, MSG_PEEK | MSG_DONTWAIT);
    put(s[0], x, 5);
    CHECK(!shutdown(s[0], SHUT_WR));
    until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
    EQ(told(s[1], 5, 5), 1);
    EQ(told(s[1], 5, 0), 1);
    close(s[0]), close(s[1]);
  }
}
// A program that reads until it is told that nothing is left, and then waits for an edge. Requests
// are sent in two parts: at the switch one of them may go by TCP, and the other may be there behind
// it.
enum { ROUNDS = 14, PART = 700, CONNECTIONS = 60 };
static void *asks(void *fd) {
  int one = 1;
  char answer;
  // The second part does not wait until the first one is acknowledged.
  CHECK(!setsockopt(*(int *)fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  for (int i = 0; i < ROUNDS; i++) {
    put(*(int *)fd, x, PART);
    put(*(int *)fd, x, PART);
    EQ(recv(*(int *)fd, &answer, 1, 0), 1);
  }
  return NULL;
}
static void answers(int fd) {
  int ep = epoll_create1(EPOLL_CLOEXEC), one = 1;
  struct epoll_event e = {.events = EPOLLIN | EPOLLET};
  CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_INQ, &one, sizeof one));
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  for (int i = 0; i < ROUNDS; i++) {
    for (int got = 0; got < 2 * PART;) {
      EQ(epoll_wait(ep, &e, 1, patience(3000)), 1);
      // As much as came with this edge; `told` insists on so many bytes.
      for (int n = 0, left = 1; left && got < 2 * PART; got += n) {
        char control[CMSG_SPACE(sizeof left)];
        struct iovec v = {x, 2 * PART};
        struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        n = recvmsg(fd, &m, MSG_DONTWAIT);
        if (n < 0) {
          CHECK(errno == EAGAIN);
          break;
        }
        CHECK(CMSG_FIRSTHDR(&m));
        memcpy(&left, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof left);
      }
    }
    put(fd, x, 1);
  }
  close(ep);
}
static void inq_and_edges(int lfd) {
  for (int i = 0; i < CONNECTIONS; i++) {
    int s[2];
    pthread_t t;
    two(lfd, s);
    CHECK(!pthread_create(&t, NULL, asks, &s[0]));
    answers(s[1]);
    CHECK(!pthread_join(t, NULL));
    close(s[0]);
    close(s[1]);
  }
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

const test_case CASES[] = {
    {"inq", inq, NULL, SOLO}, {"inq_of_both", inq_of_both, NULL, SOLO}, {"inq_at_each_step", inq_at_each_step, NULL, SOLO}, {"inq_and_edges", inq_and_edges, NULL, SOLO},
    {"of_packets", of_packets, NULL, SOLO}, {0}};
