// What a call had no room for: the next caller that looks for it finds it, by whatever call, in
// whatever thread or process.
#include "sem.h"

// A message comes at once: a few of them do not go around the end of a buffer.
enum { FIRST = 4, MESSAGE = 64, REST = MESSAGE - FIRST };

// The server's part of a round: a message has come, of which FIRST bytes were taken.
static int round_no;
static void begin(int fd) {
  char b[FIRST];
  EQ(recv(fd, b, FIRST, 0), FIRST);
  verify(b, FIRST, round_no, 0);
}
static void rest_is(const char *b) {
  verify(b, REST, round_no, FIRST);
}
static void end(int fd) {
  char b[1];
  FAILS(recv(fd, b, 1, MSG_DONTWAIT), EAGAIN);
  EQ(ready(fd, POLLIN, 0), 0);
  tell('n');
  round_no++;
}
static void messages(int fd) {
  char b[MESSAGE];
  for (char c = 'n'; c == 'n'; round_no++) {
    fill(b, MESSAGE, round_no, 0);
    put(fd, b, MESSAGE);
    hear('n');
    c = (char)hear_int();
  }
  get_eof(fd);
}
// One way of looking for the rest, in as many rounds as tell it from luck.
static void rounds(int fd, void (*look)(int fd)) {
  for (int i = 0; i < 20; i++) {
    begin(fd);
    look(fd);
    end(fd);
    tell_int(i < 19 ? 'n' : 'e');
  }
}

static void take(int fd) {
  char b[REST + 1];
  EQ(recv(fd, b, sizeof b, MSG_DONTWAIT), REST);
  rest_is(b);
}
static void by_small_reads_look(int fd) {
  char b[REST];
  for (int at = 0; at < REST; at += 6) EQ(recv(fd, b + at, 6, MSG_DONTWAIT), 6);
  rest_is(b);
}
static void by_waiting_look(int fd) {
  char b[REST];
  EQ(recv(fd, b, REST, MSG_WAITALL), REST);
  rest_is(b);
}
static void asked_look(int fd) {
  int n = -1;
  CHECK(!ioctl(fd, FIONREAD, &n));
  EQ(n, REST);
  take(fd);
}
static void peeked_look(int fd) {
  char b[REST + 1];
  EQ(recv(fd, b, sizeof b, MSG_PEEK | MSG_DONTWAIT), REST);
  rest_is(b);
  take(fd);
}
static void polled_look(int fd) {
  EQ(ready(fd, POLLIN, 0), POLLIN);
  take(fd);
}
static void selected_look(int fd) {
  fd_set r;
  FD_ZERO(&r);
  FD_SET(fd, &r);
  struct timeval t = {0, 0};
  EQ(select(fd + 1, &r, NULL, NULL, &t), 1);
  take(fd);
}
static void low_water_look(int fd) {
  int n = REST;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  EQ(ready(fd, POLLIN, 0), POLLIN);
  n = 1;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  take(fd);
}
static int set = -1;
static void level_look(int fd) {
  struct epoll_event e = {.events = EPOLLIN};
  if (set < 0) {
    set = epoll_create1(0);
    CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
  }
  for (int i = 0; i < 2; i++) EQ(epoll_wait(set, &e, 1, 0), 1);
  take(fd);
  EQ(epoll_wait(set, &e, 1, 0), 0);
}
// The set is told of each message once; what it was told of is there in full.
static void edge_server(int fd) {
  struct epoll_event e = {.events = EPOLLIN | EPOLLET};
  set = epoll_create1(0);
  CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
  for (int i = 0; i < 20; i++) {
    EQ(epoll_wait(set, &e, 1, patience(10000)), 1);
    begin(fd);
    by_small_reads_look(fd);
    end(fd);
    tell_int(i < 19 ? 'n' : 'e');
  }
}
static void forked_look(int fd) {
  pid_t kid = fork();
  if (!kid) {
    take(fd);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
}
static void *taker(void *p) {
  take((int)(intptr_t)p);
  return NULL;
}
static void thread_look(int fd) {
  pthread_t t;
  CHECK(!pthread_create(&t, NULL, taker, (void *)(intptr_t)fd));
  pthread_join(t, NULL);
}
#define WAY(name) \
  static void name##_server(int fd) { rounds(fd, name##_look); }
WAY(by_small_reads)
WAY(by_waiting)
WAY(asked)
WAY(peeked)
WAY(polled)
WAY(selected)
WAY(low_water)
WAY(level)
WAY(forked)
WAY(thread)

// Several sleep until it comes, and each takes its part.
enum { TAKERS = 4 };
static pthread_barrier_t all_took;
static void *sleeper(void *p) {
  char b[MESSAGE / TAKERS];
  for (int i = 0; i < 20; i++) {
    EQ(recv((int)(intptr_t)p, b, sizeof b, 0), sizeof b);
    pthread_barrier_wait(&all_took);
    pthread_barrier_wait(&all_took);
  }
  return NULL;
}
static void sleepers_server(int fd) {
  pthread_t t[TAKERS];
  CHECK(!pthread_barrier_init(&all_took, NULL, TAKERS + 1));
  for (int i = 0; i < TAKERS; i++) CHECK(!pthread_create(&t[i], NULL, sleeper, (void *)(intptr_t)fd));
  for (int i = 0; i < 20; i++) {
    pthread_barrier_wait(&all_took);
    end(fd);
    tell_int(i < 19 ? 'n' : 'e');
    pthread_barrier_wait(&all_took);
  }
  for (int i = 0; i < TAKERS; i++) pthread_join(t[i], NULL);
}

// Another thread is at the connection all the time; what is there is there.
static volatile int over;
static void *sender(void *p) {
  int fd = (int)(intptr_t)p;
  char b[2000];
  for (uint64_t at = 0; !over; at += sizeof b) {
    fill(b, sizeof b, 99, at);
    put(fd, b, sizeof b);
  }
  CHECK(!shutdown(fd, SHUT_WR));
  return NULL;
}
static void busy_server(int fd) {
  pthread_t t;
  CHECK(!pthread_create(&t, NULL, sender, (void *)(intptr_t)fd));
  for (int i = 0; i < often(1000); i++) {
    char b[REST];
    round_no = i;
    begin(fd);
    // So many go around the end of a buffer once, and that one comes in two pieces.
    ssize_t n = recv(fd, b, REST, MSG_DONTWAIT);
    CHECK(n > 0);
    get(fd, b + n, REST - n);
    rest_is(b);
    tell('n');
  }
  over = 1;
  pthread_join(t, NULL);
  get_eof(fd);
}
static void *messenger(void *p) {
  int fd = (int)(intptr_t)p;
  char b[MESSAGE];
  for (int i = 0; i < often(1000); i++) {
    fill(b, MESSAGE, i, 0);
    put(fd, b, MESSAGE);
    hear('n');
  }
  CHECK(!shutdown(fd, SHUT_WR));
  return NULL;
}
static void busy_client(int fd) {
  pthread_t t;
  char b[5000];
  CHECK(!pthread_create(&t, NULL, messenger, (void *)(intptr_t)fd));
  for (uint64_t at = 0;;) {
    ssize_t n = recv(fd, b, sizeof b, 0);
    CHECK(n >= 0);
    if (!n) break;
    verify(b, n, 99, at);
    at += n;
  }
  pthread_join(t, NULL);
}

// It is unread: a close resets.
static void closed_server(int fd) {
  begin(fd);
  close(fd);
  tell('n');
}
static void closed_client(int fd) {
  char b[MESSAGE];
  fill(b, MESSAGE, 0, 0);
  put(fd, b, MESSAGE);
  hear('n');
  FAILS(recv(fd, b, 1, 0), ECONNRESET);
}
// The end comes behind it.
static void ended_server(int fd) {
  char b[REST + 1];
  begin(fd);
  tell('n');
  hear('e');
  while (!(ready(fd, POLLIN | POLLRDHUP, patience(10000)) & POLLRDHUP)) nap(1);
  EQ(recv(fd, b, sizeof b, MSG_WAITALL), REST);
  rest_is(b);
  get_eof(fd);
}
static void ended_client(int fd) {
  char b[MESSAGE];
  fill(b, MESSAGE, 0, 0);
  put(fd, b, MESSAGE);
  hear('n');
  CHECK(!shutdown(fd, SHUT_WR));
  tell('e');
  get_eof(fd);
}

const test_case CASES[] = {
    {"by_small_reads", by_small_reads_server, messages, 0},
    {"by_waiting", by_waiting_server, messages, 0},
    {"asked_for", asked_server, messages, 0},
    {"peeked", peeked_server, messages, 0},
    {"polled", polled_server, messages, 0},
    {"selected", selected_server, messages, 0},
    {"low_water", low_water_server, messages, 0},
    {"epoll_level", level_server, messages, 0},
    {"epoll_edge", edge_server, messages, 0},
    {"by_a_child", forked_server, messages, 0},
    {"by_a_thread", thread_server, messages, 0},
    {"by_sleepers", sleepers_server, messages, 0},
    {"beside_a_sender", busy_server, busy_client, 0},
    {"closed", closed_server, closed_client, 0},
    {"ended", ended_server, ended_client, 0},
    {0},
};
