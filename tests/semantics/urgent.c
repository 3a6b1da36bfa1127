// Urgent data on a connection in the middle of its life. Which caller is told of it, by what, and
// where it stands in the stream. A member of an epoll set is registered before the connection has
// reason to leave TCP, and after it.
#include "pair.h"

int sockatmark(int);

static int marked(int fd) {
  int at = -1;
  CHECK(!ioctl(fd, SIOCATMARK, &at));
  EQ(sockatmark(fd), at);
  return at;
}
// So much goes to and fro that the connection has had reason to leave TCP.
enum { ROUNDS = 48, PART = 1024 };
static void rounds(int fd, int starts, int from, int to) {
  char b[PART], c[PART];
  for (int i = from; i < to; i++) {
    fill(b, sizeof b, 4, i * sizeof b);
    if (starts) put(fd, b, sizeof b), get(fd, c, sizeof c);
    else get(fd, c, sizeof c), put(fd, b, sizeof b);
    verify(c, sizeof c, 4, i * sizeof c);
  }
}
static void live(int fd, int starts) { rounds(fd, starts, 0, ROUNDS); }
static void inlined(int fd) {
  int one = 1;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_OOBINLINE, &one, sizeof one));
}
static void took(int fd, char wanted) {
  char c = 0;
  EQ(recv(fd, &c, 1, MSG_OOB), 1);
  EQ(c, wanted);
}
static void say(int fd, const char *text) { put(fd, text, strlen(text)); }
static void urge(int fd, const char *text) { EQ(send(fd, text, strlen(text), MSG_OOB), strlen(text)); }
static void expect(int fd, const char *text) {
  char b[100];
  get(fd, b, strlen(text));
  if (memcmp(b, text, strlen(text))) FAIL("got '%.*s', not '%s'", (int)strlen(text), b, text);
}

// -- epoll
enum { FIRST = 1, THEN };  // when the member is registered

static int member(int fd, unsigned events) {
  int set = epoll_create1(0);
  struct epoll_event e = {.events = events, .data.u64 = 0x1234567890abcdef};
  CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
  return set;
}
static unsigned seen(int set, int ms) {
  struct epoll_event e[2];
  int n = epoll_wait(set, e, 2, ms < 1000 ? ms : patience(ms));
  CHECK(n == 0 || n == 1);
  if (n) CHECK(e[0].data.u64 == 0x1234567890abcdef);
  return n ? e[0].events : 0;
}
// Waits until the set says PRI; what it said with it.
static unsigned awaited(int set) {
  for (double end = now() + patience(10); now() < end;) {
    unsigned said = seen(set, 1000);
    if (said & EPOLLPRI) return said;
  }
  FAIL("no EPOLLPRI");
}
static void set(int set, int fd, unsigned events) {
  struct epoll_event e = {.events = events, .data.u64 = 0x1234567890abcdef};
  CHECK(!epoll_ctl(set, EPOLL_CTL_MOD, fd, &e));
}

static void urge_client(int fd) {
  live(fd, 1);
  hear('w');
  nap(20);
  urge(fd, "abc!");
  tell('s');
  hear('n');
  urge(fd, "?");
  hear('m');
  say(fd, "more");
  hear('d');
  live(fd, 1);
}
// What the set says of an urgent byte, with all there is to say of it. TCP wakes a sleeper for the
// urgent byte and then for the bytes it came with. So the first word may be PRI alone, and an edge
// comes once more. Where the level is told, it is as it stays.
static unsigned told_all(int ep, unsigned events) {
  unsigned all = events & (EPOLLPRI | EPOLLIN), said = awaited(ep), again = 0;
  EQ(said & ~all, 0);
  nap(patience(50));
  if (events & EPOLLONESHOT) return all;
  again = seen(ep, 0);
  EQ(again & ~all, 0);
  return events & EPOLLET ? said | again : again;
}
// Told once, or as long as it is so, and again of the next.
static void epolled(int fd, unsigned events, int when) {
  int ep = when == FIRST ? member(fd, events) : -1;
  live(fd, 0);
  if (when != FIRST) ep = member(fd, events);
  if (events & EPOLLIN) while (seen(ep, 0)) {}
  EQ(seen(ep, 0), 0);
  tell('w');
  unsigned all = events & (EPOLLPRI | EPOLLIN), spent = events & (EPOLLET | EPOLLONESHOT);
  EQ(told_all(ep, events), all);
  hear('s');
  EQ(seen(ep, 20), spent ? 0 : all);
  EQ(seen(ep, 0), spent ? 0 : all);
  if (events & EPOLLONESHOT) {
    set(ep, fd, events);
    EQ(seen(ep, 1000), all);
    EQ(seen(ep, 0), 0);
  }
  took(fd, '!');
  EQ(seen(ep, 0), spent ? 0 : all & EPOLLIN);
  expect(fd, "abc");
  EQ(seen(ep, 0), 0);
  if (events & EPOLLONESHOT) set(ep, fd, events);
  EQ(seen(ep, 0), 0);
  tell('n');
  EQ(told_all(ep, events) & EPOLLPRI, EPOLLPRI);
  EQ(seen(ep, 0), spent ? 0 : EPOLLPRI);
  took(fd, '?');
  EQ(seen(ep, 0), 0);
  tell('m');
  until(fd, POLLIN, POLLIN);
  EQ(seen(ep, 0), events & EPOLLIN && !(events & EPOLLONESHOT) ? EPOLLIN : 0);
  expect(fd, "more");
  close(ep);
  tell('d');
  live(fd, 0);
}
#define EPOLLED(name, events) \
  static void first_##name(int fd) { epolled(fd, events, FIRST); } \
  static void then_##name(int fd) { epolled(fd, events, THEN); }
EPOLLED(alone, EPOLLPRI)
EPOLLED(alone_edge, EPOLLPRI | EPOLLET)
EPOLLED(alone_oneshot, EPOLLPRI | EPOLLONESHOT)
EPOLLED(in, EPOLLPRI | EPOLLIN)
EPOLLED(in_edge, EPOLLPRI | EPOLLIN | EPOLLET)
EPOLLED(in_oneshot, EPOLLPRI | EPOLLIN | EPOLLONESHOT)
EPOLLED(edge_oneshot, EPOLLPRI | EPOLLET | EPOLLONESHOT)

// The wish comes and goes by MOD, while there is urgent data and while there is none.
static void epoll_wish(int fd) {
  int ep = member(fd, EPOLLIN);
  live(fd, 0);
  EQ(seen(ep, 0), 0);
  set(ep, fd, EPOLLPRI);
  tell('w');
  EQ(awaited(ep), EPOLLPRI);
  hear('s');
  set(ep, fd, EPOLLIN);
  EQ(seen(ep, 1000), EPOLLIN);
  set(ep, fd, EPOLLRDHUP);
  EQ(seen(ep, 20), 0);
  set(ep, fd, EPOLLPRI | EPOLLET);
  EQ(seen(ep, 1000), EPOLLPRI);
  EQ(seen(ep, 20), 0);
  struct epoll_event e = {.events = EPOLLPRI, .data.u64 = 0x1234567890abcdef};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
  EQ(seen(ep, 20), 0);
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  EQ(seen(ep, 1000), EPOLLPRI);
  expect(fd, "abc");
  EQ(seen(ep, 0), EPOLLPRI);
  took(fd, '!');
  EQ(seen(ep, 0), 0);
  tell('n');
  until(fd, POLLPRI, POLLPRI);
  took(fd, '?');
  EQ(seen(ep, 0), 0);
  tell('m');
  expect(fd, "more");
  tell('d');
  live(fd, 0);
}

// -- poll, select
static int by_poll(int fd) {
  struct pollfd p = {fd, POLLPRI, 0};
  EQ(poll(&p, 1, patience(10000)), 1);
  return p.revents == POLLPRI;
}
static int by_ppoll(int fd) {
  struct timespec t = {patience(10000) / 1000, 0};
  struct pollfd p = {fd, POLLPRI, 0};
  EQ(ppoll(&p, 1, &t, NULL), 1);
  return p.revents == POLLPRI;
}
static int by_select(int fd) {
  struct timeval t = {patience(10000) / 1000, 0};
  fd_set except;
  FD_ZERO(&except);
  FD_SET(fd, &except);
  EQ(select(fd + 1, NULL, NULL, &except, &t), 1);
  return FD_ISSET(fd, &except);
}
static int by_pselect(int fd) {
  struct timespec t = {patience(10000) / 1000, 0};
  fd_set except, in;
  // The kernel tells of the urgent byte a moment before it has queued those in front of it: either
  // may be seen alone.
  do {
    FD_ZERO(&except);
    FD_SET(fd, &except);
    FD_ZERO(&in);
    FD_SET(fd, &in);
  } while (pselect(fd + 1, &in, NULL, &except, &t, NULL) == 1);
  return FD_ISSET(fd, &except) && FD_ISSET(fd, &in);
}
static void polled(int fd, int (*by)(int)) {
  live(fd, 0);
  EQ(ready(fd, POLLPRI, 0), 0);
  tell('w');
  CHECK(by(fd));
  hear('s');
  CHECK(by(fd));
  EQ(ready(fd, POLLPRI | POLLIN | POLLRDBAND | POLLOUT, 0), POLLPRI | POLLIN | POLLOUT);
  took(fd, '!');
  EQ(ready(fd, POLLPRI, 0), 0);
  expect(fd, "abc");
  EQ(ready(fd, POLLPRI | POLLIN, 0), 0);
  tell('n');
  until(fd, POLLPRI | POLLIN, POLLPRI);
  took(fd, '?');
  tell('m');
  expect(fd, "more");
  tell('d');
  live(fd, 0);
}
static void poll_(int fd) { polled(fd, by_poll); }
static void ppoll_(int fd) { polled(fd, by_ppoll); }
static void select_(int fd) { polled(fd, by_select); }
static void pselect_(int fd) { polled(fd, by_pselect); }

// -- SIGURG
static volatile sig_atomic_t caught, code, about;
static void on_signal(int n, siginfo_t *info, void *context) {
  (void)context;
  caught = n, code = info->si_code, about = info->si_fd;
}
enum { BY_PID, BY_GROUP, BY_THREAD, BY_IOCTL, BY_NUMBER };
static void signalled(int fd, int how) {
  int number = how == BY_NUMBER ? SIGRTMIN + 3 : SIGURG, me = getpid();
  struct sigaction a = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
  struct f_owner_ex owner = {F_OWNER_TID, gettid()}, back = {-1, 0};
  CHECK(!sigaction(number, &a, NULL) && !sigaction(SIGURG, &a, NULL));
  live(fd, 0);
  if (how == BY_GROUP) CHECK(!fcntl(fd, F_SETOWN, -getpgrp()));
  else if (how == BY_THREAD) CHECK(!fcntl(fd, F_SETOWN_EX, &owner));
  else if (how == BY_IOCTL) CHECK(!ioctl(fd, FIOSETOWN, &me));
  else CHECK(!fcntl(fd, F_SETOWN, me));
  if (how == BY_NUMBER) CHECK(!fcntl(fd, F_SETSIG, number));
  if (how == BY_THREAD) CHECK(!fcntl(fd, F_GETOWN_EX, &back) && back.type == F_OWNER_TID && back.pid == owner.pid);
  else EQ(fcntl(fd, F_GETOWN), how == BY_GROUP ? -getpgrp() : me);
  EQ(fcntl(fd, F_GETSIG), how == BY_NUMBER ? number : 0);
  CHECK(!caught);
  tell('w');
  double end = now() + patience(10);
  while (!caught && now() < end) nap(1);
  // Urgent data come by SIGURG whatever F_SETSIG says.
  EQ(caught, SIGURG);
  hear('s');
  EQ(ready(fd, POLLPRI, 0), POLLPRI);
  took(fd, '!');
  expect(fd, "abc");
  tell('n');
  until(fd, POLLPRI, POLLPRI);
  took(fd, '?');
  tell('m');
  expect(fd, "more");
  tell('d');
  live(fd, 0);
}
static void signal_pid(int fd) { signalled(fd, BY_PID); }
static void signal_group(int fd) { signalled(fd, BY_GROUP); }
static void signal_thread(int fd) { signalled(fd, BY_THREAD); }
static void signal_ioctl(int fd) { signalled(fd, BY_IOCTL); }
static void signal_number(int fd) { signalled(fd, BY_NUMBER); }

// -- the mark
// What stands before the urgent byte was sent by other means than the byte, and is
// unread when it comes.
static void before_client(int fd) {
  live(fd, 1);
  hear('w');
  say(fd, "abc");
  urge(fd, "!");
  say(fd, "more");
  tell('s');
  hear('d');
  live(fd, 1);
}
static void begin_marked(int fd) {
  live(fd, 0);
  EQ(marked(fd), 0);
  tell('w');
  hear('s');
  nap(patience(50));
  EQ(marked(fd), 0);
  EQ(ready(fd, POLLIN | POLLPRI, 0), POLLIN | POLLPRI);
}
static void end_marked(int fd) {
  EQ(marked(fd), 0);
  EQ(ready(fd, POLLIN | POLLPRI, 0), 0);
  tell('d');
  live(fd, 0);
}
// How far one read comes: to the mark, and past it from there.
static void stops(int fd, int flags) {
  char b[100];
  int n;
  begin_marked(fd);
  CHECK(!ioctl(fd, FIONREAD, &n));
  EQ(n, 3);
  EQ(recv(fd, b, 2, flags), 2);
  EQ(marked(fd), 0);
  EQ(recv(fd, b + 2, 50, flags), 1);
  CHECK(!memcmp(b, "abc", 3));
  EQ(marked(fd), 1);
  EQ(ready(fd, POLLIN | POLLPRI, 0), POLLIN | POLLPRI);
  EQ(recv(fd, b, 4, flags), 4);
  CHECK(!memcmp(b, "more", 4));
  FAILS(recv(fd, b, 1, MSG_OOB), EINVAL);
  end_marked(fd);
}
static void stops_read(int fd) { stops(fd, 0); }
static void stops_waitall(int fd) { stops(fd, MSG_WAITALL); }
static void stops_dontwait(int fd) { stops(fd, MSG_DONTWAIT); }
static void stops_vector(int fd) {
  char b[3][2];
  struct iovec v[] = {{b[0], 2}, {b[1], 2}, {b[2], 2}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
  begin_marked(fd);
  EQ(recvmsg(fd, &m, MSG_WAITALL), 3);
  EQ(marked(fd), 1);
  EQ(readv(fd, v, 3), 4);
  CHECK(!memcmp(b, "more", 4));
  end_marked(fd);
}
static void stops_peek(int fd) {
  char b[100];
  begin_marked(fd);
  for (int i = 0; i < 2; i++) EQ(recv(fd, b, 50, MSG_PEEK), 3);
  EQ(recv(fd, b, 1, MSG_OOB | MSG_PEEK), 1);
  EQ(*b, '!');
  EQ(recv(fd, b, 7, MSG_PEEK | MSG_WAITALL), 3);
  expect(fd, "abc");
  EQ(marked(fd), 1);
  took(fd, '!');
  FAILS(recv(fd, b, 1, MSG_OOB), EINVAL);
  EQ(marked(fd), 1);
  expect(fd, "more");
  end_marked(fd);
}
// A read that waits for more than there is before the mark has what it gets when the byte comes.
static void stops_blocked(int fd) {
  char b[100];
  live(fd, 0);
  EQ(recv(fd, b, 50, MSG_WAITALL), 3);
  EQ(marked(fd), 1);
  EQ(ready(fd, POLLIN | POLLPRI, 0), POLLPRI);
  took(fd, '!');
  tell('n');
  expect(fd, "more");
  tell('d');
  live(fd, 0);
}
static void blocked_client(int fd) {
  live(fd, 1);
  nap(patience(50));
  say(fd, "abc");
  nap(patience(50));
  urge(fd, "!");
  hear('n');
  say(fd, "more");
  hear('d');
  live(fd, 1);
}
// The byte is one of the stream.
static void stops_inline(int fd) {
  char b[100];
  int n;
  inlined(fd);
  begin_marked(fd);
  FAILS(recv(fd, b, 1, MSG_OOB), EINVAL);
  CHECK(!ioctl(fd, FIONREAD, &n));
  EQ(n, 8);
  EQ(recv(fd, b, 50, 0), 3);
  EQ(marked(fd), 1);
  EQ(recv(fd, b, 5, MSG_WAITALL), 5);
  CHECK(!memcmp(b, "!more", 5));
  end_marked(fd);
}
// A reader that asks for the mark when it is there passes it; so does one to which bytes before it
// come from elsewhere.
static void mark_loop(int fd) {
  char b[2];
  int n = 0;
  begin_marked(fd);
  while (!marked(fd)) n += recv(fd, b, 1, 0);
  EQ(n, 3);
  took(fd, '!');
  expect(fd, "more");
  end_marked(fd);
}
static void nothing_urgent(int fd) {
  char b[2];
  live(fd, 0);
  FAILS(recv(fd, b, 1, MSG_OOB), EINVAL);
  FAILS(recv(fd, b, 1, MSG_OOB | MSG_DONTWAIT), EINVAL);
  EQ(marked(fd), 0);
  inlined(fd);
  FAILS(recv(fd, b, 1, MSG_OOB), EINVAL);
  tell('d');
  live(fd, 0);
}
static void nothing_client(int fd) {
  live(fd, 1);
  hear('d');
  live(fd, 1);
}

// -- when it is sent
// After so many rounds of a connection's life one end sends an urgent byte, or
// both do, and then goes on.
enum { STEPS = 24 };
enum { BY_CLIENT = 1, BY_SERVER = 2, INLINE = 4 };
static void at_any_time(int lfd, int who) {
  for (int at = 0; at < STEPS; at++) {
    int fd = ctx.is_client ? dial() : accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    if (who & INLINE) inlined(fd);
    rounds(fd, ctx.is_client, 0, at);
    // The end that speaks first sends its byte among what the other has not read yet.
    int mine = who & (ctx.is_client ? BY_CLIENT : BY_SERVER), theirs = who & (ctx.is_client ? BY_SERVER : BY_CLIENT);
    if (mine) say(fd, "abc"), urge(fd, "!"), say(fd, "more");
    if (theirs && who & INLINE) expect(fd, "abc!more");
    else if (theirs) {
      by_poll(fd);
      took(fd, '!');
      expect(fd, "abc");
      EQ(marked(fd), 1);
      expect(fd, "more");
    }
    rounds(fd, ctx.is_client, at, ROUNDS);
    if (ctx.is_client) CHECK(!shutdown(fd, SHUT_WR));
    get_eof(fd);
    close(fd);
  }
}
#define AT_ANY_TIME(name, who) \
  static void name(int fd) { at_any_time(fd, who); }
AT_ANY_TIME(time_client, BY_CLIENT)
AT_ANY_TIME(time_server, BY_SERVER)
AT_ANY_TIME(time_both, BY_CLIENT | BY_SERVER)
AT_ANY_TIME(time_inline, BY_CLIENT | BY_SERVER | INLINE)

// A long stream with urgent bytes among it, read by an end that has them inline.
enum { LONG = 4 << 20 };
static void *sends_long(void *at) {
  int fd = *(int *)at;
  static char b[50000];
  for (long n = 0; n < LONG;) {
    size_t k = LONG - n < (long)sizeof b ? LONG - n : (long)sizeof b;
    fill(b, k, 8, n);
    put(fd, b, k - 1);
    EQ(send(fd, b + k - 1, 1, n > 100000 ? MSG_OOB : 0), 1);
    n += k;
  }
  return NULL;
}
static void long_stream(int fd) {
  pthread_t t;
  inlined(fd);
  tell('i');
  hear('i');
  CHECK(!pthread_create(&t, NULL, sends_long, &fd));
  get_stream(fd, 8, 0, LONG, 30000);
  CHECK(!pthread_join(t, NULL));
}

// -- which ends may not send any
// Where TCP is excluded urgent data are refused, but what TCP says first is said first.
static void may_send(int fd) {
  live(fd, 0);
  if (no_tcp()) {
    for (int i = 0; i < 2; i++) FAILS(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), EOPNOTSUPP);
    FAILS(send(fd, "!", 1, MSG_OOB | MSG_DONTWAIT), EOPNOTSUPP);
    put(fd, "!", 1);
  } else {
    urge(fd, "!");
  }
  tell('s');
  live(fd, 0);
  CHECK(!shutdown(fd, SHUT_WR));
  for (int i = 0; i < 2; i++) FAILS(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), EPIPE);
  tell('d');
}
static void may_send_client(int fd) {
  inlined(fd);
  live(fd, 1);
  hear('s');
  expect(fd, "!");
  live(fd, 1);
  hear('d');
  get_eof(fd);
}
static void reset_client(int fd) {
  struct linger l = {1, 0};
  live(fd, 1);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
  close(fd);
  tell('r');
}
static void after_reset(int fd) {
  live(fd, 0);
  hear('r');
  nap(patience(50));
  FAILS(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), ECONNRESET);
  FAILS(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), EPIPE);
  EQ(recv(fd, (char[1]){0}, 1, 0), 0);
}
static void closing_client(int fd) {
  live(fd, 1);
  close(fd);
  tell('r');
  hear('d');
}
// The peer has closed: the first is sent, and answered by a reset.
static void after_close(int fd) {
  live(fd, 0);
  hear('r');
  nap(patience(50));
  if (no_tcp()) FAILS(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), EOPNOTSUPP);
  else EQ(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), 1);
  if (!no_tcp()) {
    nap(patience(50));
    FAILS(send(fd, "!", 1, MSG_OOB | MSG_NOSIGNAL), EPIPE);
  }
  tell('d');
}

const test_case CASES[] = {
#define EACH(name) {"epoll_first_" #name, first_##name, urge_client, COLD | NOSHM}, {"epoll_then_" #name, then_##name, urge_client, COLD | NOSHM}
    EACH(alone),
    EACH(alone_edge),
    EACH(alone_oneshot),
    EACH(in),
    EACH(in_edge),
    EACH(in_oneshot),
    EACH(edge_oneshot),
    {"epoll_wish", epoll_wish, urge_client, COLD | NOSHM},
    {"poll", poll_, urge_client, NOSHM},
    {"ppoll", ppoll_, urge_client, NOSHM},
    {"select", select_, urge_client, NOSHM},
    {"pselect", pselect_, urge_client, NOSHM},
    {"signal_pid", signal_pid, urge_client, NOSHM},
    {"signal_group", signal_group, urge_client, NOSHM},
    {"signal_thread", signal_thread, urge_client, NOSHM},
    {"signal_ioctl", signal_ioctl, urge_client, NOSHM},
    {"signal_number", signal_number, urge_client, NOSHM},
    {"stops_read", stops_read, before_client, NOSHM},
    {"stops_waitall", stops_waitall, before_client, NOSHM},
    {"stops_dontwait", stops_dontwait, before_client, NOSHM},
    {"stops_vector", stops_vector, before_client, NOSHM},
    {"stops_peek", stops_peek, before_client, NOSHM},
    {"stops_blocked", stops_blocked, blocked_client, NOSHM},
    {"stops_inline", stops_inline, before_client, NOSHM},
    {"mark_loop", mark_loop, before_client, NOSHM},
    {"nothing", nothing_urgent, nothing_client, 0},
    {"time_client", time_client, time_client, RAW | NOSHM},
    {"time_server", time_server, time_server, RAW | NOSHM},
    {"time_both", time_both, time_both, RAW | NOSHM},
    {"time_inline", time_inline, time_inline, RAW | NOSHM},
    {"long_stream", long_stream, long_stream, NOSHM},
    {"may_send", may_send, may_send_client, 0},
    {"after_reset", after_reset, reset_client, 0},
    {"after_close", after_close, closing_client, 0},
    {0},
};
