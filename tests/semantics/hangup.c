// What epoll says of an end of the connection beside what it has said before: at once, and once.
#include "sem.h"
#include "set.h"

static void await_events(int fd, short events) {
  double end = now() + patience(3000) / 1000.0;
  while ((ready(fd, events, 0) & events) != events) {
    CHECK(now() < end);
    nap(1);
  }
}

static void talks_server(int fd) {
  put(fd, "some bytes", 10);
  hear('e');
}
// The program's own shutdown, beside what is unread or always so: no call may leave it out.
static void own_client(int fd, int how, unsigned end) {
  static const unsigned wanted[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT};
  int sets[4];
  EQ(ready(fd, POLLIN, patience(2000)), POLLIN);
  for (int i = 0; i < 4; i++) {
    sets[i] = set_of(fd, wanted[i]);
    for (int k = 0; k < 20; k++) EQ(said(sets[i], 0), wanted[i] & (EPOLLIN | EPOLLOUT));
  }
  CHECK(!shutdown(fd, how));
  for (int i = 0; i < 4; i++) {
    unsigned now_so = (wanted[i] & (EPOLLIN | EPOLLOUT)) | (end & (wanted[i] | EPOLLHUP));
    for (int k = 0; k < 20; k++) EQ(said(sets[i], 0), now_so);
    close(sets[i]);
  }
  tell('e');
}
static void own_both_client(int fd) { own_client(fd, SHUT_RDWR, EPOLLRDHUP | EPOLLHUP); }
static void own_read_client(int fd) { own_client(fd, SHUT_RD, EPOLLRDHUP); }
static void own_in_turn_client(int fd) {
  CHECK(!shutdown(fd, SHUT_WR));
  own_client(fd, SHUT_RD, EPOLLRDHUP | EPOLLHUP);
}

static void closes_server(int fd) {
  close(fd);
  tell('c');
}
// A reset that a send has brought, where there is always room.
static void reset_client(int fd) {
  hear('c');
  signal(SIGPIPE, SIG_IGN);
  await_events(fd, POLLRDHUP);
  int before = set_of(fd, EPOLLOUT);
  EQ(said(before, 0), EPOLLOUT);
  EQ(send(fd, "nobody", 6, 0), 6);
  await_events(fd, POLLERR);
  int after = set_of(fd, EPOLLOUT);
  // At once, without a call in between.
  for (int i = 0; i < 20; i++) EQ(said(after, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
  EQ(said(before, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
  EQ(said(after, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
}

// The same as soon as it is there, within what a set that has just been asked is believed: no
// sleep, and no poll.
static void reset_soon_client(int fd) {
  char b[1];
  hear('c');
  signal(SIGPIPE, SIG_IGN);
  await_events(fd, POLLRDHUP);
  EQ(recv(fd, b, 1, 0), 0);
  int ep = set_of(fd, EPOLLOUT);
  EQ(said(ep, 0), EPOLLOUT);
  EQ(send(fd, "nobody", 6, 0), 6);
  int e = 0, n = 0;
  while (n++ < 1000000 && !e) {
    struct tcp_info info;
    socklen_t l = sizeof info;
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &l));
    e = info.tcpi_state == TCP_CLOSE;
  }
  CHECK(e);
  EQ(said(ep, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
}

// A reset that a call on the connection itself has told of. No call behind it may know less, least
// of all one that has something to say anyway.
enum { RESETS = 20 };  // of which each comes at another moment
static void resets_server(int lfd) {
  struct linger l = {1, 0};
  for (int i = 0; i < RESETS; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    warm(fd, 0);
    get(fd, &(char){0}, 1);
    put(fd, "some bytes", 10);
    hear('n');
    CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
    close(fd);
    hear('e');
  }
}
static int state_of(int fd) {
  struct tcp_info info;
  socklen_t l = sizeof info;
  CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &l));
  return info.tcpi_state;
}
static int told_by_info(int fd) { return state_of(fd) == TCP_CLOSE; }
static int told_by_name(int fd) {
  struct sockaddr_storage a;
  socklen_t l = sizeof a;
  return getpeername(fd, (void *)&a, &l) && errno == ENOTCONN;
}
static int told_by_error(int fd) {
  int e = 0;
  socklen_t l = sizeof e;
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &l));
  // The kernel notes the error a moment before the end.
  for (double limit = now() + patience(3000) / 1000.0; e && state_of(fd) != TCP_CLOSE;) CHECK(now() < limit);
  return e == ECONNRESET;
}
// Sets that have just been asked, each in another way; then the call, and the sets once more
// without a call in between.
static void reset_told_once(int (*told)(int), unsigned end) {
  static const unsigned wanted[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT};
  int sets[4], fd = dial();
  warm(fd, 1);
  put(fd, "t", 1);
  EQ(ready(fd, POLLIN, patience(2000)), POLLIN);
  for (int i = 0; i < 4; i++) sets[i] = set_of(fd, wanted[i]);
  tell('n');
  for (double limit = now() + patience(3000) / 1000.0; !told(fd);) {
    CHECK(now() < limit);
    for (int i = 0; i < 4; i++) said(sets[i], 0);
  }
  for (int i = 0; i < 4; i++) EQ(said(sets[i], 0), wanted[i] | end);
  FAILS(send(fd, "nobody", 6, MSG_NOSIGNAL), end & EPOLLERR ? ECONNRESET : EPIPE);
  for (int i = 0; i < 4; i++) {
    EQ(said(sets[i], 0), wanted[i] | EPOLLHUP);
    close(sets[i]);
  }
  close(fd);
  tell('e');
}
static void reset_told(int (*told)(int), unsigned end) {
  for (int i = 0; i < RESETS; i++) reset_told_once(told, end);
}
static void reset_info_client(int fd) { (void)fd, reset_told(told_by_info, EPOLLERR | EPOLLHUP); }
static void reset_name_client(int fd) { (void)fd, reset_told(told_by_name, EPOLLERR | EPOLLHUP); }
static void reset_error_client(int fd) { (void)fd, reset_told(told_by_error, EPOLLHUP); }

// The end of a process that is killed, which has said nothing of its end itself.
static void killed_server(int lfd) {
  pid_t p = fork();
  CHECK(p >= 0);
  if (!p) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    warm(fd, 0);
    put(fd, "some bytes", 10);
    tell_int(getpid());
    for (;;) pause();
  }
  EQ(exit_status(p), 128 + SIGKILL);
}
static void killed_client(int fd) {
  char b[10];
  fd = dial();
  warm(fd, 1);
  EQ(ready(fd, POLLIN, patience(2000)), POLLIN);
  int both = set_of(fd, EPOLLIN | EPOLLRDHUP), end = set_of(fd, EPOLLOUT | EPOLLRDHUP);
  pid_t p = hear_int();
  for (int k = 0; k < 20; k++) EQ(said(both, 0), EPOLLIN);
  EQ(said(end, 0), EPOLLOUT);
  CHECK(!kill(p, SIGKILL));
  double limit = now() + patience(3000) / 1000.0;
  while (state_of(fd) != TCP_CLOSE_WAIT) {
    CHECK(now() < limit);
    // So that the set has just been asked.
    EQ(said(both, 0) & EPOLLIN, EPOLLIN);
  }
  EQ(said(both, 0), EPOLLIN | EPOLLRDHUP);
  EQ(said(end, 0), EPOLLOUT | EPOLLRDHUP);
  EQ(recv(fd, b, 10, MSG_DONTWAIT), 10);
  EQ(recv(fd, b, 10, MSG_DONTWAIT), 0);
}

// Where no process may ask the kernel, a peer that has sent its end and is killed is not told from
// one that reads on. Without TCP a call has waited long enough after some seconds (docs/limits.md).
static int may_ask(void) {
  int s = socket(AF_NETLINK, SOCK_RAW, 4);
  return s >= 0 && !close(s);
}
// A reader that is killed while the writer waits for room, after it has sent its end or before. It
// is the one that accepted, or the child of one that has closed its own descriptor since.
static void kills(int lfd, int inherits, int ends) {
  int fd = -1;
  if (inherits) {
    CHECK((fd = accept(lfd, NULL, NULL)) >= 0);
    warm(fd, 0);
  }
  pid_t p = fork();
  CHECK(p >= 0);
  if (!p) {
    if (!inherits) {
      CHECK((fd = accept(lfd, NULL, NULL)) >= 0);
      warm(fd, 0);
    }
    if (ends && may_ask()) CHECK(!shutdown(fd, SHUT_WR));
    tell_int(getpid());
    for (;;) pause();
  }
  if (inherits) close(fd);
  EQ(exit_status(p), 128 + SIGKILL);
  hear('e');
}
static void kill_server(int lfd) { kills(lfd, 0, 0); }
static void kill_heir_server(int lfd) { kills(lfd, 1, 0); }
static void kill_ended_server(int lfd) { kills(lfd, 0, 1); }
static void writer_client(int fd) {
  static char b[100000];
  fd = dial();
  warm(fd, 1);
  pid_t p = hear_int();
  for (int vain = 0; vain < 20;) {
    ssize_t n = send(fd, b, sizeof b, MSG_DONTWAIT | MSG_NOSIGNAL);
    int e = errno;
    if (n > 0) vain = 0;
    else {
      EQ(e, EAGAIN);
      vain++, nap(5);
    }
  }
  pid_t killer = fork();
  if (!killer) {
    nap(100);
    _exit(kill(p, SIGKILL));
  }
  while (send(fd, b, sizeof b, MSG_NOSIGNAL) > 0) {}
  int e = errno;
  CHECK(e == ECONNRESET || e == EPIPE || (e == ETIMEDOUT && !may_ask()));
  EQ(exit_status(killer), 0);
  tell('e');
}

static void passes_server(int fd) {
  int p[2], other = -1;
  char c = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  CHECK(!shutdown(fd, SHUT_WR));
  tell('s');
  hear('n');
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, p));
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  EQ(sendmsg(p[0], &m, 0), 1);
  EQ(recvmsg(p[1], &m, 0), 1);
  memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof other);
  close(fd);
  tell('p');
  hear('e');
  close(other);
}
// The end is an edge that comes once, whatever becomes of the peer's descriptor behind it.
static void edge_client(int fd) {
  int rdhup = set_of(fd, EPOLLRDHUP | EPOLLET), both = set_of(fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
  hear('s');
  await_events(fd, POLLRDHUP);
  EQ(said(rdhup, patience(2000)), EPOLLRDHUP);
  EQ(said(both, patience(2000)), EPOLLIN | EPOLLRDHUP);
  tell('n');
  hear('p');
  for (int i = 0; i < 20; i++) {
    EQ(said(rdhup, 1), 0);
    EQ(said(both, 1), 0);
  }
  tell('e');
}

// A reset whose error was taken, where what this end sends has gone back to TCP before.
static void resets_behind_server(int fd) {
  struct linger l = {1, 0};
  hear('r');
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
  close(fd);
  tell('c');
}
static void resets_behind_client(int fd) {
  static const unsigned wanted[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLET};
  int before[4];
  char c;
  EQ(dprintf(fd, "text"), 4);
  for (int i = 0; i < 4; i++) before[i] = set_of(fd, wanted[i]);
  EQ(said(before[0], 0), 0);
  tell('r');
  hear('c');
  FAILS(recv(fd, &c, 1, 0), ECONNRESET);
  for (int i = 0; i < 4; i++) {
    unsigned all = (wanted[i] & ~EPOLLET) | EPOLLHUP;
    EQ(said(before[i], 0), all);
    int after = set_of(fd, wanted[i]);
    EQ(said(after, 0), all);
    if (!(wanted[i] & EPOLLET)) EQ(said(before[i], 0), all);
    close(after);
  }
  EQ(ready(fd, POLLIN, 0), POLLIN | POLLHUP);
  EQ(ready(fd, POLLOUT, 0), POLLOUT | POLLHUP);
  EQ(ready(fd, 0, 0), POLLHUP);
}

const test_case CASES[] = {
    {"own_shutdown_of_both", talks_server, own_both_client, 0},
    {"own_shutdown_of_reading", talks_server, own_read_client, 0},
    {"own_shutdown_in_turn", talks_server, own_in_turn_client, 0},
    {"reset_beside_room", closes_server, reset_client, TOUCH},
    {"reset_beside_room_soon", closes_server, reset_soon_client, TOUCH},
    {"reset_told_by_tcp_info", resets_server, reset_info_client, RAW},
    {"reset_told_by_its_name", resets_server, reset_name_client, RAW},
    {"reset_told_by_its_error", resets_server, reset_error_client, RAW},
    {"end_of_one_that_was_killed", killed_server, killed_client, RAW},
    {"writer_beside_one_that_is_killed", kill_server, writer_client, RAW},
    {"writer_beside_an_heir_that_is_killed", kill_heir_server, writer_client, RAW},
    {"writer_beside_one_that_ends_and_is_killed", kill_ended_server, writer_client, RAW},
    {"edge_of_the_end_once", passes_server, edge_client, TOUCH},
    {"reset_behind_a_fallback", resets_behind_server, resets_behind_client, TOUCH},
    {0},
};
