// Time-outs and signals: SO_RCVTIMEO, SO_SNDTIMEO, EINTR with and without SA_RESTART, at every
// sleeping call.
#include "sem.h"

static volatile sig_atomic_t hits;
static void on_signal(int s) {
  (void)s;
  hits++;
}
static void handler(int flags) {
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = flags};
  CHECK(!sigaction(SIGALRM, &a, NULL));
  hits = 0;
}
// An interval: one that comes before the thread sleeps, on a machine that is busy, is not the last.
static void alarm_ms(int ms) {
  ms = patience(ms);
  struct timeval each = {ms / 1000, ms % 1000 * 1000};
  CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){each, each}, NULL));
}
static void no_alarm(void) {
  CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
}
static void timeo(int fd, int which, int ms) {
  struct timeval t = {ms / 1000, ms % 1000 * 1000};
  CHECK(!setsockopt(fd, SOL_SOCKET, which, &t, sizeof t));
}
static void took(double t0, double min) {
  double t = now() - t0, max = min + most_at_once();
  if (t < min || t > max) FAIL("took %.3f s, not %.3f to %.3f", t, min, max);
}
static void wait_end(int fd) {
  hear('e');
  close(fd);
}
static void rcvtimeo(int fd) {
  char b[10];
  timeo(fd, SO_RCVTIMEO, 100);
  double t = now();
  FAILS(recv(fd, b, sizeof b, 0), EAGAIN);
  took(t, 0.09);
  t = now();
  FAILS(read(fd, b, sizeof b), EAGAIN);
  took(t, 0.09);
  timeo(fd, SO_RCVTIMEO, 0);
  tell('e');
  get_eof(fd);
}
static void part_server(int fd) {
  put(fd, "12345", 5);
  wait_end(fd);
}
// What has come by the end of the time is the answer.
static void rcvtimeo_part(int fd) {
  char b[10];
  timeo(fd, SO_RCVTIMEO, 150);
  EQ(ready(fd, POLLIN, patience(5000)), POLLIN);
  double t = now();
  EQ(recv(fd, b, sizeof b, MSG_WAITALL), 5);
  took(t, 0.1);
  FAILS(recv(fd, b, sizeof b, MSG_WAITALL), EAGAIN);
  tell('e');
}
static void idle_server(int fd) {
  hear('e');
  uint64_t n = hear_int();
  get_stream(fd, 1, 0, n, 100000);
  get_eof(fd);
}
static uint64_t stuff(int fd, int *err) {
  static char b[200000];
  uint64_t n = 0;
  for (;;) {
    fill(b, sizeof b, 1, n);
    ssize_t k = write(fd, b, sizeof b);
    if (k < 0) {
      *err = errno;
      return n;
    }
    CHECK(k > 0);
    n += k;
    CHECK(n < 256u << 20);
  }
}
// The kernel may still find room for a byte where it had none for thousands, so this tries until
// there is none.
static double last_began;
static int blocked_write(int fd, uint64_t *n, int alarm_in) {
  for (;;) {
    char c;
    fill(&c, 1, 1, *n);
    if (alarm_in) alarm_ms(alarm_in);
    last_began = now();
    ssize_t k = write(fd, &c, 1);
    int e = errno;
    if (alarm_in) no_alarm();
    if (k < 0) return e;
    EQ(k, 1);
    ++*n;
    CHECK(*n < 256u << 20);
  }
}
static void sndtimeo(int fd) {
  int e;
  timeo(fd, SO_SNDTIMEO, 100);
  uint64_t n = stuff(fd, &e);
  EQ(e, EAGAIN);
  SAME(blocked_write(fd, &n, 0), EAGAIN);
  took(last_began, 0.09);
  tell('e');
  tell_int(n);  // every byte that was counted, and no other, arrives
}
// A write that has moved nothing yet is interrupted.
static void write_eintr(int fd) {
  uint64_t n = 0;
  nonblock(fd, 1);
  for (int i = 0; i < 5; i++) {  // full, also after the kernel has made its buffers larger
    static char b[10000];
    fill(b, sizeof b, 1, n);
    ssize_t k = write(fd, b, sizeof b);
    if (k > 0) n += k, i = 0;
    else nap(patience(10));
    CHECK(n < 256u << 20);
  }
  SAME(blocked_write(fd, &n, 0), EAGAIN);
  nonblock(fd, 0);
  handler(0);
  SAME(blocked_write(fd, &n, 80), EINTR);
  CHECK(hits >= 1);
  handler(SA_RESTART);
  timeo(fd, SO_SNDTIMEO, patience(20000));
  SAME(blocked_write(fd, &n, 80), EINTR);  // with a time-out set, never restarted
  timeo(fd, SO_SNDTIMEO, 100);
  SAME(blocked_write(fd, &n, 0), EAGAIN);
  tell('e');
  tell_int(n);
}
static void *again(void *p) {
  (void)p;
  for (int i = 0; i < 20; i++) {
    nap(100);
    kill(getpid(), SIGALRM);
  }
  return NULL;
}
// A write that has moved something returns that; the one after it, which has not, fails.
static void write_eintr_twice(int fd) {
  int e;
  handler(0);
  pthread_t t;
  sigset_t s;
  sigemptyset(&s);
  sigaddset(&s, SIGALRM);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  CHECK(!pthread_create(&t, NULL, again, NULL));
  pthread_sigmask(SIG_UNBLOCK, &s, NULL);
  uint64_t n = stuff(fd, &e);
  EQ(e, EINTR);
  CHECK(hits >= 1);
  tell('e');
  tell_int(n);
  pthread_join(t, NULL);
}
static void recv_eintr(int fd) {
  char b[4];
  handler(0);
  alarm_ms(60);
  FAILS(recv(fd, b, 4, 0), EINTR);
  CHECK(hits >= 1);
  alarm_ms(60);
  FAILS(read(fd, b, 4), EINTR);
  struct iovec v = {b, 4};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
  alarm_ms(60);
  FAILS(recvmsg(fd, &m, 0), EINTR);
  alarm_ms(60);
  FAILS(readv(fd, &v, 1), EINTR);
  no_alarm();
  CHECK(hits >= 4);
  tell('e');
  get_eof(fd);
}
static void late_server(int fd) {
  hear('r');
  nap(patience(150));
  put(fd, "data", 4);
  hear('e');
}
static void recv_restart(int fd) {
  char b[4];
  handler(SA_RESTART);
  alarm_ms(50);
  tell('r');
  EQ(recv(fd, b, 4, 0), 4);
  no_alarm();
  CHECK(hits >= 1);
  tell('e');
}
// With a time-out set, not even SA_RESTART restarts.
static void recv_restart_timeo(int fd) {
  char b[4];
  handler(SA_RESTART);
  timeo(fd, SO_RCVTIMEO, 3000);
  alarm_ms(60);
  FAILS(recv(fd, b, 4, 0), EINTR);
  no_alarm();
  tell('e');
}
static void waitall_eintr(int fd) {
  char b[10];
  handler(0);
  EQ(ready(fd, POLLIN, patience(5000)), POLLIN);
  alarm_ms(100);
  EQ(recv(fd, b, 10, MSG_WAITALL), 5);
  no_alarm();
  CHECK(hits >= 1);
  tell('e');
}
static void waits_eintr(int fd) {
  handler(SA_RESTART);  // these never restart
  struct pollfd p = {fd, POLLIN, 0};
  alarm_ms(50);
  FAILS(poll(&p, 1, 3000), EINTR);
  fd_set r;
  FD_ZERO(&r);
  FD_SET(fd, &r);
  struct timeval tv = {3, 0};
  alarm_ms(50);
  FAILS(select(fd + 1, &r, NULL, NULL, &tv), EINTR);
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  alarm_ms(50);
  FAILS(epoll_wait(ep, &e, 1, 3000), EINTR);
  no_alarm();
  CHECK(hits >= 3);
  hits = 3;
  // ppoll, pselect and epoll_pwait open the mask only while they sleep: a pending signal ends them
  // at once.
  sigset_t block, open;
  sigemptyset(&block);
  sigaddset(&block, SIGALRM);
  sigprocmask(SIG_BLOCK, &block, &open);
  kill(getpid(), SIGALRM);
  EQ(hits, 3);
  struct timespec ts = {3, 0};
  double t = now();
  FAILS(ppoll(&p, 1, &ts, &open), EINTR);
  EQ(hits, 4);
  kill(getpid(), SIGALRM);
  FD_SET(fd, &r);
  FAILS(pselect(fd + 1, &r, NULL, NULL, &ts, &open), EINTR);
  EQ(hits, 5);
  kill(getpid(), SIGALRM);
  FAILS(epoll_pwait(ep, &e, 1, 3000, &open), EINTR);
  EQ(hits, 6);
  took(t, 0);
  tell('e');
}
static void wait_timeouts(int fd) {
  struct pollfd p = {fd, POLLIN, 0};
  double t = now();
  EQ(poll(&p, 1, 100), 0);
  took(t, 0.095);
  t = now();
  struct timespec ts = {0, 100000000};
  EQ(ppoll(&p, 1, &ts, NULL), 0);
  took(t, 0.095);
  fd_set r;
  FD_ZERO(&r);
  FD_SET(fd, &r);
  struct timeval tv = {0, 100000};
  t = now();
  EQ(select(fd + 1, &r, NULL, NULL, &tv), 0);
  took(t, 0.095);
  CHECK(tv.tv_sec == 0 && tv.tv_usec < 20000);  // Linux writes back what was left
  CHECK(!FD_ISSET(fd, &r));
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  t = now();
  EQ(epoll_wait(ep, &e, 1, 100), 0);
  took(t, 0.095);
  t = now();
  EQ(epoll_wait(ep, &e, 1, 0), 0);
  EQ(poll(&p, 1, 0), 0);
  took(t, 0);
  tell('e');
}
// A sleeper uses no processor.
static void idle_cpu(int fd) {
  char b[1];
  timeo(fd, SO_RCVTIMEO, 1000);
  double c = cpu_used();
  FAILS(recv(fd, b, 1, 0), EAGAIN);
  EQ(ready(fd, POLLIN, 500), 0);
  c = cpu_used() - c;
  if (c > patience(50) * 1e-3) FAIL("%.3f s of processor time while asleep for 1.5 s", c);
  tell('e');
}
const test_case CASES[] = {
    {"rcvtimeo", wait_end, rcvtimeo, 0},
    {"rcvtimeo_waitall_partial", part_server, rcvtimeo_part, 0},
    {"sndtimeo", idle_server, sndtimeo, 0},
    {"write_eintr", idle_server, write_eintr, 0},
    {"write_eintr_partial", idle_server, write_eintr_twice, 0},
    {"recv_eintr", wait_end, recv_eintr, 0},
    {"recv_sa_restart", late_server, recv_restart, 0},
    {"recv_sa_restart_with_timeo", wait_end, recv_restart_timeo, 0},
    {"waitall_eintr_partial", part_server, waitall_eintr, 0},
    {"poll_select_epoll_eintr", wait_end, waits_eintr, 0},
    {"wait_timeouts", wait_end, wait_timeouts, 0},
    {"asleep_uses_no_cpu", wait_end, idle_cpu, 0},
    {0},
};
