// rpoll and rselect: what they report, for what, and how long they take.
#include "rs.h"

static void hold(int fd) {
  touch(fd, 0);
  get_eof(fd);
}

static void exact_client(int fd) {
  static const int times[] = {0, 1, 50, 300, 2000};
  touch(fd, 1);
  for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
    // It is exact, but the machine may be late: one of some.
    for (int late = 0;; late++) {
      double t = now(), cpu = cpu_used();
      EQ(ready(fd, POLLIN, times[i]), 0);
      took(t, times[i] / 1e3, times[i] / 1e3);
      CHECK(cpu_used() - cpu < 0.02);
      if (now() - t < times[i] / 1e3 + 0.1 * slow()) break;
      CHECK(late < 10);
    }
  }
}

static void events_server(int fd) {
  touch(fd, 0);
  hear('1');
  nap(200);
  put(fd, "x", 1);
  hear('2');
  nap(200);
  EQ(rclose(fd), 0);
}
static void events_client(int fd) {
  char c;
  touch(fd, 1);
  EQ(ready(fd, POLLIN | POLLOUT, 0), POLLOUT);
  double t = now();
  tell('1');
  EQ(ready(fd, POLLIN, -1), POLLIN);
  took(t, 0.1, 0.5);
  EQ(ready(fd, POLLIN | POLLOUT, 0), POLLIN | POLLOUT);
  get(fd, &c, 1);
  t = now();
  tell('2');
  EQ(ready(fd, POLLIN | POLLRDHUP, -1), POLLIN | POLLRDHUP);
  took(t, 0.1, 0.5);
  get_eof(fd);
}

static void mixture_server(int fd) {
  touch(fd, 0);
  hear('b');
  put(fd, "x", 1);
  tell('b');
  get_eof(fd);
}
static void *write_later(void *arg) {
  nap(200);
  if (write(*(int *)arg, "p", 1) != 1) abort();
  return NULL;
}
static void mixture_client(int fd) {
  int pipes[2];
  pthread_t thread;
  touch(fd, 1);
  EQ(pipe(pipes), 0);
  struct pollfd p[4] = {{fd, POLLIN, 0}, {-1, POLLIN, 7}, {pipes[0], POLLIN, 0}, {pipes[1], POLLOUT, 0}};
  EQ(rpoll(p, 4, 20000), 1);
  EQ(p[3].revents, POLLOUT);
  EQ(p[1].revents, 0);
  EQ(pthread_create(&thread, NULL, write_later, &pipes[1]), 0);
  double t = now();
  EQ(rpoll(p, 3, 20000), 1);
  took(t, 0.1, 0.5);
  EQ(p[2].revents, POLLIN);
  EQ(pthread_join(thread, NULL), 0);
  tell('b');
  hear('b');
  // The byte was sent before we heard of it; over a slow device it is on its way still.
  EQ(ready(fd, POLLIN, 20000), POLLIN);
  EQ(rpoll(p, 4, 20000), 3);
  EQ(p[0].revents, POLLIN);
  // A descriptor that is not open.
  EQ(close(pipes[0]), 0);
  EQ(rpoll(p + 2, 1, 20000), 1);
  EQ(p[2].revents, POLLNVAL);
  FAILS(rpoll(NULL, 1, 0), EFAULT);
  t = now();
  EQ(rpoll(NULL, 0, 200), 0);
  took(t, 0.2, 0.3);
}

static void room_server(int fd) {
  touch(fd, 0);
  hear('f');
  put(fd, "g", 1);
  hear('n');
  uint64_t n = 0;
  // What is still on its way over a slow device comes, too.
  while (ready(fd, POLLIN, 500) == POLLIN) {
    static char big[100000];
    ssize_t got = rrecv(fd, big, sizeof big, MSG_DONTWAIT);
    CHECK(got > 0);
    verify(big, got, 3, n);
    n += got;
  }
  put(fd, &n, sizeof n);
  get_eof(fd);
}
static void room_client(int fd) {
  static char buf[30000];
  char c;
  touch(fd, 1);
  nonblock(fd, 1);
  uint64_t n = 0, theirs;
  for (;;) {
    fill(buf, sizeof buf, 3, n);
    ssize_t sent = rsend(fd, buf, sizeof buf, 0);
    if (sent < 0) {
      CHECK(errno == EAGAIN);
      // A slow device still makes room for a while.
      if (ready(fd, POLLOUT, 200) == 0) break;
      continue;
    }
    n += sent;
    CHECK(n < 1u << 30);
  }
  tell('f');
  EQ(ready(fd, POLLIN | POLLOUT, 20000), POLLIN);
  get(fd, &c, 1);
  tell('n');
  EQ(ready(fd, POLLOUT, 20000), POLLOUT);
  nonblock(fd, 0);
  get(fd, &theirs, sizeof theirs);
  EQ(theirs, n);
}

static void select_server(int fd) {
  touch(fd, 0);
  hear('s');
  nap(200);
  put(fd, "x", 1);
  get_eof(fd);
}
static void select_client(int fd) {
  int pipes[2];
  fd_set in, out, odd;
  touch(fd, 1);
  EQ(pipe(pipes), 0);
  EQ(dup2(pipes[0], 0), 0);
  FD_ZERO(&in); FD_ZERO(&out); FD_ZERO(&odd);
  FD_SET(0, &in); FD_SET(fd, &in); FD_SET(fd, &odd);
  // Time-outs below a millisecond are some time too, and what is left is said.
  struct timeval t = {0, 250900};
  double since = now();
  EQ(rselect(fd + 1, &in, &out, &odd, &t), 0);
  took(since, 0.2509, 0.35);
  EQ(t.tv_sec * 1000000 + t.tv_usec, 0);
  CHECK(!FD_ISSET(0, &in) && !FD_ISSET(fd, &in) && !FD_ISSET(fd, &odd));
  // Descriptor 0.
  EQ(write(pipes[1], "x", 1), 1);
  FD_SET(0, &in); FD_SET(fd, &in); FD_SET(fd, &out);
  EQ(rselect(fd + 1, &in, &out, NULL, NULL), 2);
  CHECK(FD_ISSET(0, &in) && !FD_ISSET(fd, &in) && FD_ISSET(fd, &out));
  // The peer's bytes.
  tell('s');
  FD_ZERO(&in); FD_SET(fd, &in);
  t.tv_sec = 5, t.tv_usec = 0;
  EQ(rselect(fd + 1, &in, NULL, NULL, &t), 1);
  CHECK(FD_ISSET(fd, &in) && t.tv_sec < 5);
  // As a sleep.
  t.tv_sec = 0, t.tv_usec = 300000;
  since = now();
  EQ(rselect(0, NULL, NULL, NULL, &t), 0);
  took(since, 0.3, 0.4);
  FAILS(rselect(-1, NULL, NULL, NULL, NULL), EINVAL);
  FD_ZERO(&in); FD_SET(500, &in);
  FAILS(rselect(501, &in, NULL, NULL, NULL), EBADF);
  CHECK(FD_ISSET(500, &in));
}

static void listener_server(int l) {
  double t = now();
  tell('p');
  EQ(ready(l, POLLIN, 20000), POLLIN);
  took(t, 0.1, 0.5);
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  touch(fd, 0);
}
static void listener_client(int fd) {
  hear('p');
  nap(200);
  fd = dial();
  touch(fd, 1);
}

static int caught;
static void on_signal(int sig) {
  (void)sig;
  caught++;
}
static void signals_client(int fd) {
  struct sigaction a = {.sa_handler = on_signal};
  // Again and again, since a signal may come before the call that it is to end.
  struct itimerval timer = {{0, 200000}, {0, 200000}}, none = {{0, 0}, {0, 0}};
  char c;
  touch(fd, 1);
  sigaction(SIGALRM, &a, NULL);
  setitimer(ITIMER_REAL, &timer, NULL);
  struct pollfd p = {fd, POLLIN, 0};
  FAILS(rpoll(&p, 1, 20000), EINTR);
  FAILS(rrecv(fd, &c, 1, 0), EINTR);
  setitimer(ITIMER_REAL, &none, NULL);
  CHECK(caught >= 2);
  struct timeval limit = {0, 300000};
  EQ(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  double t = now();
  FAILS(rrecv(fd, &c, 1, 0), EAGAIN);
  took(t, 0.3, 0.4);
}

// What a call has slept by holds until another call changes it, and no longer.
static void changes_client(int fd) {
  struct timeval limit = {0, 200000}, none = {0, 0};
  char c;
  touch(fd, 1);
  for (int i = 0; i < 2; i++) {
    EQ(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    double t = now();
    FAILS(rrecv(fd, &c, 1, 0), EAGAIN);
    took(t, 0.2, 0.4);
    nonblock(fd, 1);
    t = now();
    FAILS(rrecv(fd, &c, 1, 0), EAGAIN);
    took(t, 0, 0.1);
    nonblock(fd, 0);
    EQ(rsetsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none), 0);
    struct sigaction a = {.sa_handler = on_signal};
    struct itimerval timer = {{0, 400000}, {0, 400000}}, over = {{0, 0}, {0, 0}};
    sigaction(SIGALRM, &a, NULL);
    t = now();
    setitimer(ITIMER_REAL, &timer, NULL);
    FAILS(rrecv(fd, &c, 1, 0), EINTR);
    took(t, 0.4, 0.6);
    setitimer(ITIMER_REAL, &over, NULL);
  }
}

enum { MANY = 50, ROUNDS = 40, PIECE = 3000 };

// One thread serves all.
static void many_server(int l) {
  static struct pollfd p[MANY + 1];
  static char buf[PIECE];
  int n = 0, open = 0, served = 0;
  nonblock(l, 1);
  while (served < MANY || open) {
    p[n].fd = l, p[n].events = POLLIN;
    CHECK(rpoll(p, served < MANY ? n + 1 : n, 10000) > 0);
    if (served < MANY && p[n].revents) {
      int fd = raccept(l, NULL, NULL);
      CHECK(fd >= 0);
      p[n].fd = fd, p[n].events = POLLIN, p[n].revents = 0;
      n++, open++, served++;
      continue;
    }
    for (int i = 0; i < n; i++) {
      if (!(p[i].revents & POLLIN)) continue;
      ssize_t got = rrecv(p[i].fd, buf, sizeof buf, 0);
      CHECK(got >= 0);
      if (got > 0) {
        put(p[i].fd, buf, got);
      } else {
        EQ(rclose(p[i].fd), 0);
        p[i].fd = -1;
        p[i].revents = 0;
        open--;
      }
    }
  }
}
static void many_client(int unused) {
  int fds[MANY];
  static char buf[PIECE];
  (void)unused;
  for (int i = 0; i < MANY; i++) fds[i] = dial();
  for (int round = 0; round < ROUNDS; round++) {
    for (int i = 0; i < MANY; i++) {
      fill(buf, sizeof buf, i, round);
      put(fds[i], buf, sizeof buf);
    }
    for (int i = MANY; i-- > 0;) {
      get(fds[i], buf, sizeof buf);
      verify(buf, sizeof buf, i, round);
    }
  }
  for (int i = 0; i < MANY; i++) EQ(rclose(fds[i]), 0);
}

// One thread has both ends.
static void one_thread(int l) {
  int ends[2];
  char buf[100];
  pair(l, ends);
  for (int i = 0; i < 1000; i++) {
    fill(buf, sizeof buf, i, 0);
    put(ends[i % 2], buf, sizeof buf);
    EQ(ready(ends[1 - i % 2], POLLIN, 2000), POLLIN);
    get(ends[1 - i % 2], buf, sizeof buf);
    verify(buf, sizeof buf, i, 0);
  }
  EQ(rclose(ends[0]), 0);
  get_eof(ends[1]);
}

const rs_case CASES[] = {
    {"exact", hold, exact_client, 0},
    {"events", events_server, events_client, 0},
    {"mixture", mixture_server, mixture_client, 0},
    {"room", room_server, room_client, 0},
    {"select", select_server, select_client, 0},
    {"listener", listener_server, listener_client, RAW},
    {"signals", hold, signals_client, 0},
    {"changes", hold, changes_client, 0},
    {"many", many_server, many_client, RAW},
    {"one_thread", one_thread, NULL, SOLO},
    {0},
};
