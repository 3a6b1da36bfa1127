// Calls that move nothing, or cannot: what they say goes by the state of the connection first, as
// with the kernel.
#include "pair.h"

// A send of bytes that are nowhere: an end or an error is said first.
static void sends_from_nowhere(int lfd) {
  int s[2], e = 0;
  socklen_t n = sizeof e;
  struct linger now_ = {1, 0};
  signal(SIGPIPE, SIG_IGN);
  two(lfd, s);
  FAILS(send(s[0], NULL, 10, 0), EFAULT);
  FAILS(write(s[0], (void *)-4096L, 10), EFAULT);
  CHECK(!shutdown(s[0], SHUT_WR));
  FAILS(send(s[0], NULL, 10, 0), EPIPE);
  FAILS(send(s[0], NULL, 10, MSG_NOSIGNAL | MSG_DONTWAIT), EPIPE);
  close(s[0]), close(s[1]);
  two(lfd, s);
  CHECK(!setsockopt(s[1], SOL_SOCKET, SO_LINGER, &now_, sizeof now_));
  close(s[1]);
  until(s[0], POLLIN, POLLIN | POLLERR | POLLHUP);
  FAILS(send(s[0], NULL, 10, MSG_NOSIGNAL), ECONNRESET);
  CHECK(!getsockopt(s[0], SOL_SOCKET, SO_ERROR, &e, &n));
  EQ(e, 0);
  FAILS(send(s[0], NULL, 10, MSG_NOSIGNAL), EPIPE);
}

// A receive of no bytes waits for some, and has received nothing when its time is over. One that
// may not wait says so.
static void waits_for_nothing(int lfd) {
  struct timeval little = {0, 30000}, never = {-1, 0};
  char c;
  int s[2];
  two(lfd, s);
  CHECK(!setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little));
  double before = now();
  EQ(recv(s[0], &c, 0, 0), 0);
  CHECK(now() - before > 0.02);
  FAILS(recv(s[0], &c, 1, 0), EAGAIN);
  FAILS(recv(s[0], &c, 0, MSG_DONTWAIT), EAGAIN);
  CHECK(!setsockopt(s[0], SOL_SOCKET, SO_RCVTIMEO, &never, sizeof never));
  FAILS(recv(s[0], &c, 0, 0), EAGAIN);
  nonblock(s[0], 1);
  FAILS(recv(s[0], &c, 0, 0), EAGAIN);
  put(s[1], "x", 1);
  until(s[0], POLLIN, POLLIN);
  EQ(recv(s[0], &c, 0, 0), 0);
  int low = 15;
  CHECK(!setsockopt(s[0], SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
  EQ(recv(s[0], &c, 0, 0), 0);
  EQ(recv(s[0], &c, 1, 0), 1);
}

// A reset that comes behind this side's own shutdown is said once.
static void reset_behind_shutdown(int lfd) {
  char c, b[500] = {0};
  int s[2], e = 0;
  for (int closes = 0; closes < 2; closes++) {
    two(lfd, s);
    if (closes) put(s[0], b, sizeof b);
    CHECK(!shutdown(s[0], SHUT_RDWR));
    EQ(recv(s[0], &c, 1, 0), 0);
    if (closes) {
      for (double end = now() + 10; e < (int)sizeof b;) CHECK(now() < end && !ioctl(s[1], FIONREAD, &e));
      close(s[1]);  // with bytes unread
    } else EQ(send(s[1], b, 2, MSG_NOSIGNAL), 2);
    for (double end = now() + 10; !(ready(s[0], POLLIN, 1) & POLLERR);) CHECK(now() < end);
    FAILS(recv(s[0], &c, 1, 0), ECONNRESET);
    EQ(recv(s[0], &c, 1, 0), 0);
    EQ(recv(s[0], &c, 1, MSG_DONTWAIT), 0);
    close(s[0]);
    if (!closes) close(s[1]);
  }
}

// Behind the peer's end a reset is news for senders alone.
static void reset_behind_end(int lfd) {
  char c, b[500] = {0};
  int s[2];
  two(lfd, s);
  put(s[0], b, sizeof b);
  get(s[1], b, sizeof b);
  close(s[1]);
  until(s[0], POLLRDHUP, POLLRDHUP);
  shutdown(s[0], SHUT_RD);
  EQ(send(s[0], b, 2, MSG_NOSIGNAL), 2);
  for (double end = now() + 10; !(ready(s[0], POLLIN, 1) & POLLHUP);) CHECK(now() < end);
  struct mmsghdr none = {0};
  EQ(recv(s[0], &c, 1, 0), 0);
  EQ(recv(s[0], &c, 0, 0), 0);
  FAILS(recvmmsg(s[0], &none, 1, 0, NULL), EPIPE);  // which asks for an error first
  FAILS(send(s[0], b, 0, MSG_NOSIGNAL), EPIPE);
  FAILS(send(s[0], NULL, 2, MSG_NOSIGNAL), EPIPE);
  FAILS(send(s[0], b, 2, MSG_NOSIGNAL), EPIPE);
}

// A receive of no bytes says an error, if there are no bytes before it.
static void nothing_and_a_reset(int lfd) {
  struct linger now_ = {1, 0};
  char c, b[100] = {0};
  int s[2];
  for (int bytes = 0; bytes < 2; bytes++) {
    two(lfd, s);
    if (bytes) put(s[1], b, sizeof b);
    CHECK(!setsockopt(s[1], SOL_SOCKET, SO_LINGER, &now_, sizeof now_));
    close(s[1]);
    until(s[0], POLLIN, POLLIN | POLLERR | POLLHUP);
    if (bytes) EQ(recv(s[0], &c, 0, 0), 0);
    if (bytes) get(s[0], b, sizeof b);
    FAILS(recv(s[0], &c, 0, 0), ECONNRESET);
    EQ(recv(s[0], &c, 1, 0), 0);
    close(s[0]);
  }
}

const test_case CASES[] = {
    {"nothing_and_a_reset", nothing_and_a_reset, NULL, RAW | SOLO},
    {"reset_behind_end", reset_behind_end, NULL, RAW | SOLO},
    {"reset_behind_shutdown", reset_behind_shutdown, NULL, RAW | SOLO},
    {"sends_from_nowhere", sends_from_nowhere, NULL, RAW | SOLO},
    {"waits_for_nothing", waits_for_nothing, NULL, RAW | SOLO},
    {0},
};
