// One call of the program's reads across the boundary between TCP and a device, either way. It gets
// all that is here, as from one stream.
#include "pair.h"

enum { BEFORE = 3000, BEHIND = 2000, ALL = BEFORE + BEHIND, ROOM = 6000, STEP = 700, STEPS = 4 };

static void arrived(int fd, int n) {
  int here = 0;
  for (double end = now() + 10; here < n;) {
    CHECK(now() < end && !ioctl(fd, FIONREAD, &here));
  }
  EQ(here, n);
}
// BEFORE bytes by whatever carries them, and BEHIND by a call that only the kernel can do.
static void send_both(int fd) {
  static char b[ALL + 1];
  fill(b, ALL, 4, 0);
  for (int i = 0; i < ALL; i++) b[i] |= 1;  // text
  put(fd, b, BEFORE);
  EQ(dprintf(fd, "%s", b + BEFORE), BEHIND);
}
static ssize_t by(int how, int fd, char *b, size_t n, int flags) {
  struct iovec v[4] = {{b, 10}, {b + 10, 0}, {b + 10, n / 2}, {b + 10 + n / 2, n - 10 - n / 2}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 4};
  struct mmsghdr mm = {.msg_hdr = m};
  switch (how) {
    case 0: return read(fd, b, n);
    case 1: return recv(fd, b, n, flags);
    case 2: return recvfrom(fd, b, n, flags, NULL, NULL);
    case 3: return readv(fd, v, 4);
    case 4: return recvmsg(fd, &m, flags);
    default: return recvmmsg(fd, &mm, 1, flags, NULL) == 1 ? (ssize_t)mm.msg_len : -1;
  }
}
static void right(const char *b) {
  char want[ALL];
  fill(want, ALL, 4, 0);
  for (int i = 0; i < ALL; i++) want[i] |= 1;
  CHECK(!memcmp(b, want, ALL));
}
// From a device to TCP: the sender has gone back.
static void back(int lfd, int flags, int takes) {
  static char b[ROOM];
  for (int how = 0; how < 6; how++) {
    int s[2];
    two(lfd, s);
    send_both(s[0]);
    arrived(s[1], ALL);
    nonblock(s[1], 1);
    memset(b, 0, sizeof b);
    EQ(by(how, s[1], b, sizeof b, flags), ALL);
    right(b);
    if (!takes && how != 0 && how != 3) arrived(s[1], ALL);
    else FAILS(recv(s[1], b, 1, 0), EAGAIN);
    close(s[0]), close(s[1]);
  }
}
static void plain(int lfd) { back(lfd, 0, 1); }
static void all(int lfd) { back(lfd, MSG_WAITALL, 1); }
static void peeked(int lfd) { back(lfd, MSG_PEEK, 0); }
static void in_pieces(int lfd) {
  static char b[ALL];
  int s[2];
  two(lfd, s);
  send_both(s[0]);
  arrived(s[1], ALL);
  EQ(read(s[1], b, BEFORE - 100), BEFORE - 100);
  EQ(read(s[1], b + BEFORE - 100, 200), 200);
  EQ(recv(s[1], b + BEFORE + 100, BEHIND - 100, MSG_WAITALL), BEHIND - 100);
  right(b);
}
// From TCP to a device, wherever on the way it is that the connection changes.
static void forth(int lfd) {
  static char b[ROOM], c[STEP];
  for (int calls = 0; calls < 60; calls++) {
    int s[2];
    uint64_t at = 0;
    two(lfd, s);
    for (int i = 0; i < calls; i++, at += STEP) {
      fill(c, STEP, 6, at);
      put(s[0], c, STEP);
      get(s[1], b, STEP);
      put(s[1], "a", 1);
      get(s[0], b, 1);
    }
    for (int i = 0; i < STEPS; i++) {
      fill(c, STEP, 6, at + (uint64_t)i * STEP);
      put(s[0], c, STEP);
      put(s[1], "a", 1);
      get(s[0], b, 1);
    }
    arrived(s[1], STEPS * STEP);
    EQ(recv(s[1], b, sizeof b, MSG_PEEK), STEPS * STEP);
    verify(b, STEPS * STEP, 6, at);
    memset(b, 0, sizeof b);
    EQ(by(calls % 6, s[1], b, sizeof b, 0), STEPS * STEP);
    verify(b, STEPS * STEP, 6, at);
    close(s[0]), close(s[1]);
  }
}

// From a pipe, behind a call that only the kernel could do, and when the peer has gone.
static void from_pipe(int lfd) {
  static char b[STEP];
  int s[2], p[2];
  signal(SIGPIPE, SIG_IGN);
  two(lfd, s);
  CHECK(!pipe(p));
  EQ(dprintf(s[0], "text"), 4);
  for (int i = 0; i < 3; i++) {
    fill(b, STEP, 7, (uint64_t)i * STEP);
    EQ(write(p[1], b, STEP), STEP);
    EQ(splice(p[0], NULL, s[0], NULL, STEP, 0), STEP);
  }
  get(s[1], b, 4);
  get_stream(s[1], 7, 0, 3 * STEP, STEP);
  for (int first = 0; first < 2; first++) {
    if (first) two(lfd, s);
    close(s[1]);
    until(s[0], POLLRDHUP, POLLRDHUP);
    EQ(write(p[1], b, STEP), STEP);
    EQ(splice(p[0], NULL, s[0], NULL, STEP, 0), STEP);
    for (double end = now() + 10; !(ready(s[0], POLLIN, 1) & POLLHUP);) CHECK(now() < end);
    EQ(write(p[1], b, STEP), STEP);
    FAILS(splice(p[0], NULL, s[0], NULL, STEP, 0), EPIPE);
    EQ(read(p[0], b, STEP) > 0, 1);
    close(s[0]);
  }
}

// A call that takes all, and meets a reset behind it, leaves that to the next one.
static void reset_behind(int lfd) {
  static char b[ROOM];
  struct linger now_ = {1, 0};
  for (int tail = 0; tail < 2; tail++) {
    int s[2];
    two(lfd, s);
    fill(b, BEFORE, 8, 0);
    put(s[0], b, BEFORE);
    if (tail) EQ(dprintf(s[0], "text"), 4);
    arrived(s[1], BEFORE + 4 * tail);
    CHECK(!setsockopt(s[0], SOL_SOCKET, SO_LINGER, &now_, sizeof now_));
    close(s[0]);
    for (double end = now() + 10; !(ready(s[1], POLLIN, 1) & POLLERR);) CHECK(now() < end);
    EQ(recv(s[1], b, sizeof b, MSG_WAITALL), BEFORE + 4 * tail);
    verify(b, BEFORE, 8, 0);
    FAILS(recv(s[1], b, sizeof b, 0), ECONNRESET);
    EQ(recv(s[1], b, sizeof b, 0), 0);
    close(s[1]);
  }
}

// SO_RCVLOWAT counts what is here, whichever transport has brought it.
static int readable(int how, int fd, int ms) {
  struct timeval t = {ms / 1000, ms % 1000 * 1000};
  struct epoll_event e = {.events = EPOLLIN};
  fd_set set;
  if (how == 0) return ready(fd, POLLIN, ms) & POLLIN;
  if (how == 1) {
    FD_ZERO(&set);
    FD_SET(fd, &set);
    return select(fd + 1, &set, NULL, NULL, &t);
  }
  int ep = epoll_create1(EPOLL_CLOEXEC);
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  int n = epoll_wait(ep, &e, 1, ms);
  close(ep);
  return n;
}
static void *later(void *p) {
  nap(30);
  put(*(int *)p, "twenty-five more of these", 25);
  return NULL;
}
static void low_water(int lfd) {
  char b[40];
  int mark = 31;
  for (int how = 0; how < 6; how++) {
    pthread_t t;
    int s[2];
    two(lfd, s);
    CHECK(!setsockopt(s[1], SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
    put(s[0], "ab", 2);
    EQ(dprintf(s[0], "text"), 4);
    arrived(s[1], 6);
    for (int i = 0; i < 5; i++) EQ(readable(how % 3, s[1], 0), 0);
    if (how < 3) {
      // A thread that sleeps hears of the rest.
      CHECK(!pthread_create(&t, NULL, later, &s[0]));
      CHECK(readable(how, s[1], 10000) > 0);
      pthread_join(t, NULL);
      EQ(recv(s[1], b, sizeof b, 0), 31);
    } else {
      CHECK(!shutdown(s[0], SHUT_WR));
      CHECK(readable(how % 3, s[1], 10000) > 0);
      EQ(recv(s[1], b, sizeof b, 0), 6);
    }
    close(s[0]), close(s[1]);
  }
}

const test_case CASES[] = {
    {"reset_behind", reset_behind, NULL, RAW | SOLO},
    {"low_water", low_water, NULL, RAW | SOLO},
    {"from_a_pipe", from_pipe, NULL, RAW | SOLO},
    {"back_to_tcp", plain, NULL, RAW | SOLO},
    {"back_to_tcp_waitall", all, NULL, RAW | SOLO},
    {"back_to_tcp_peeked", peeked, NULL, RAW | SOLO},
    {"back_to_tcp_in_pieces", in_pieces, NULL, RAW | SOLO},
    {"away_from_tcp", forth, NULL, RAW | SOLO},
    {0},
};
