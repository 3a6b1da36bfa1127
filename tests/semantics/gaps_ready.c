// What upstream's library gets wrong about readiness, one case for each row of the list of its
// gaps, section 4.
#include "pair.h"

#include <sys/syscall.h>

static int add(int ep, int fd, uint32_t events) {
  struct epoll_event e = {.events = events, .data.fd = fd};
  return epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e);
}
static int wait1(int ep, int ms, uint32_t *events) {
  struct epoll_event e[4];
  int n = epoll_wait(ep, e, 4, ms);
  if (n == 1) *events = e[0].events;
  return n;
}
static void byte(int from, int to) {
  char c = 'b';
  put(from, &c, 1);
  get(to, &c, 1);
}

// 4.1 A time-out shrinks with each internal wake-up.
static void g4_01_timeouts_are_whole(int lfd) {
  int s[2];
  two(lfd, s);
  int ep = epoll_create1(0);
  EQ(add(ep, s[0], EPOLLIN), 0);
  struct pollfd p = {s[0], POLLIN, 0};
  double t = now();
  EQ(poll(&p, 1, 2600), 0);
  CHECK(now() - t >= 2.599);
  t = now();
  uint32_t ev;
  EQ(wait1(ep, 1300, &ev), 0);
  CHECK(now() - t >= 1.299);
  t = now();
  fd_set r;
  FD_ZERO(&r);
  FD_SET(s[0], &r);
  struct timeval tv = {1, 200000};
  EQ(select(s[0] + 1, &r, NULL, NULL, &tv), 0);
  CHECK(now() - t >= 1.199);
}

// 4.2 Every event wakes every waiter. 4.3 A waiter wakes every half second.
static volatile long woke;
static int sleeper_fd;
static void *sleeper(void *arg) {
  (void)arg;
  struct rusage u;
  struct pollfd p = {sleeper_fd, POLLIN, 0};
  EQ(poll(&p, 1, 20000), 1);
  getrusage(RUSAGE_THREAD, &u);
  woke = u.ru_nvcsw;
  return NULL;
}
static void g4_02_others_are_not_woken(int lfd) {
  int a[2], b[2];
  two(lfd, a);
  two(lfd, b);
  sleeper_fd = a[1];
  pthread_t t;
  pthread_create(&t, NULL, sleeper, NULL);
  nap(50);
  for (int i = 0; i < 500; i++) byte(b[i & 1], b[~i & 1]);
  put(a[0], "x", 1);
  pthread_join(t, NULL);
  if (woke > 60) FAIL("a waiter was put to sleep %ld times while others had 500 events", woke);
}
static void g4_03_waiters_do_not_wake(int lfd) {
  int s[2];
  two(lfd, s);
  sleeper_fd = s[1];
  pthread_t t;
  pthread_create(&t, NULL, sleeper, NULL);
  nap(2500);
  put(s[0], "x", 1);
  pthread_join(t, NULL);
  if (woke > 6) FAIL("an idle waiter was put to sleep %ld times in 2.5 s", woke);
}

// 4.4 select never reports descriptor 0, forgets the fractions of its time, and clears the sets of
// a call that fails.
static void g4_04_select(int lfd) {
  int s[2];
  two(lfd, s);
  fd_set r;
  struct timeval tv = {0, 900};
  double t = now();
  FD_ZERO(&r);
  FD_SET(s[0], &r);
  EQ(select(s[0] + 1, &r, NULL, NULL, &tv), 0);
  CHECK(now() - t >= 0.0009);
  CHECK(tv.tv_sec == 0 && tv.tv_usec == 0 && !FD_ISSET(s[0], &r));
  put(s[1], "x", 1);
  tv = (struct timeval){9, 0};
  FD_SET(s[0], &r);
  EQ(select(s[0] + 1, &r, NULL, NULL, &tv), 1);
  CHECK(tv.tv_sec > 0 && tv.tv_sec < 9);
  FD_ZERO(&r);
  FD_SET(s[0], &r);
  FD_SET(60, &r);
  FAILS(select(61, &r, NULL, NULL, &tv), EBADF);
  CHECK(FD_ISSET(s[0], &r) && FD_ISSET(60, &r));
  int keep = dup(0);
  EQ(dup2(s[0], 0), 0);
  FD_ZERO(&r);
  FD_SET(0, &r);
  EQ(select(1, &r, NULL, NULL, NULL), 1);
  CHECK(FD_ISSET(0, &r));
  dup2(keep, 0);
}

// 4.5 No POLLRDHUP, POLLPRI, POLLNVAL; an unconnected socket reports nothing.
static void g4_05_rare_events(int lfd) {
  int s[2];
  two(lfd, s);
  int new = socket(ctx.family, SOCK_STREAM, 0);
  struct pollfd p[3] = {{new, POLLIN | POLLOUT, 0}, {700, POLLIN, 0}, {-1, POLLIN, 0}};
  EQ(poll(p, 3, 1000), 2);
  EQ(p[0].revents, POLLOUT | POLLHUP);
  EQ(p[1].revents, POLLNVAL);
  EQ(p[2].revents, 0);
  EQ(shutdown(s[1], SHUT_WR), 0);
  until(s[0], POLLRDHUP, POLLRDHUP);
  until(s[0], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
}
static void g4_05_urgent(int lfd) {
  int s[2];
  two(lfd, s);
  EQ(send(s[1], "u", 1, MSG_OOB), 1);
  until(s[0], POLLPRI, POLLPRI);
  char c;
  EQ(recv(s[0], &c, 1, MSG_OOB), 1);
}

// 4.6 What is said after the other end has gone.
static void g4_06_after_the_end(int lfd) {
  int s[2];
  two(lfd, s);
  close(s[1]);
  until(s[0], POLLIN | POLLOUT | POLLRDHUP, POLLIN | POLLOUT | POLLRDHUP);
  shutdown(s[0], SHUT_WR);
  until(s[0], POLLIN, POLLIN | POLLHUP);
}

// 4.7 Positive error numbers.
static void g4_07_errors(int lfd) {
  int s[2];
  two(lfd, s);
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN}, out[2];
  EQ(add(ep, s[0], EPOLLIN), 0);
  FAILS(add(ep, s[0], EPOLLIN), EEXIST);
  FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, s[1], &e), ENOENT);
  FAILS(epoll_ctl(ep, EPOLL_CTL_DEL, s[1], &e), ENOENT);
  FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, 700, &e), EBADF);
  FAILS(epoll_ctl(700, EPOLL_CTL_ADD, s[1], &e), EBADF);
  FAILS(epoll_ctl(s[1], EPOLL_CTL_ADD, s[0], &e), EINVAL);
  FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, ep, &e), EINVAL);
  FAILS(epoll_ctl(ep, 77, s[0], &e), EINVAL);
  FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], NULL), EFAULT);
  FAILS(epoll_wait(s[0], out, 2, 0), EINVAL);
  FAILS(epoll_wait(700, out, 2, 0), EBADF);
  FAILS(epoll_create1(77), EINVAL);
  FAILS(epoll_create(0), EINVAL);
}

// 4.8 EPOLLET, EPOLLONESHOT, EPOLLRDHUP, EPOLLPRI and EPOLLEXCLUSIVE are dropped.
static void g4_08_flags(int lfd) {
  int s[2], ep = epoll_create1(0), other = epoll_create1(0);
  uint32_t ev;
  two(lfd, s);
  EQ(add(ep, s[0], EPOLLIN | EPOLLET), 0);
  put(s[1], "x", 1);
  EQ(wait1(ep, 5000, &ev), 1);
  EQ(ev, EPOLLIN);
  EQ(wait1(ep, 0, &ev), 0);
  struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT | EPOLLRDHUP, .data.fd = s[0]};
  EQ(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], &e), 0);
  EQ(wait1(ep, 5000, &ev), 1);
  EQ(wait1(ep, 0, &ev), 0);
  char c;
  get(s[0], &c, 1);
  EQ(epoll_ctl(ep, EPOLL_CTL_MOD, s[0], &e), 0);
  EQ(shutdown(s[1], SHUT_WR), 0);
  EQ(wait1(ep, 5000, &ev), 1);
  EQ(ev, EPOLLIN | EPOLLRDHUP);
  EQ(add(other, s[1], EPOLLIN | EPOLLEXCLUSIVE), 0);
  e.data.fd = s[1];
  e.events = EPOLLIN;
  FAILS(epoll_ctl(other, EPOLL_CTL_MOD, s[1], &e), EINVAL);
  put(s[0], "y", 1);
  EQ(wait1(other, 5000, &ev), 1);
  EQ(ev, EPOLLIN);
  int third = epoll_create1(0);
  FAILS(add(third, s[1], EPOLLIN | EPOLLEXCLUSIVE | EPOLLONESHOT), EINVAL);
}

// 4.9 Sets with nothing but ordinary descriptors; a set that came by fork.
static void g4_09_ordinary_sets(int lfd) {
  int s[2], p[2], ep = epoll_create1(0);
  uint32_t ev;
  two(lfd, s);
  CHECK(!pipe(p));
  EQ(add(ep, p[0], EPOLLIN), 0);
  EQ(wait1(ep, 0, &ev), 0);
  EQ(write(p[1], "x", 1), 1);
  EQ(wait1(ep, 5000, &ev), 1);
  EQ(ev, EPOLLIN);
  pid_t child = fork();
  if (!child) _exit(wait1(ep, 5000, &ev) == 1 && ev == EPOLLIN ? 0 : 1);
  EQ(exit_status(child), 0);
  EQ(add(ep, s[0], EPOLLIN), 0);
  put(s[1], "x", 1);
  struct epoll_event e[4];
  until(s[0], POLLIN, POLLIN);
  EQ(epoll_wait(ep, e, 4, 5000), 2);
}

// 4.10 epoll_pwait and epoll_pwait2.
static void nothing(int sig) { (void)sig; }
static void g4_10_pwait(int lfd) {
  int s[2], ep = epoll_create1(0);
  struct epoll_event e[2];
  struct timespec ts = {0, 30000000};
  sigset_t block, none;
  two(lfd, s);
  EQ(add(ep, s[0], EPOLLIN), 0);
  double t = now();
  EQ(epoll_pwait2(ep, e, 2, &ts, NULL), 0);
  CHECK(now() - t >= 0.03);
  EQ(epoll_pwait(ep, e, 2, 0, NULL), 0);
  signal(SIGUSR1, nothing);
  sigemptyset(&block), sigemptyset(&none);
  sigaddset(&block, SIGUSR1);
  sigprocmask(SIG_BLOCK, &block, NULL);
  raise(SIGUSR1);
  FAILS(epoll_pwait(ep, e, 2, 10000, &none), EINTR);
  raise(SIGUSR1);
  FAILS(epoll_pwait2(ep, e, 2, NULL, &none), EINTR);
  put(s[1], "x", 1);
  EQ(epoll_pwait(ep, e, 2, -1, &block), 1);
  EQ(epoll_pwait2(ep, e, 2, NULL, &block), 1);
  EQ(e[0].events, EPOLLIN);
}

// 4.11 The set itself is a descriptor that becomes readable.
static void g4_11_nested(int lfd) {
  int s[2], inner = epoll_create1(0), outer = epoll_create1(0);
  uint32_t ev;
  two(lfd, s);
  EQ(add(inner, s[0], EPOLLIN), 0);
  EQ(add(outer, inner, EPOLLIN), 0);
  EQ(ready(inner, POLLIN, 0), 0);
  EQ(wait1(outer, 0, &ev), 0);
  put(s[1], "x", 1);
  EQ(wait1(outer, 5000, &ev), 1);
  EQ(ev, EPOLLIN);
  EQ(ready(inner, POLLIN, 5000), POLLIN);
  fd_set r;
  FD_ZERO(&r);
  FD_SET(inner, &r);
  EQ(select(inner + 1, &r, NULL, NULL, NULL), 1);
  char c;
  get(s[0], &c, 1);
  EQ(ready(inner, POLLIN, 0), 0);
  FAILS(add(inner, outer, EPOLLIN), ELOOP);
}

// 4.12 A member that is closed is no member any more, and its number may be added again.
static void g4_12_closed_member(int lfd) {
  int s[2], t[2], ep = epoll_create1(0);
  uint32_t ev;
  two(lfd, s);
  two(lfd, t);
  EQ(add(ep, s[0], EPOLLIN), 0);
  put(s[1], "x", 1);
  EQ(wait1(ep, 5000, &ev), 1);
  int number = s[0];
  close(s[0]);
  EQ(wait1(ep, 0, &ev), 0);
  EQ(dup2(t[0], number), number);
  EQ(add(ep, number, EPOLLIN), 0);
  EQ(wait1(ep, 0, &ev), 0);
  put(t[1], "y", 1);
  EQ(wait1(ep, 5000, &ev), 1);
}

// 4.13 A set that still has members can be closed, and nothing of it stays.
static void g4_13_close_of_a_set(int lfd) {
  int s[2];
  uint32_t ev;
  two(lfd, s);
  int before = -1;
  for (int i = 0; i < 300; i++) {
    int ep = epoll_create1(0);
    EQ(add(ep, s[0], EPOLLIN), 0);
    EQ(wait1(ep, 0, &ev), 0);
    EQ(close(ep), 0);
    FAILS(close(ep), EBADF);
    if (i == 10) before = count_fds("");
  }
  CHECK(count_fds("") <= before + 1);
}

// 4.14 Signals, counts, null pointers, descriptor 0.
static volatile int minus = -1;
static struct epoll_event *volatile nowhere;
static void g4_14_odd_waits(int lfd) {
  int s[2], ep = epoll_create1(0);
  struct epoll_event e[2];
  two(lfd, s);
  EQ(add(ep, s[0], EPOLLIN), 0);
  FAILS(epoll_wait(ep, e, 0, 0), EINVAL);
  FAILS(epoll_wait(ep, e, minus, 0), EINVAL);
  struct sigaction a = {.sa_handler = nothing, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &a, NULL);
  struct itimerval soon = {{0, 0}, {0, 50000}};
  setitimer(ITIMER_REAL, &soon, NULL);
  FAILS(epoll_wait(ep, e, 2, 10000), EINTR);
  put(s[1], "x", 1);
  until(s[0], POLLIN, POLLIN);
  FAILS(epoll_wait(ep, nowhere, 2, 1000), EFAULT);
  EQ(epoll_wait(ep, e, 2, 5000), 1);
  int keep = dup(0), zero = epoll_create1(0);
  EQ(dup2(s[0], 0), 0);
  EQ(add(zero, 0, EPOLLIN), 0);
  uint32_t ev;
  EQ(wait1(zero, 5000, &ev), 1);
  dup2(keep, 0);
}

// 4.15 A member that leaves TCP, or goes back, while it is registered.
static void g4_15_members_that_move(int lfd) {
  int s[2], ep = epoll_create1(0);
  uint32_t ev;
  s[0] = dial();
  s[1] = accept(lfd, NULL, NULL);
  EQ(add(ep, s[0], EPOLLIN), 0);
  for (int i = 0; i < 200; i++) {
    if (i == 100) {
      // Only TCP can honour this one.
      int on = 1;
      EQ(setsockopt(s[i & 1], SOL_SOCKET, SO_TIMESTAMP, &on, sizeof on), 0);
    }
    static char b[3000];
    put(s[1], b, sizeof b);
    EQ(wait1(ep, 5000, &ev), 1);
    EQ(ev, EPOLLIN);
    get(s[0], b, sizeof b);
    EQ(wait1(ep, 0, &ev), 0);
    put(s[0], b, 100);
    get(s[1], b, 100);
  }
}

// 4.16 Counters of sixteen bits.
static void g4_16_many(int lfd) {
  enum { MANY = 70000, FDS = 3000 };
  int s[2], ep = epoll_create1(0), p[2];
  two(lfd, s);
  struct epoll_event *e = calloc(MANY, sizeof *e);
  CHECK(!pipe(p) && write(p[1], "x", 1) == 1);
  struct rlimit l = {FDS + 1000, FDS + 1000};
  getrlimit(RLIMIT_NOFILE, &l);
  l.rlim_cur = l.rlim_max;
  CHECK(!setrlimit(RLIMIT_NOFILE, &l) && l.rlim_cur > FDS + 500);
  EQ(add(ep, s[0], EPOLLIN), 0);
  for (int i = 0; i < FDS; i++) EQ(add(ep, dup(p[0]), EPOLLIN), 0);
  put(s[1], "x", 1);
  until(s[0], POLLIN, POLLIN);
  EQ(epoll_wait(ep, e, MANY, 1000), FDS + 1);
}

// 4.17 Changes and events at the same time lose nothing.
static volatile int stop_changing;
static int changed_set, changed_fd;
static void *changer(void *arg) {
  (void)arg;
  while (!stop_changing) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT, .data.fd = changed_fd};
    EQ(epoll_ctl(changed_set, EPOLL_CTL_MOD, changed_fd, &e), 0);
    e.events = EPOLLIN;
    EQ(epoll_ctl(changed_set, EPOLL_CTL_MOD, changed_fd, &e), 0);
    EQ(epoll_ctl(changed_set, EPOLL_CTL_DEL, changed_fd, NULL), 0);
    EQ(epoll_ctl(changed_set, EPOLL_CTL_ADD, changed_fd, &e), 0);
    sched_yield();
  }
  return NULL;
}
static void g4_17_changes_lose_nothing(int lfd) {
  int s[2], ep = epoll_create1(0);
  two(lfd, s);
  EQ(add(ep, s[0], EPOLLIN), 0);
  changed_set = ep, changed_fd = s[0];
  pthread_t t;
  pthread_create(&t, NULL, changer, NULL);
  for (int i = 0; i < 1000; i++) {
    put(s[1], "x", 1);
    for (;;) {
      struct epoll_event e;
      EQ(epoll_wait(ep, &e, 1, 10000), 1);
      if (e.events & EPOLLIN) break;
    }
    char c;
    get(s[0], &c, 1);
  }
  stop_changing = 1;
  pthread_join(t, NULL);
}

// 4.18 A set that the library never saw being made.
static void g4_18_unseen_set(int lfd) {
  int s[2], ep = syscall(SYS_epoll_create1, 0);
  uint32_t ev;
  two(lfd, s);
  EQ(add(ep, s[0], EPOLLIN), 0);
  for (int i = 0; i < 50; i++) {
    EQ(wait1(ep, 0, &ev), 0);
    put(s[1], "x", 1);
    EQ(wait1(ep, 5000, &ev), 1);
    EQ(ev, EPOLLIN);
    char c;
    get(s[0], &c, 1);
  }
}

// As many entries as there may be descriptors: the library must not need room for one of its own.
static void as_many_as_there_may_be(int lfd) {
  enum { MOST = 256 };
  int s[2];
  struct pollfd p[MOST];
  struct rlimit l;
  struct timespec t = {5, 0};
  two(lfd, s);
  CHECK(!getrlimit(RLIMIT_NOFILE, &l));
  l.rlim_cur = MOST;
  CHECK(!setrlimit(RLIMIT_NOFILE, &l));
  for (int at = 0; at < MOST; at += MOST - 1) {
    for (int i = 0; i < MOST; i++) p[i] = (struct pollfd){i == at ? s[0] : -1, POLLIN, 7};
    EQ(poll(p, MOST, 0), 0);
    EQ(poll(p, MOST, 20), 0);
    put(s[1], "x", 1);
    EQ(poll(p, MOST, patience(5000)), 1);
    EQ(ppoll(p, MOST, &t, NULL), 1);
    for (int i = 0; i < MOST; i++) EQ(p[i].revents, i == at ? POLLIN : 0);
    char c;
    get(s[0], &c, 1);
  }
}

#define CASE(name, flags) {#name, name, NULL, SOLO | (flags)}
const test_case CASES[] = {
  CASE(g4_01_timeouts_are_whole, 0),
  CASE(g4_02_others_are_not_woken, 0),
  CASE(g4_03_waiters_do_not_wake, 0),
  CASE(g4_04_select, 0),
  CASE(g4_05_rare_events, 0),
  CASE(g4_05_urgent, NOSHM),
  CASE(g4_06_after_the_end, 0),
  CASE(g4_07_errors, 0),
  CASE(g4_08_flags, 0),
  CASE(g4_09_ordinary_sets, 0),
  CASE(g4_10_pwait, 0),
  CASE(g4_11_nested, 0),
  CASE(g4_12_closed_member, 0),
  CASE(g4_13_close_of_a_set, 0),
  CASE(g4_14_odd_waits, 0),
  CASE(g4_15_members_that_move, NOSHM),
  CASE(g4_16_many, 0),
  CASE(g4_17_changes_lose_nothing, 0),
  CASE(g4_18_unseen_set, NOSHM),
  CASE(as_many_as_there_may_be, 0),
  {0},
};
