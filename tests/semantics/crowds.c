// Any number of threads on one socket: readers, writers, pollers, closers; shutdown from another
// thread; cancellation.
#include "pair.h"

enum { CROWD = 8 };

static int the_fd = -1;

static void start(pthread_t *t, void *(*f)(void *), intptr_t n) {
  CHECK(!pthread_create(t, NULL, f, (void *)n));
}
static void join_all(pthread_t *t, int n) {
  for (int i = 0; i < n; i++) CHECK(!pthread_join(t[i], NULL));
}
// Until the thread sleeps in the kernel, by all appearances: where many do, some of them look up
// now and then.
static void until_asleep(pid_t tid) {
  char path[64], text[256];
  int asleep = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
  for (int i = 0; i < 150 && asleep < 5; i++, nap(2)) {
    FILE *f = fopen(path, "r");
    if (!f) return;
    size_t n = fread(text, 1, sizeof text - 1, f);
    fclose(f);
    text[n] = 0;
    char *p = strrchr(text, ')');
    asleep = p && p[2] == 'S' ? asleep + 1 : 0;
  }
}

// -- readers and writers
enum { TOTAL = 3 << 20 };
static uint64_t sums[CROWD], counts[CROWD];
static int blocking_kind;
static void *reader(void *p) {
  intptr_t me = (intptr_t)p;
  unsigned char b[5000];
  uint64_t r = me + 1;
  for (;;) {
    if (blocking_kind == 1) {
      struct pollfd q = {the_fd, POLLIN, 0};
      CHECK(poll(&q, 1, -1) == 1);
    } else if (blocking_kind == 2) {
      fd_set set;
      FD_ZERO(&set);
      FD_SET(the_fd, &set);
      CHECK(select(the_fd + 1, &set, NULL, NULL, NULL) == 1);
    } else if (blocking_kind == 3) {
      int ep = epoll_create1(0);
      struct epoll_event e = {.events = EPOLLIN};
      CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, the_fd, &e));
      EQ(epoll_wait(ep, &e, 1, -1), 1);
      close(ep);
    }
    ssize_t k = recv(the_fd, b, 1 + rnd(&r) % sizeof b, blocking_kind ? MSG_DONTWAIT : 0);
    if (k < 0 && blocking_kind && errno == EAGAIN) continue;  // another one was faster
    CHECK(k >= 0);
    if (k == 0) return NULL;
    counts[me] += k;
    for (ssize_t i = 0; i < k; i++) sums[me] += b[i];
  }
}
static void *writer(void *p) {
  intptr_t me = (intptr_t)p;
  put_stream(the_fd, 20 + me, 0, TOTAL / CROWD, 7000);
  return NULL;
}
static uint64_t sum_of_writers(void) {
  static unsigned char b[TOTAL / CROWD];
  uint64_t sum = 0;
  for (int i = 0; i < CROWD; i++) {
    fill(b, sizeof b, 20 + i, 0);
    for (size_t k = 0; k < sizeof b; k++) sum += b[k];
  }
  return sum;
}
// Eight write on one end, eight read on the other: nothing is lost or doubled, and each of the
// eight hears of the end.
static void write_crowd(int fd) {
  pthread_t t[CROWD];
  the_fd = fd;
  for (int i = 0; i < CROWD; i++) start(&t[i], writer, i);
  join_all(t, CROWD);
  shutdown(fd, SHUT_WR);
  hear('r');
}
static void read_crowd(int fd, int kind) {
  pthread_t t[CROWD];
  uint64_t sum = 0, count = 0;
  the_fd = fd;
  blocking_kind = kind;
  for (int i = 0; i < CROWD; i++) start(&t[i], reader, i);
  join_all(t, CROWD);
  for (int i = 0; i < CROWD; i++) sum += sums[i], count += counts[i];
  EQ(count, TOTAL);
  EQ(sum, sum_of_writers());
  tell('r');
}
static void recv_crowd(int fd) { read_crowd(fd, 0); }
static void poll_crowd(int fd) { read_crowd(fd, 1); }
static void select_crowd(int fd) { read_crowd(fd, 2); }
static void epoll_crowd(int fd) { read_crowd(fd, 3); }
// Both ways at once on both ends: readers and writers on one socket.
static void both_ways(int fd) {
  pthread_t t[CROWD], w[CROWD];
  the_fd = fd;
  for (int i = 0; i < CROWD; i++) start(&t[i], reader, i), start(&w[i], writer, i);
  join_all(w, CROWD);
  shutdown(fd, SHUT_WR);
  join_all(t, CROWD);
  uint64_t sum = 0, count = 0;
  for (int i = 0; i < CROWD; i++) sum += sums[i], count += counts[i];
  EQ(count, TOTAL);
  EQ(sum, sum_of_writers());
}

// -- closers
static void *writes_and_closes(void *p) {
  int mine = (int)(intptr_t)p;
  char b[1000];
  for (int i = 0; i < 50; i++) put(mine, memset(b, 'c', sizeof b), sizeof b);
  CHECK(!close(mine));
  return NULL;
}
// Each thread has a name of its own for the connection and closes it: the last close is the end.
static void close_crowd(int fd) {
  pthread_t t[CROWD];
  for (int i = 0; i < CROWD; i++) {
    int mine = dup(fd);
    CHECK(mine >= 0);
    CHECK(!pthread_create(&t[i], NULL, writes_and_closes, (void *)(intptr_t)mine));
  }
  join_all(t, CROWD);
  tell('o');  // still open
  hear('y');
  close(fd);
}
static void close_count(int fd) {
  static char b[50000];
  size_t n = 0;
  while (n < CROWD * 50 * 1000) {
    ssize_t k = recv(fd, b, sizeof b, 0);
    CHECK(k > 0);
    n += k;
  }
  hear('o');
  EQ(ready(fd, POLLIN, 50), 0);
  tell('y');
  get_eof(fd);
}

// -- shutdown from another thread
static volatile pid_t tids[CROWD];
static long answers[CROWD];
static int errors[CROWD];
static void *sleeper(void *p) {
  intptr_t me = (intptr_t)p;
  static char big[4 << 20];
  char c;
  struct pollfd q = {the_fd, POLLIN, 0};
  struct epoll_event e = {.events = EPOLLIN};
  fd_set set;
  int ep = epoll_create1(0);
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, the_fd, &e));
  FD_ZERO(&set);
  FD_SET(the_fd, &set);
  tids[me] = gettid();
  errno = 0;
  switch (me) {
    case 0: answers[me] = recv(the_fd, &c, 1, 0); break;
    case 1: answers[me] = recv(the_fd, &c, 1, MSG_PEEK); break;
    case 2: answers[me] = read(the_fd, &c, 1); break;
    case 3: answers[me] = poll(&q, 1, -1) == 1 && q.revents & POLLIN; break;
    case 4: answers[me] = epoll_wait(ep, &e, 1, -1) == 1 && e.events & EPOLLIN; break;
    case 5: answers[me] = select(the_fd + 1, &set, NULL, NULL, NULL); break;
    case 6: answers[me] = recv(the_fd, big, sizeof big, MSG_WAITALL); break;
    default:
      do answers[me] = send(the_fd, big, sizeof big, MSG_NOSIGNAL);
      while (answers[me] == sizeof big);
      if (answers[me] > 0) answers[me] = send(the_fd, big, sizeof big, MSG_NOSIGNAL);
      break;
  }
  errors[me] = errno;
  close(ep);
  return NULL;
}
static void wakes(int fd, int how, int senders) {
  pthread_t t[CROWD];
  int n = senders ? CROWD : CROWD - 1;
  the_fd = fd;
  for (int i = 0; i < n; i++) start(&t[i], sleeper, i);
  for (int i = 0; i < n; i++) {
    while (!tids[i]) nap(1);
    until_asleep(tids[i]);
  }
  CHECK(!shutdown(fd, how));
  join_all(t, n);
  const long want[CROWD] = {0, 0, 0, 1, 1, 1, 0, -1};
  for (int i = 0; i < n; i++)
    if (answers[i] != want[i]) FAIL("call %d: %ld, not %ld (%s)", i, answers[i], want[i], strerror(errors[i]));
  if (senders) CHECK(errors[7] == EPIPE);
  tell('w');
}
static void wait_told(int fd) {
  hear('w');
  close(fd);
}
static void shut_read(int fd) { wakes(fd, SHUT_RD, 0); }
static void shut_both(int fd) { wakes(fd, SHUT_RDWR, 1); }
// SHUT_WR leaves a reader asleep: what comes then still reaches it.
static void *one_read(void *p) {
  intptr_t me = (intptr_t)p;
  char c = 0;
  tids[me] = gettid();
  ssize_t n = recv(the_fd, &c, 1, 0);
  answers[me] = n == 1 ? c : n == 0 ? 0 : -errno;
  return NULL;
}
static void shut_write(int fd) {
  pthread_t t[2];
  the_fd = fd;
  for (int i = 0; i < 2; i++) {
    start(&t[i], one_read, i);
    while (!tids[i]) nap(1);
    until_asleep(tids[i]);
  }
  CHECK(!shutdown(fd, SHUT_WR));
  tell('s');
  join_all(t, 2);
  EQ(answers[0] + answers[1], 'x' + 'y');
}
static void after_eof(int fd) {
  hear('s');
  get_eof(fd);
  put(fd, "xy", 2);
  char c;
  // Its end comes when it has read both.
  CHECK(recv(fd, &c, 1, 0) == 0);
}

// close leaves a reader asleep, and the connection open until it is done.
static void close_under(int fd) {
  pthread_t t;
  the_fd = fd;
  start(&t, one_read, 0);
  while (!tids[0]) nap(1);
  until_asleep(tids[0]);
  CHECK(!close(fd));
  tell('c');
  join_all(&t, 1);
  EQ(answers[0], 'x');
  hear('e');
}
static void still_open(int fd) {
  hear('c');
  EQ(ready(fd, POLLIN, 100), 0);
  put(fd, "x", 1);
  get_eof(fd);
  tell('e');
}

// The same of one of two descriptors: the reader goes on, and its number is another file's.
static void close_one_of_two(int fd) {
  int second = dup(fd), p[2];
  pthread_t t;
  char c;
  the_fd = fd;
  CHECK(second >= 0 && !pipe(p));
  start(&t, one_read, 0);
  while (!tids[0]) nap(1);
  until_asleep(tids[0]);
  CHECK(!close(fd));
  EQ(dup2(p[0], fd), fd);
  tell('c');
  join_all(&t, 1);
  EQ(answers[0], 0);
  CHECK(!close(second));
  // No thread has taken anything from the file that has the number, or ended it.
  CHECK(write(p[1], "p", 1) == 1 && read(fd, &c, 1) == 1 && c == 'p');
}
static void closes_told(int fd) {
  hear('c');
  close(fd);
}

// The same, but the reader is cancelled: then no reader is left.
static void close_and_cancel(int fd) {
  pthread_t t;
  void *r;
  the_fd = fd;
  start(&t, one_read, 0);
  while (!tids[0]) nap(1);
  until_asleep(tids[0]);
  CHECK(!close(fd));
  tell('c');
  hear('o');
  CHECK(!pthread_cancel(t));
  CHECK(!pthread_join(t, &r));
  CHECK(r == PTHREAD_CANCELED);
  hear('e');
}
static void open_until_cancelled(int fd) {
  hear('c');
  EQ(ready(fd, POLLIN, 100), 0);
  tell('o');
  get_eof(fd);
  tell('e');
}

// -- cancellation
static int cancel_kind, listening = -1;
static void *cancelled(void *p) {
  static char big[1 << 20];
  struct pollfd q = {the_fd, POLLIN, 0};
  struct epoll_event e = {.events = EPOLLIN};
  fd_set set;
  char c;
  (void)p;
  int ep = epoll_create1(EPOLL_CLOEXEC);
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, the_fd, &e));
  FD_ZERO(&set);
  FD_SET(the_fd, &set);
  memset(big, 'x', sizeof big);
  tids[0] = gettid();
  switch (cancel_kind) {
    case 0: recv(the_fd, &c, 1, 0); break;
    case 1: read(the_fd, &c, 1); break;
    case 2: poll(&q, 1, -1); break;
    case 3: epoll_wait(ep, &e, 1, -1); break;
    case 4: select(the_fd + 1, &set, NULL, NULL, NULL); break;
    case 5: accept(listening, NULL, NULL); break;
    case 6: recv(the_fd, big, sizeof big, MSG_WAITALL); break;
    default:
      for (;;) send(the_fd, big, sizeof big, MSG_NOSIGNAL);
  }
  FAIL("it came back from kind %d", cancel_kind);
}
static void cancel_one(int kind) {
  pthread_t t;
  void *r;
  cancel_kind = kind;
  tids[0] = 0;
  CHECK(!pthread_create(&t, NULL, cancelled, NULL));
  while (!tids[0]) nap(1);
  until_asleep(tids[0]);
  CHECK(!pthread_cancel(t));
  CHECK(!pthread_join(t, &r));
  CHECK(r == PTHREAD_CANCELED);
}
static void echo(int fd) {
  static char b[60000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
static void *asks(void *p) {
  char b[900];
  (void)p;
  for (int i = 0; i < 200; i++) {
    fill(b, sizeof b, 30, i);
    put(the_fd, b, sizeof b);
    get(the_fd, b, sizeof b);
    verify(b, sizeof b, 30, i);
  }
  return NULL;
}
// Threads that are cancelled in each kind of wait leave the connection to the others as it was.
static void cancel_waits(int fd) {
  int port;
  pthread_t t;
  the_fd = fd;
  listening = listener(&port);
  for (int round = 0; round < 3; round++)
    for (int kind = 0; kind <= 6; kind++) {
      cancel_one(kind);
      CHECK(!pthread_create(&t, NULL, asks, NULL));
      join_all(&t, 1);
    }
}
// In a send that blocks: whatever it sent came first, and what others send after it comes whole.
static void cancel_send(int fd) {
  the_fd = fd;
  cancel_one(7);
  tell('c');
  static char b[100000];
  put(fd, memset(b, 'y', sizeof b), sizeof b);
  shutdown(fd, SHUT_WR);
  get_eof(fd);
}
static void cancel_send_server(int fd) {
  static char b[100000];
  size_t x = 0, y = 0;
  ssize_t k;
  hear('c');
  while ((k = recv(fd, b, sizeof b, 0)) > 0)
    for (ssize_t i = 0; i < k; i++)
      if (b[i] == 'x' && y == 0) x++;
      else {
        CHECK(b[i] == 'y');
        y++;
      }
  EQ(k, 0);
  CHECK(x > 0);
  EQ(y, 100000);
}

// -- bursts
enum { BURST = 40, WRITERS = 2, SLEEPERS = 2, ROUNDS = 200 };
static int burst[BURST];
static uint64_t rounds;
static int writers;
// Each writes to its share of the connections, one right after the other, and then waits until all
// have answered.
static void *bursting(void *p) {
  intptr_t me = (intptr_t)p;
  uint64_t r = me + 7;
  for (uint64_t n = 0; n < rounds; n++) {
    char c = n;
    for (int i = me; i < BURST; i += writers) put(burst[i], &c, 1);
    for (int i = me; i < BURST; i += writers) {
      get(burst[i], &c, 1);
      EQ((uint8_t)c, (uint8_t)n);
    }
    usleep(rnd(&r) % 300);
  }
  return NULL;
}
// Each has its half of them in a set of its own, and sleeps between the bursts. It hears of each,
// whether it was woken for all of them or for the first.
static void *sleeping(void *p) {
  intptr_t me = (intptr_t)p;
  uint64_t left = WRITERS * rounds * (BURST / SLEEPERS);
  int ep = epoll_create1(0), few = me ? BURST : 4;
  struct epoll_event e = {.events = me ? EPOLLIN | EPOLLET : EPOLLIN}, v[BURST];
  for (int i = 0; i < BURST / SLEEPERS; i++) {
    e.data.fd = burst[me * (BURST / SLEEPERS) + i];
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, e.data.fd, &e));
  }
  while (left) {
    int n = epoll_wait(ep, v, few, patience(10000));
    if (n <= 0) FAIL("sleeper %d waits for ever: %llu left", (int)me, (unsigned long long)left);
    for (int i = 0; i < n; i++, left--) {
      char c;
      EQ(recv(v[i].data.fd, &c, 1, MSG_DONTWAIT), 1);
      put(v[i].data.fd, &c, 1);
    }
  }
  close(ep);
  return NULL;
}
static void burst_server(int lfd) {
  pthread_t t[WRITERS];
  rounds = often(ROUNDS);
  for (int i = 0; i < BURST; i++) {
    CHECK((burst[i] = accept(lfd, NULL, NULL)) >= 0);
    warm(burst[i], 0);
  }
  // One alone, then more.
  for (writers = 1; writers <= WRITERS; writers++) {
    for (int i = 0; i < writers; i++) start(&t[i], bursting, i);
    join_all(t, writers);
  }
}
static void burst_client(int none) {
  pthread_t t[SLEEPERS];
  (void)none;
  rounds = often(ROUNDS);
  for (int i = 0; i < BURST; i++) {
    burst[i] = dial();
    warm(burst[i], 1);
  }
  for (int i = 0; i < SLEEPERS; i++) start(&t[i], sleeping, i);
  join_all(t, SLEEPERS);
}

const test_case CASES[] = {
    {"eight_read", write_crowd, recv_crowd, 0},
    {"eight_poll", write_crowd, poll_crowd, 0},
    {"eight_select", write_crowd, select_crowd, 0},
    {"eight_epoll", write_crowd, epoll_crowd, 0},
    {"burst_to_sleeping_sets", burst_server, burst_client, RAW},
    {"eight_each_way", both_ways, both_ways, 0},
    {"eight_close", close_count, close_crowd, 0},
    {"shutdown_read_wakes_all", wait_told, shut_read, TOUCH},
    {"shutdown_both_wakes_all", wait_told, shut_both, TOUCH},
    {"shutdown_write_wakes_none", after_eof, shut_write, TOUCH},
    {"close_leaves_a_reader", still_open, close_under, TOUCH},
    {"close_one_of_two", closes_told, close_one_of_two, TOUCH},
    {"close_and_cancel", open_until_cancelled, close_and_cancel, TOUCH},
    {"cancelled_while_waiting", echo, cancel_waits, 0},
    {"cancelled_while_sending", cancel_send_server, cancel_send, 0},
    {0},
};
