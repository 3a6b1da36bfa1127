// repoll_create, repoll_ctl, repoll_wait: what is reported, when, how often, to which thread, and
// what is refused.
#include "epoll.h"

static void exact_client(int fd) {
  static const int times[] = {0, 1, 50, 300, 2000};
  int set = create();
  touch(fd, 1);
  EQ(put_in(set, fd, EPOLLIN), 0);
  for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
    double t = now(), cpu = cpu_used();
    EQ(one(set, fd, times[i]), 0);
    took(t, times[i] / 1e3, times[i] / 1e3 + 0.5);
    CHECK(cpu_used() - cpu < 0.05 * slow());
  }
}

static void level_server(int fd) {
  touch(fd, 0);
  hear('1');
  nap(200);
  put(fd, "abc", 3);
  hear('2');
  EQ(rshutdown(fd, SHUT_WR), 0);
  hear('3');
  EQ(rclose(fd), 0);
}
static void level_client(int fd) {
  char c[4];
  int set = create();
  touch(fd, 1);
  EQ(put_in(set, fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP), 0);
  EQ(one(set, fd, -1), EPOLLOUT);
  EQ(change(set, fd, EPOLLIN | EPOLLRDHUP), 0);
  EQ(one(set, fd, 0), 0);
  tell('1');
  double t = now();
  EQ(one(set, fd, -1), EPOLLIN);
  took(t, 0.1, 5);
  for (int i = 0; i < 5; i++) EQ(one(set, fd, 1000), EPOLLIN);
  get(fd, c, 2);
  EQ(one(set, fd, 1000), EPOLLIN);
  get(fd, c, 1);
  EQ(one(set, fd, 0), 0);
  // The peer sends no more: the end of the stream can be read, again and again.
  tell('2');
  for (int i = 0; i < 5; i++) EQ(one(set, fd, 10000), EPOLLIN | EPOLLRDHUP);
  get_eof(fd);
  EQ(one(set, fd, 1000), EPOLLIN | EPOLLRDHUP);
  EQ(change(set, fd, EPOLLRDHUP), 0);
  EQ(one(set, fd, 1000), EPOLLRDHUP);
  EQ(change(set, fd, EPOLLOUT), 0);
  EQ(one(set, fd, 1000), EPOLLOUT);
  // Both directions have ended.
  EQ(change(set, fd, 0), 0);
  EQ(one(set, fd, 0), 0);
  EQ(rshutdown(fd, SHUT_WR), 0);
  tell('3');
  EQ(one(set, fd, 10000), EPOLLHUP);
  struct epoll_event none;
  EQ(repoll_ctl(set, EPOLL_CTL_DEL, fd, &none), 0);
  EQ(one(set, fd, 0), 0);
  EQ(rclose(set), 0);
}

static void edge_client(int fd) {
  static char big[1 << 16];
  char c[8];
  int set = create();
  touch(fd, 1);
  EQ(put_in(set, fd, EPOLLIN | EPOLLET), 0);
  EQ(one(set, fd, 0), 0);
  for (int i = 0; i < 3; i++) {
    tell('a');
    EQ(one(set, fd, 10000), EPOLLIN);
    hear('s');
    // Unread, and nothing new: said once. (Two segments that came apart may be said twice.)
    while (one(set, fd, 100)) {
    }
    EQ(one(set, fd, 50), 0);
    // Once more when it is asked for anew.
    EQ(change(set, fd, EPOLLIN | EPOLLET), 0);
    EQ(one(set, fd, 1000), EPOLLIN);
    EQ(one(set, fd, 0), 0);
    get(fd, c, 2);
    EQ(rrecv(fd, c, 1, MSG_DONTWAIT), -1);
    CHECK(errno == EAGAIN);
  }
  // Room: once at first, then when a full direction has room again.
  EQ(change(set, fd, EPOLLOUT | EPOLLET), 0);
  EQ(one(set, fd, 1000), EPOLLOUT);
  EQ(one(set, fd, 50), 0);
  nonblock(fd, 1);
  int dry = 0;
  // Until it has been full for a while: what is on its way makes room too.
  while (dry < 20) {
    ssize_t n = rsend(fd, big, sizeof big, 0);
    if (n > 0) {
      dry = 0;
      continue;
    }
    CHECK(errno == EAGAIN);
    dry++;
    nap(5);
  }
  while (one(set, fd, 0)) {
  }
  EQ(rsend(fd, big, 1, 0), -1);
  tell('f');
  EQ(one(set, fd, 20000), EPOLLOUT);
  hear('r');
  nonblock(fd, 0);
}

static void edge_server(int fd) {
  static char big[1 << 16];
  touch(fd, 0);
  for (int i = 0; i < 3; i++) {
    hear('a');
    put(fd, "ab", 2);
    tell('s');
  }
  hear('f');
  // Enough for room, whatever the sizes of the buffers.
  uint64_t n = 0;
  for (int dry = 0; dry < 20;) {
    ssize_t got = rrecv(fd, big, sizeof big, MSG_DONTWAIT);
    if (got > 0) {
      n += got, dry = 0;
      continue;
    }
    CHECK(errno == EAGAIN);
    dry++;
    nap(5);
  }
  CHECK(n > 0);
  tell('r');
  get_eof(fd);
}

static void oneshot_server(int fd) {
  touch(fd, 0);
  for (int i = 0; i < 3; i++) {
    hear('a');
    put(fd, "x", 1);
    tell('s');
  }
  get_eof(fd);
}
static void oneshot_client(int fd) {
  char c[4];
  int set = create();
  touch(fd, 1);
  EQ(put_in(set, fd, EPOLLIN | EPOLLONESHOT), 0);
  tell('a');
  EQ(one(set, fd, 10000), EPOLLIN);
  hear('s');
  EQ(one(set, fd, 50), 0);
  tell('a');
  hear('s');
  EQ(one(set, fd, 50), 0);
  EQ(change(set, fd, EPOLLIN | EPOLLONESHOT), 0);
  EQ(one(set, fd, 10000), EPOLLIN);
  EQ(one(set, fd, 50), 0);
  get(fd, c, 2);
  EQ(change(set, fd, EPOLLIN | EPOLLONESHOT), 0);
  EQ(one(set, fd, 50), 0);
  tell('a');
  EQ(one(set, fd, 10000), EPOLLIN);
  hear('s');
  EQ(one(set, fd, 50), 0);
  get(fd, c, 1);
  EQ(change(set, fd, EPOLLOUT | EPOLLONESHOT | EPOLLET), 0);
  EQ(one(set, fd, 1000), EPOLLOUT);
  EQ(one(set, fd, 50), 0);
}

static void errors_solo(int l) {
  int ends[2], other[2], nobodys = 700;
  volatile int negative = -3;
  struct epoll_event e = {.events = EPOLLIN}, got[2];
  pair(l, ends);
  int set = create(), file = open("/dev/null", O_RDONLY), again;
  EQ(pipe(other), 0);
  FAILS(repoll_create(1), EINVAL);
  again = repoll_create(EPOLL_CLOEXEC);
  CHECK(again >= 0);
  EQ(rfcntl(again, F_GETFD), FD_CLOEXEC);
  EQ(rclose(again), 0);
  // A low number that has just become free may be in use by the library's threads for a moment.
  FAILS(repoll_wait(nobodys, got, 2, 0), EBADF);
  FAILS(repoll_ctl(nobodys, EPOLL_CTL_ADD, ends[0], &e), EBADF);
  FAILS(repoll_wait(-1, got, 2, 0), EBADF);
  FAILS(repoll_wait(other[0], got, 2, 0), EINVAL);
  FAILS(repoll_wait(set, got, 0, 0), EINVAL);
  FAILS(repoll_wait(set, got, negative, 0), EINVAL);
  FAILS(repoll_ctl(set, EPOLL_CTL_ADD, -1, &e), EBADF);
  FAILS(repoll_ctl(set, EPOLL_CTL_ADD, set, &e), EINVAL);
  FAILS(repoll_ctl(other[0], EPOLL_CTL_ADD, ends[0], &e), EINVAL);
  FAILS(repoll_ctl(set, EPOLL_CTL_MOD, ends[0], &e), ENOENT);
  FAILS(repoll_ctl(set, EPOLL_CTL_DEL, ends[0], &e), ENOENT);
  FAILS(repoll_ctl(set, EPOLL_CTL_ADD, ends[0], NULL), EFAULT);
  FAILS(repoll_ctl(set, 77, ends[0], &e), EINVAL);
  FAILS(repoll_ctl(set, EPOLL_CTL_ADD, file, &e), EPERM);
  for (int i = 0; i < 2; i++) {
    int fd = i ? l : ends[0];
    EQ(repoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0);
    FAILS(repoll_ctl(set, EPOLL_CTL_ADD, fd, &e), EEXIST);
    FAILS(repoll_ctl(set, 77, fd, &e), EINVAL);
    EQ(repoll_ctl(set, EPOLL_CTL_MOD, fd, &e), 0);
    EQ(repoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), 0);
    FAILS(repoll_ctl(set, EPOLL_CTL_DEL, fd, NULL), ENOENT);
  }
  // A set with members may be closed, and its members live on.
  EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends[0], &e), 0);
  EQ(rclose(set), 0);
  FAILS(rclose(nobodys), EBADF);
  char c;
  put(ends[1], "x", 1);
  get(ends[0], &c, 1);
  close(file);
}

static int caught;
static void on_signal(int sig) {
  (void)sig;
  caught++;
}
static void signals_client(int fd) {
  // Not even a handler that restarts other calls.
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  struct itimerval timer = {.it_value = {.tv_usec = 200000}};
  struct epoll_event got;
  int set = create();
  touch(fd, 1);
  EQ(put_in(set, fd, EPOLLIN), 0);
  sigaction(SIGALRM, &a, NULL);
  setitimer(ITIMER_REAL, &timer, NULL);
  FAILS(repoll_wait(set, &got, 1, 20000), EINTR);
  setitimer(ITIMER_REAL, &timer, NULL);
  FAILS(repoll_wait(set, &got, 1, -1), EINTR);
  EQ(caught, 2);
}

// Threads wait on one set; each byte wakes one of them, and none is lost.
enum { THREADS = 4, BYTES = 200 };
static int shared_set, taken[THREADS], all_taken;
static int shared_fd;
static void *take(void *arg) {
  int me = *(int *)arg;
  struct epoll_event e;
  char c;
  while (__atomic_load_n(&all_taken, __ATOMIC_SEQ_CST) < BYTES) {
    int n = repoll_wait(shared_set, &e, 1, 200);
    CHECK(n >= 0);
    if (n == 0) continue;
    while (rrecv(shared_fd, &c, 1, MSG_DONTWAIT) == 1) {
      taken[me]++;
      __atomic_add_fetch(&all_taken, 1, __ATOMIC_SEQ_CST);
    }
    EQ(change(shared_set, shared_fd, EPOLLIN | EPOLLONESHOT), 0);
  }
  return NULL;
}
static void threads_server(int fd) {
  touch(fd, 0);
  for (int i = 0; i < BYTES; i++) {
    put(fd, "x", 1);
    if (i % 10 == 0) nap(1);
  }
  get_eof(fd);
}
static void threads_client(int fd) {
  pthread_t threads[THREADS];
  int number[THREADS], sum = 0;
  shared_set = create(), shared_fd = fd;
  touch(fd, 1);
  EQ(put_in(shared_set, fd, EPOLLIN | EPOLLONESHOT), 0);
  for (int i = 0; i < THREADS; i++) {
    number[i] = i;
    EQ(pthread_create(&threads[i], NULL, take, &number[i]), 0);
  }
  for (int i = 0; i < THREADS; i++) EQ(pthread_join(threads[i], NULL), 0);
  for (int i = 0; i < THREADS; i++) sum += taken[i];
  EQ(sum, BYTES);
}

// Other descriptors of the set are the set.
static void dup_solo(int l) {
  int ends[2], set = create(), other;
  pair(l, ends);
  EQ(put_in(set, ends[0], EPOLLIN), 0);
  other = rfcntl(set, F_DUPFD, 60);
  CHECK(other >= 60);
  put(ends[1], "x", 1);
  EQ(one(other, ends[0], 10000), EPOLLIN);
  EQ(rclose(set), 0);
  EQ(one(other, ends[0], 1000), EPOLLIN);
  EQ(rclose(other), 0);
}

const rs_case CASES[] = {
    {"exact", hold, exact_client, 0},
    {"level", level_server, level_client, 0},
    {"edge", edge_server, edge_client, 0},
    {"oneshot", oneshot_server, oneshot_client, 0},
    {"errors", errors_solo, NULL, SOLO},
    {"signals", hold, signals_client, 0},
    {"threads", threads_server, threads_client, 0},
    {"dup", dup_solo, NULL, SOLO},
    {0},
};
