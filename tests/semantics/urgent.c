// Urgent data on a connection in the middle of its life: who is told of it, by what, and where it stands in the stream. A member
// of an epoll set is registered before the connection has reason to leave TCP, and after it.
#include "pair.h"

// So much goes to and fro that the connection has had reason to leave TCP.
static void live(int fd, int starts) {
  char b[1024], c[1024];
  for (int i = 0; i < 48; i++) {
    fill(b, sizeof b, 4, i * sizeof b);
    if (starts) put(fd, b, sizeof b), get(fd, c, sizeof c);
    else get(fd, c, sizeof c), put(fd, b, sizeof b);
    verify(c, sizeof c, 4, i * sizeof c);
  }
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
// Told once, or as long as it is so, and again of the next.
static void epolled(int fd, unsigned events, int when) {
  int ep = when == FIRST ? member(fd, events) : -1;
  live(fd, 0);
  if (when != FIRST) ep = member(fd, events);
  if (events & EPOLLIN) while (seen(ep, 0)) {}
  EQ(seen(ep, 0), 0);
  tell('w');
  unsigned all = events & (EPOLLPRI | EPOLLIN), spent = events & (EPOLLET | EPOLLONESHOT);
  // TCP tells of the urgent byte and then of the bytes before it: a sleeper may wake up in between.
  int awake = events & EPOLLET && events & EPOLLIN;
  if (awake) hear('s'), nap(patience(50));
  EQ(awaited(ep), all);
  if (!awake) hear('s');
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
  EQ(awaited(ep) & EPOLLPRI, EPOLLPRI);
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
  FD_ZERO(&except);
  FD_SET(fd, &except);
  FD_ZERO(&in);
  FD_SET(fd, &in);
  while (pselect(fd + 1, &in, NULL, &except, &t, NULL) == 1 && !FD_ISSET(fd, &except)) FD_SET(fd, &except);
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
    {0},
};
