// repoll over datagram rsockets: levels, edges, one-shots, wake-ups, and sets that hold other
// things beside them.
#include "datagrams.h"

#include <sys/epoll.h>

static int set_of(int fd, unsigned events) {
  int set = repoll_create(0);
  CHECK(set >= 0);
  struct epoll_event e = {.events = events, .data.fd = fd};
  EQ(repoll_ctl(set, EPOLL_CTL_ADD, fd, &e), 0);
  return set;
}
static unsigned wait_one(int set, int fd, int ms) {
  struct epoll_event e[4];
  int n = repoll_wait(set, e, 4, ms);
  CHECK(n == 0 || n == 1);
  if (n == 0) return 0;
  EQ(e[0].data.fd, fd);
  return e[0].events;
}
static void take(int fd, int n) {
  for (int i = 0; i < n; i++) EQ(rrecv(fd, got, sizeof got, 0), 1);
}
// One datagram from `from`, seen to have come: what comes over a device takes its time.
static void bring(int from, int to) {
  EQ(rsend(from, "x", 1, 0), 1);
  CHECK(ready(to, POLLIN, 10000) & POLLIN);
}
// Two that know the way to each other.
static void two(int *a, int *b) {
  *a = bound(0), *b = connected(port_of(*a));
  join(*a, port_of(*b));
  for (int i = 0; i < 20; i++) {
    bring(*b, *a), take(*a, 1);
    bring(*a, *b), take(*b, 1);
  }
}

static void level(int l) {
  (void)l;
  int a, b;
  two(&a, &b);
  int set = set_of(a, EPOLLIN | EPOLLOUT);
  EQ(wait_one(set, a, 0), EPOLLOUT);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = a};
  EQ(repoll_ctl(set, EPOLL_CTL_MOD, a, &e), 0);
  double t = now();
  EQ(wait_one(set, a, 100), 0);
  took(t, 0.09, 5);
  bring(b, a);
  for (int i = 0; i < 3; i++) EQ(wait_one(set, a, 0), EPOLLIN);
  take(a, 1);
  EQ(wait_one(set, a, 0), 0);
  EQ(repoll_ctl(set, EPOLL_CTL_DEL, a, NULL), 0);
  bring(b, a);
  EQ(wait_one(set, a, 20), 0);
  FAILS(repoll_ctl(set, EPOLL_CTL_DEL, a, NULL), ENOENT);
}

static void edge(int l) {
  (void)l;
  int a, b;
  two(&a, &b);
  int set = set_of(a, EPOLLIN | EPOLLET);
  for (int i = 0; i < 10; i++) {
    bring(b, a);
    EQ(wait_one(set, a, 10000) & EPOLLIN, EPOLLIN);
    // It is there still, but that is no news.
    EQ(wait_one(set, a, 10), 0);
    // More is, although the first was not taken.
    EQ(rsend(b, "x", 1, 0), 1);
    EQ(wait_one(set, a, 10000) & EPOLLIN, EPOLLIN);
    take(a, 2);
    EQ(wait_one(set, a, 10), 0);
  }
}

static void oneshot(int l) {
  (void)l;
  int a, b;
  two(&a, &b);
  int set = set_of(a, EPOLLIN | EPOLLONESHOT);
  for (int i = 0; i < 5; i++) {
    bring(b, a);
    EQ(wait_one(set, a, 10000), EPOLLIN);
    EQ(wait_one(set, a, 10), 0);
    struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT, .data.fd = a};
    EQ(repoll_ctl(set, EPOLL_CTL_MOD, a, &e), 0);
    EQ(wait_one(set, a, 10000), EPOLLIN);
    take(a, 1);
    EQ(repoll_ctl(set, EPOLL_CTL_MOD, a, &e), 0);
    EQ(wait_one(set, a, 10), 0);
  }
}

// A sleeper is woken at once, and by nothing but what comes.
static void woken_server(int l) {
  (void)l;
  int fd = bound(port);
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  tell('r');
  for (int i = 0; i < 20; i++) {
    EQ(rrecvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&a, &len), 100);
    EQ(rsendto(fd, got, 100, 0, (struct sockaddr *)&a, len), 100);
  }
  for (int i = 0; i < 10; i++) {
    hear('w');
    nap(30);
    EQ(rsendto(fd, &i, sizeof i, 0, (struct sockaddr *)&a, len), sizeof i);
  }
  echo(fd);
}
static void woken_client(int l) {
  (void)l;
  hear('r');
  int fd = connected(port), n = -1, set = set_of(fd, EPOLLIN);
  warm(fd, 20);
  for (int i = 0; i < 10; i++) {
    double t = now();
    tell('w');
    EQ(wait_one(set, fd, 15000), EPOLLIN);
    took(t, 0, 10);
    EQ(rrecv(fd, &n, sizeof n, 0), sizeof n);
    EQ(n, i);
  }
  stop_echo(fd);
}

// A set of datagram sockets, a listener, a stream and a pipe: each is seen when its turn comes, and
// no other.
static void mixture(int l) {
  int a, b, stream[2], ends[2], set = repoll_create(0);
  CHECK(set >= 0 && pipe(ends) == 0);
  two(&a, &b);
  pair(l, stream);
  put(stream[0], "w", 1);
  get(stream[1], got, 1);
  int members[] = {a, stream[1], ends[0], l};
  for (int i = 0; i < 4; i++) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = members[i]};
    EQ(repoll_ctl(set, EPOLL_CTL_ADD, members[i], &e), 0);
  }
  for (int i = 0; i < 10; i++) {
    EQ(wait_one(set, -1, 0), 0);
    EQ(rsend(b, "x", 1, 0), 1);
    EQ(wait_one(set, a, 10000), EPOLLIN);
    take(a, 1);
    put(stream[0], "x", 1);
    EQ(wait_one(set, stream[1], 10000), EPOLLIN);
    get(stream[1], got, 1);
    EQ(write(ends[1], "x", 1), 1);
    EQ(wait_one(set, ends[0], 10000), EPOLLIN);
    EQ(read(ends[0], got, 1), 1);
  }
}

const rs_case CASES[] = {
  {"level", level, NULL, SOLO},
  {"edge", edge, NULL, SOLO},
  {"oneshot", oneshot, NULL, SOLO},
  {"woken", woken_server, woken_client, RAW},
  {"mixture", mixture, NULL, SOLO},
  {0},
};
