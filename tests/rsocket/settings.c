// What the files in RSOCKET_CONF_DIR change. Each case is run with the setting that it is about.
#include "rs.h"

static long switches(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return r.ru_nvcsw;
}

// How often a thread at rest wakes, in waits of half a second each.
static long at_rest(int l, int with_set) {
  int ends[2], set = repoll_create(0);
  struct epoll_event e = {.events = EPOLLIN};
  char c;
  pair(l, ends);
  put(ends[1], "x", 1);
  get(ends[0], &c, 1);
  EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends[0], &e), 0);
  // The first wait takes what is still under way.
  EQ(repoll_wait(set, &e, 1, 100), 0);
  long before = switches();
  double t = now();
  EQ(with_set ? repoll_wait(set, &e, 1, 500) : ready(ends[0], POLLIN, 500), 0);
  took(t, 0.5, 5);
  return switches() - before;
}

// wake_up_interval of 10 ms.
static void often(int l) {
  for (int i = 0; i < 2; i++) {
    long n = at_rest(l, i);
    if (n < 10) FAIL("woke %ld times in half a second", n);
  }
}

// None, or an hour.
static void seldom(int l) {
  for (int i = 0; i < 2; i++) {
    long n = at_rest(l, i);
    if (n > 5) FAIL("woke %ld times in half a second", n);
  }
}

// polling_time of a second: no time-out is late because of it.
static void long_spin(int l) {
  int ends[2], set = repoll_create(0);
  struct epoll_event e = {.events = EPOLLIN};
  struct timeval limit = {0, 50000};
  char c;
  pair(l, ends);
  put(ends[1], "x", 1);
  get(ends[0], &c, 1);
  EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends[0], &e), 0);
  EQ(rsetsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
  double waits[3] = {0, 0, 0}, t;
  // The best of some: a busy machine may be late, but not each time.
  for (int i = 0; i < 10; i++) {
    for (int how = 0; how < 3; how++) {
      t = now();
      if (how == 0) EQ(ready(ends[0], POLLIN, 50), 0);
      if (how == 1) EQ(repoll_wait(set, &e, 1, 50), 0);
      if (how == 2) FAILS(rrecv(ends[0], &c, 1, 0), EAGAIN);
      t = now() - t;
      CHECK(t >= 0.05);
      if (i == 0 || t < waits[how]) waits[how] = t;
    }
  }
  for (int how = 0; how < 3; how++)
    if (waits[how] > 0.5) FAIL("way %d waited %.3f s at least, not 0.050", how, waits[how]);
}

// polling_time of nothing: the runner looks at the counters.
static void no_spin(int l) {
  int ends[2];
  char c;
  pair(l, ends);
  for (int i = 0; i < 100; i++) {
    put(ends[i % 2], "x", 1);
    EQ(ready(ends[1 - i % 2], POLLIN, 5000), POLLIN);
    EQ(ready(ends[i % 2], POLLIN, 1), 0);
    get(ends[1 - i % 2], &c, 1);
  }
}

const rs_case CASES[] = {
    {"often", often, NULL, SOLO},
    {"seldom", seldom, NULL, SOLO},
    {"long_spin", long_spin, NULL, SOLO},
    {"no_spin", no_spin, NULL, SOLO},
    {0},
};
