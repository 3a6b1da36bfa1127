// A connection at whatever step of leaving TCP. It leaves by calls of either end: here they come in
// each order, before what is tested and in the middle of it. Where a connection attaches at its
// first bytes, this meets every state that is half of each. Elsewhere it stays on TCP or is long
// beyond.
#include "pair.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>

enum { STEPS = 8 };
static unsigned order;
static int taken;

// The order says which end makes the next call: a receive that takes nothing.
static void step(int s[2]) {
  char c;
  int fd = s[order >> taken % STEPS & 1];
  taken++;
  recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT);
}
static void steps(int s[2], int n) {
  while (n--) step(s);
}
static void each(int lfd, void (*scene)(int s[2])) {
  signal(SIGPIPE, SIG_IGN);
  for (order = 0; order < 1 << STEPS; order++) {
    int s[2];
    char c;
    taken = 0;
    two(lfd, s);
    put(s[0], "a", 1), get(s[1], &c, 1);
    steps(s, order % 5);
    scene(s);
    close(s[0]), close(s[1]);
  }
}
static int waiting(int fd) {
  int n = -1;
  CHECK(!ioctl(fd, FIONREAD, &n));
  return n;
}
static void arrives(int fd, int n) {
  for (double end = now() + patience(10); now() < end;)
    if (waiting(fd) == n) return;
  FAIL("%d bytes, not %d", waiting(fd), n);
}
static int error_of(int fd) {
  int e = -1;
  socklen_t n = sizeof e;
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n));
  return e;
}
static char b[4096], got[4096];
static void sends(int fd, int n, uint64_t at) {
  fill(b, n, 3, at);
  EQ(send(fd, b, n, 0), n);
}
static void takes(int fd, int n, uint64_t at) {
  EQ(recv(fd, got, n, MSG_WAITALL), n);
  verify(got, n, 3, at);
}

// -- bytes
static void to_and_fro(int s[2]) {
  for (int i = 0; i < 6; i++) {
    sends(s[0], 300, i * 300), sends(s[1], 200, i * 200);
    step(s);
    arrives(s[1], 300), arrives(s[0], 200);
    EQ(recv(s[1], got, 100, MSG_PEEK), 100);
    verify(got, 100, 3, i * 300);
    step(s);
    takes(s[1], 300, i * 300), takes(s[0], 200, i * 200);
    FAILS(recv(s[0], got, 1, MSG_DONTWAIT), EAGAIN);
    FAILS(recv(s[1], got, 1, MSG_DONTWAIT), EAGAIN);
  }
}
// Unread bytes pile up on both sides while steps are taken.
static void unread(int s[2]) {
  for (int i = 0; i < 6; i++) sends(s[0], 100, i * 100), step(s), sends(s[1], 70, i * 70);
  arrives(s[1], 600), arrives(s[0], 420);
  EQ(recv(s[1], got, sizeof got, MSG_PEEK), 600);
  verify(got, 600, 3, 0);
  step(s);
  for (int i = 0; i < 12; i++) takes(s[1], 50, i * 50), step(s);
  takes(s[0], 420, 0);
  EQ(waiting(s[1]), 0);
}
// Sent past the library's own calls, or by calls of another kind.
static void other_calls(int s[2]) {
  int p[2], file = memfd_create("bytes", 0);
  CHECK(file >= 0 && !pipe(p));
  fill(b, 1000, 3, 0);
  EQ(pwrite(file, b, 1000, 0), 1000);
  off_t at = 0;
  EQ(sendfile(s[0], file, &at, 400), 400);
  step(s);
  EQ(write(p[1], b + 400, 100), 100);
  EQ(splice(p[0], NULL, s[0], NULL, 100, 0), 100);
  step(s);
  EQ(dprintf(s[0], "%.5s", "hello"), 5);
  step(s);
  sends(s[0], 100, 505);
  arrives(s[1], 605);
  takes(s[1], 500, 0);
  EQ(recv(s[1], got, 5, 0), 5);
  CHECK(!memcmp(got, "hello", 5));
  step(s);
  EQ(splice(s[1], NULL, p[1], NULL, 100, 0), 100);
  EQ(read(p[0], got, 200), 100);
  verify(got, 100, 3, 505);
  sends(s[1], 10, 0);
  takes(s[0], 10, 0);
  close(p[0]), close(p[1]), close(file);
}
static void low_water(int s[2]) {
  int most = 500;
  CHECK(!setsockopt(s[1], SOL_SOCKET, SO_RCVLOWAT, &most, sizeof most));
  sends(s[0], 300, 0);
  arrives(s[1], 300);
  step(s);
  EQ(ready(s[1], POLLIN, 0), 0);
  step(s);
  sends(s[0], 200, 300);
  EQ(ready(s[1], POLLIN, 1000), POLLIN);
  EQ(recv(s[1], got, sizeof got, 0), 500);
  verify(got, 500, 3, 0);
}

// -- ends
static void end_of_stream(int s[2]) {
  sends(s[0], 100, 0);
  step(s);
  CHECK(!shutdown(s[0], SHUT_WR));
  step(s);
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
  takes(s[1], 60, 0);
  step(s);
  takes(s[1], 40, 60);
  for (int i = 0; i < 3; i++) EQ(recv(s[1], got, 10, i & 1 ? MSG_DONTWAIT : 0), 0);
  sends(s[1], 50, 0);
  step(s);
  takes(s[0], 50, 0);
  CHECK(!shutdown(s[1], SHUT_WR));
  EQ(recv(s[0], got, 10, 0), 0);
  FAILS(send(s[0], b, 1, 0), EPIPE);
}
static void closed(int s[2]) {
  int peer[2] = {s[0], s[0]};
  sends(s[1], 100, 0);
  step(s);
  close(s[1]);
  s[1] = -1;
  step(peer);
  until(s[0], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
  takes(s[0], 100, 0);
  EQ(recv(s[0], got, 10, 0), 0);
  EQ(send(s[0], b, 1, 0), 1);
  until(s[0], POLLHUP | POLLERR, POLLHUP | POLLERR);
  FAILS(send(s[0], b, 1, 0), EPIPE);
}
static void resets(int s[2], int unread_bytes) {
  struct linger at_once = {1, 0};
  if (unread_bytes) sends(s[0], 10, 0), arrives(s[1], 10);
  else CHECK(!setsockopt(s[1], SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once));
  close(s[1]);
  s[1] = -1;
}
static void by_reset(int s[2]) {
  int peer[2] = {s[0], s[0]};
  resets(s, 0);
  until(s[0], POLLIN, POLLIN | POLLERR | POLLHUP);
  FAILS(recv(s[0], got, 10, 0), ECONNRESET);
  step(peer);
  EQ(recv(s[0], got, 10, 0), 0);
  FAILS(send(s[0], b, 1, 0), EPIPE);
}
static void bytes_then_reset(int s[2]) {
  sends(s[1], 100, 0);
  arrives(s[0], 100);
  step(s);
  resets(s, 1);
  until(s[0], POLLIN, POLLIN | POLLERR | POLLHUP);
  EQ(recv(s[0], got, sizeof got, MSG_WAITALL), 100);
  verify(got, 100, 3, 0);
  FAILS(recv(s[0], got, 10, MSG_DONTWAIT), ECONNRESET);
  EQ(recv(s[0], got, 10, 0), 0);
  EQ(error_of(s[0]), 0);
}
static void bytes_then_reset_for_send(int s[2]) {
  sends(s[1], 100, 0);
  arrives(s[0], 100);
  step(s);
  resets(s, 1);
  until(s[0], POLLIN, POLLIN | POLLERR | POLLHUP);
  EQ(recv(s[0], got, sizeof got, 0), 100);
  FAILS(send(s[0], b, 1, 0), ECONNRESET);
  FAILS(send(s[0], b, 1, 0), EPIPE);
}
static void reset_in_so_error(int s[2]) {
  resets(s, 0);
  until(s[0], POLLOUT, POLLOUT | POLLERR | POLLHUP);
  EQ(error_of(s[0]), ECONNRESET);
  EQ(error_of(s[0]), 0);
  EQ(recv(s[0], got, 10, 0), 0);
}

// -- which call waits
static void by_epoll(int s[2]) {
  struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP};
  int ep = epoll_create1(0);
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, s[1], &e));
  for (int i = 0; i < 4; i++) {
    EQ(epoll_wait(ep, &e, 1, 0), 0);
    step(s);
    sends(s[0], 100, i * 100);
    EQ(epoll_wait(ep, &e, 1, patience(5000)), 1);
    EQ(e.events, EPOLLIN);
    step(s);
    takes(s[1], 100, i * 100);
  }
  CHECK(!shutdown(s[0], SHUT_WR));
  EQ(epoll_wait(ep, &e, 1, patience(5000)), 1);
  EQ(e.events, EPOLLIN | EPOLLRDHUP);
  close(ep);
}
// What comes when nothing is unread is told of once.
static void by_edges(int s[2]) {
  struct epoll_event e = {.events = EPOLLIN | EPOLLET};
  int ep = epoll_create1(0);
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, s[1], &e));
  for (int i = 0; i < 5; i++) {
    EQ(epoll_wait(ep, &e, 1, 0), 0);
    step(s);
    sends(s[0], 100, i * 100);
    EQ(epoll_wait(ep, &e, 1, patience(5000)), 1);
    EQ(e.events, EPOLLIN);
    takes(s[1], 100, i * 100);
    step(s);
  }
  close(ep);
}
static void urgent(int s[2]) {
  char c = 0;
  sends(s[0], 20, 0);
  step(s);
  EQ(send(s[0], "!", 1, MSG_OOB), 1);
  until(s[1], POLLPRI, POLLPRI);
  step(s);
  takes(s[1], 20, 0);
  EQ(recv(s[1], &c, 1, MSG_OOB), 1);
  EQ(c, '!');
  sends(s[0], 20, 20);
  takes(s[1], 20, 20);
}
static void told_of_what_is_left(int s[2]) {
  char control[CMSG_SPACE(sizeof(int))];
  struct iovec v = {got, 60};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  int one = 1, left = -1;
  CHECK(!setsockopt(s[1], IPPROTO_TCP, TCP_INQ, &one, sizeof one));
  sends(s[0], 100, 0);
  step(s);
  CHECK(!shutdown(s[0], SHUT_WR));
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
  // The end counts as one, and as such until it was read and after that.
  for (int want = 41;; want = 1) {
    m.msg_controllen = sizeof control;
    ssize_t n = recvmsg(s[1], &m, 0);
    EQ(n, want == 41 ? 60 : v.iov_len == 60 ? 40 : 0);
    CHECK(CMSG_FIRSTHDR(&m));
    memcpy(&left, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof left);
    EQ(left, want);
    step(s);
    if (n == 40) v.iov_len = 10;
    if (n == 0) break;
  }
}

#define SCENE(name) \
  static void name##_(int lfd) { each(lfd, name); }
SCENE(to_and_fro)
SCENE(unread)
SCENE(other_calls)
SCENE(low_water)
SCENE(end_of_stream)
SCENE(closed)
SCENE(by_reset)
SCENE(bytes_then_reset)
SCENE(bytes_then_reset_for_send)
SCENE(reset_in_so_error)
SCENE(by_epoll)
SCENE(by_edges)
SCENE(urgent)
SCENE(told_of_what_is_left)
#define CASE(name, flags) {#name, name##_, NULL, SOLO | (flags)}
const test_case CASES[] = {
    CASE(to_and_fro, 0),
    CASE(unread, 0),
    CASE(other_calls, NOSHM),
    CASE(low_water, 0),
    CASE(end_of_stream, 0),
    CASE(closed, 0),
    CASE(by_reset, 0),
    CASE(bytes_then_reset, 0),
    CASE(bytes_then_reset_for_send, 0),
    CASE(reset_in_so_error, 0),
    CASE(by_epoll, 0),
    CASE(by_edges, 0),
    CASE(urgent, NOSHM),
    CASE(told_of_what_is_left, 0),
    {0},
};
