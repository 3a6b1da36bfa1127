// Timers at 10 kHz during transfers, and handlers that do not come back: they jump out of a call,
// or end the thread.
#include "sem.h"

#include <setjmp.h>

enum { PIECE = 64 };

static volatile sig_atomic_t hits;

static void on_signal(int number, void (*handler)(int), int flags) {
  struct sigaction a = {.sa_handler = handler, .sa_flags = flags};
  CHECK(!sigaction(number, &a, NULL));
}
static void every(int us) {
  struct itimerval t = {{0, us}, {0, us}};
  CHECK(!setitimer(ITIMER_REAL, &t, NULL));
}
static void count_hit(int n) {
  (void)n;
  hits++;
}

// -- storms
static void storm_of(int kind, int flags) {
  on_signal(SIGALRM, count_hit, flags);
  if (kind == 0) {
    every(storm_us());
    return;
  }
  struct sigevent e = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
  struct itimerspec t = {{0, storm_us() * 1000}, {0, storm_us() * 1000}};
  timer_t timer;
  CHECK(!timer_create(CLOCK_MONOTONIC, &e, &timer));
  CHECK(!timer_settime(timer, 0, &t, NULL));
}
static void send_all(int fd, uint64_t n, size_t most) {
  static char b[200000];
  uint64_t r = n;
  for (uint64_t at = 0; at < n;) {
    size_t m = 1 + rnd(&r) % most;
    if (m > n - at) m = n - at;
    fill(b, m, 8, at);
    ssize_t k = send(fd, b, m, 0);
    if (k < 0) CHECK(errno == EINTR);
    else at += k;
  }
}
static void receive_all(int fd, uint64_t n, size_t most) {
  static char b[200000];
  uint64_t r = n;
  for (uint64_t at = 0; at < n;) {
    size_t m = 1 + rnd(&r) % most;
    if (m > n - at) m = n - at;
    ssize_t k = recv(fd, b, m, r & 1024 ? MSG_WAITALL : 0);
    CHECK(k != 0);
    if (k < 0) {
      CHECK(errno == EINTR);
      continue;
    }
    verify(b, k, 8, at);
    at += k;
  }
}
enum { BULK = 24 << 20 };
static void bulk_server(int fd) {
  storm_of(1, 0);
  receive_all(fd, BULK, 200000);
  send_all(fd, BULK, 200000);
  CHECK(hits > 0);
}
static void bulk_client(int fd) {
  storm_of(0, SA_RESTART);
  send_all(fd, BULK, 200000);
  receive_all(fd, BULK, 200000);
  CHECK(hits > 0);
}
static void pingpong(int fd, int first) {
  char b[PIECE];
  for (int i = 0; i < often(10000); i++) {
    if (first) fill(b, sizeof b, 9, i);
    if (first) put(fd, b, sizeof b);
    for (size_t have = 0; have < sizeof b;) {
      ssize_t k = recv(fd, b + have, sizeof b - have, 0);
      if (k < 0) CHECK(errno == EINTR);
      else have += k;
      CHECK(k != 0);
    }
    verify(b, sizeof b, 9, i);
    if (!first) put(fd, b, sizeof b);
  }
}
static void pingpong_server(int fd) {
  storm_of(0, 0);
  pingpong(fd, 0);
}
static void pingpong_client(int fd) {
  storm_of(1, 0);
  pingpong(fd, 1);
}
// The same over poll and epoll, which every handler interrupts.
static void wait_in(int ep, int fd, int turn) {
  struct pollfd p = {fd, POLLIN, 0};
  struct epoll_event e;
  fd_set set;
  int r;
  do {
    FD_ZERO(&set);
    FD_SET(fd, &set);
    r = turn == 0 ? poll(&p, 1, -1) : turn == 1 ? epoll_wait(ep, &e, 1, -1) : select(fd + 1, &set, NULL, NULL, NULL);
    if (r < 0) CHECK(errno == EINTR);
  } while (r < 0);
  EQ(r, 1);
}
static void waits_storm(int fd, int first) {
  char b[PIECE];
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN};
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  storm_of(first, SA_RESTART);
  for (int i = 0; i < often(3000); i++) {
    if (first) fill(b, sizeof b, 10, i);
    if (first) put(fd, b, sizeof b);
    wait_in(ep, fd, i % 3);
    get(fd, b, sizeof b);
    verify(b, sizeof b, 10, i);
    if (!first) put(fd, b, sizeof b);
  }
}
static void waits_server(int fd) { waits_storm(fd, 0); }
static void waits_client(int fd) { waits_storm(fd, 1); }

static void echo_until_eof(int fd) {
  char b[PIECE];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
// -- handlers that do not come back
static sigjmp_buf out;
static void jump(int n) {
  (void)n;
  hits++;
  siglongjmp(out, 1);
}
static volatile uint64_t echoed;
static int both_fd;
static void *other_thread(void *p) {
  (void)p;
  sigset_t s;
  sigfillset(&s);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  char b[PIECE];
  for (int i = 0; i < often(2000); i++) {
    fill(b, sizeof b, 14, i);
    put(both_fd, b, sizeof b);
  }
  return NULL;
}
// Out of a blocking recv, many times; then this thread and another one use the connection as ever.
static void jump_out(int fd) {
  volatile int i = 0;
  char b[PIECE];
  on_signal(SIGALRM, jump, 0);
  for (i = 0; i < 30; i++) {
    if (!sigsetjmp(out, 1)) {
      struct itimerval one = {{0, 0}, {0, 200 + i * 200}};
      setitimer(ITIMER_REAL, &one, NULL);
      recv(fd, b, sizeof b, 0);
      FAIL("it came back");
    }
  }
  EQ(hits, 30);
  pthread_t t;
  both_fd = fd;
  CHECK(!pthread_create(&t, NULL, other_thread, NULL));
  for (i = 0; i < often(2000); i++) {
    get(fd, b, sizeof b);
    verify(b, sizeof b, 14, i);
  }
  pthread_join(t, NULL);
}
static void jump_once(int fd) {
  char c;
  on_signal(SIGALRM, jump, 0);
  if (sigsetjmp(out, 1)) return;
  struct itimerval one = {{0, 0}, {0, 20000}};
  setitimer(ITIMER_REAL, &one, NULL);
  recv(fd, &c, 1, 0);
  FAIL("it came back");
}
// The peer sends one byte if it is told so, and sees the end at once.
static void end_server(int fd) {
  char c = hear_int();
  if (c == '1') {
    nap(50);
    put(fd, "x", 1);
  }
  EQ(ready(fd, POLLIN, 1000), POLLIN);
  get_eof(fd);
  tell('d');
}
static void *close_soon(void *say) {
  nap(patience(50));
  close(both_fd);
  tell_int((intptr_t)say);
  return NULL;
}
// A call that was left is none that another thread's close must wait for: not while this thread
// sleeps elsewhere ...
static void jump_out_then_close(int fd) {
  pthread_t t;
  int p[2];
  CHECK(!pipe(p));
  jump_once(fd);
  both_fd = fd;
  CHECK(!pthread_create(&t, NULL, close_soon, (void *)'0'));
  struct pollfd v = {p[0], POLLIN, 0};
  int ms = 2 * patience(750);
  struct timespec ts = {ms / 1000, ms % 1000 * 1000000};
  EQ(ppoll(&v, 1, &ts, NULL), 0);
  pthread_join(t, NULL);
  hear('d');
}
// ... nor longer than for the call that it makes next.
static void jump_out_then_close_again(int fd) {
  pthread_t t;
  char c;
  jump_once(fd);
  both_fd = fd;
  CHECK(!pthread_create(&t, NULL, close_soon, (void *)'1'));
  EQ(recv(fd, &c, 1, 0), 1);
  pthread_join(t, NULL);
  hear('d');
}
// Nothing is left of them.
static void jump_out_often(int fd) {
  volatile int i, had = 0;
  char c;
  on_signal(SIGALRM, jump, 0);
  for (i = 0; i < 300; i++) {
    if (!sigsetjmp(out, 1)) {
      struct itimerval one = {{0, 0}, {0, 2000}};
      setitimer(ITIMER_REAL, &one, NULL);
      recv(fd, &c, 1, 0);
      FAIL("it came back");
    }
    // By then a connection that attaches from its first byte has all that it needs.
    if (i == 20) had = count_fds("");
  }
  SAME(count_fds(""), had);
  fill(&c, 1, 17, 0);
  put(fd, &c, 1);
  get(fd, &c, 1);
  verify(&c, 1, 17, 0);
}
// The same out of waits on any number of descriptors.
static void wait_for_ever(int fd, int turn) {
  struct pollfd p = {fd, POLLIN, 0};
  fd_set set;
  FD_ZERO(&set);
  FD_SET(fd, &set);
  if (turn == 0) poll(&p, 1, -1);
  if (turn == 1) ppoll(&p, 1, NULL, NULL);
  if (turn == 2) select(fd + 1, &set, NULL, NULL, NULL);
  if (turn == 3) pselect(fd + 1, &set, NULL, NULL, NULL, NULL);
}
static void jump_out_of_waits(int fd) {
  volatile int i, had = 0;
  char c;
  on_signal(SIGALRM, jump, 0);
  for (i = 0; i < 200; i++) {
    if (!sigsetjmp(out, 1)) {
      struct itimerval one = {{0, 0}, {0, 2000}};
      setitimer(ITIMER_REAL, &one, NULL);
      wait_for_ever(fd, i % 4);
      FAIL("it came back");
    }
    // Some of the first may have come too early to leave a wait.
    if (i == 49) had = count_fds("");
  }
  // One of each other kind may be believed to be still below this one, with what it sleeps on. That
  // is so beside load at one time and not at another.
  int more = count_fds("") - had;
  if (more < -3 || more > 3) FAIL("%d more descriptors after 150 more jumps", more);
  fill(&c, 1, 18, 0);
  put(fd, &c, 1);
  EQ(ready(fd, POLLIN, 1000), POLLIN);
  get(fd, &c, 1);
  verify(&c, 1, 18, 0);
}
// Out of sending and receiving, wherever that is; others are not held up. (What the interrupted
// calls had moved is not known.)
static void drain_server(int fd) {
  static char b[60000];
  while (recv(fd, b, sizeof b, 0) > 0) {
  }
  tell('d');
}
static void *shut_it(void *p) {
  (void)p;
  sigset_t s;
  sigfillset(&s);
  pthread_sigmask(SIG_BLOCK, &s, NULL);
  put(both_fd, "last", 4);
  shutdown(both_fd, SHUT_WR);
  return NULL;
}
static void jump_out_of_send(int fd) {
  char b[PIECE] = {0};
  on_signal(SIGALRM, jump, 0);
  if (sigsetjmp(out, 1) == 0 || hits < often(500)) every(storm_us());
  while (hits < often(500)) send(fd, b, sizeof b, 0);
  every(0);
  pthread_t t;
  both_fd = fd;
  CHECK(!pthread_create(&t, NULL, shut_it, NULL));
  pthread_join(t, NULL);
  hear('d');
}
static void leave_thread(int n) {
  (void)n;
  pthread_exit((void *)7);
}
static void *in_recv(void *p) {
  char b[4];
  recv(*(int *)p, b, sizeof b, 0);
  return NULL;
}
// pthread_exit from a handler that interrupted a blocking call.
static void exit_in_handler(int fd) {
  char b[PIECE];
  pthread_t t;
  void *r;
  on_signal(SIGUSR1, leave_thread, 0);
  CHECK(!pthread_create(&t, NULL, in_recv, &fd));
  nap(50);
  CHECK(!pthread_kill(t, SIGUSR1));
  CHECK(!pthread_join(t, &r));
  EQ((intptr_t)r, 7);
  for (int i = 0; i < often(2000); i++) {
    fill(b, sizeof b, 15, i);
    put(fd, b, sizeof b);
    get(fd, b, sizeof b);
    verify(b, sizeof b, 15, i);
  }
}
// A child that is made in the middle of a storm has the mask of its parent, and its handlers.
static void fork_in_storm(int fd) {
  char b[PIECE];
  on_signal(SIGALRM, count_hit, SA_RESTART);
  every(storm_us());
  for (int i = 0; i < 40; i++) {
    for (int k = 0; k < 20; k++) {
      fill(b, sizeof b, 16, i * 20 + k);
      put(fd, b, sizeof b);
      get(fd, b, sizeof b);
      verify(b, sizeof b, 16, i * 20 + k);
    }
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (!pid) {
      sigset_t now;
      struct sigaction q;
      sigprocmask(SIG_BLOCK, NULL, &now);
      for (int n = 1; n < 32; n++)
        if (sigismember(&now, n)) _exit(1);
      if (sigaction(SIGALRM, NULL, &q) || q.sa_handler != count_hit) _exit(2);
      hits = 0;
      raise(SIGALRM);
      _exit(hits == 1 ? 0 : 3);
    }
    int status;
    while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR);
    EQ(status, 0);
  }
  every(0);
}

const test_case CASES[] = {
    {"storm_bulk", bulk_server, bulk_client, 0},
    {"storm_pingpong", pingpong_server, pingpong_client, 0},
    {"storm_waits", waits_server, waits_client, 0},
    {"jump_out_of_recv", echo_until_eof, jump_out, TOUCH},
    {"jump_out_then_close", end_server, jump_out_then_close, TOUCH},
    {"jump_out_then_close_again", end_server, jump_out_then_close_again, TOUCH},
    {"jump_out_often", echo_until_eof, jump_out_often, TOUCH},
    {"jump_out_of_waits", echo_until_eof, jump_out_of_waits, TOUCH},
    {"jump_out_of_send", drain_server, jump_out_of_send, 0},
    {"exit_in_handler", echo_until_eof, exit_in_handler, TOUCH},
    {"fork_in_storm", echo_until_eof, fork_in_storm, 0},
    {0},
};
