// What a child does with its copy of its parent's epoll sets. It closes them, uses what is in them,
// goes on with them, or has sets of its own beside them.
#include "ask.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

static int set_of(int fd, uint32_t events) {
  struct epoll_event e = {.events = events, .data.u64 = 7};
  int ep = epoll_create1(0);
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  return ep;
}
static void only_7(int ep, int ms, uint32_t want) {
  struct epoll_event e;
  EQ(epoll_wait(ep, &e, 1, ms), 1);
  EQ(e.data.u64, 7);
  EQ(e.events & want, want);
}
// What the parent sleeps on is left alone by a child that closes all it has: event loops do so
// after a fork.
static void closes_server(int fd) {
  struct epoll_event e;
  int ep = set_of(fd, EPOLLIN);
  EQ(epoll_wait(ep, &e, 1, 50), 0);
  pid_t kid = fork();
  if (!kid) {
    close(fd);
    close(ep);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  tell('c');
  only_7(ep, patience(1000), EPOLLIN);
  echo_all(fd);
}
static void closes_client(int fd) {
  hear('c');
  nap(300);
  ask(fd, 1, 1, 1);
  finish(fd);
}
// The same before a sandbox, and what the parent's set gets afterwards.
static void sandboxed_server(int lfd) {
  struct epoll_event e = {.events = EPOLLIN, .data.u64 = 7};
  int first = accept(lfd, NULL, NULL);
  CHECK(first >= 0);
  echo_n(first, MIB);
  int ep = set_of(first, EPOLLIN);
  EQ(epoll_wait(ep, &e, 1, 50), 0);
  pid_t kid = fork();
  if (!kid) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog p = {1, &all};
    close(first);
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p));
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  int second = accept(lfd, NULL, NULL);
  CHECK(second >= 0);
  echo_n(second, MIB);
  e = (struct epoll_event){.events = EPOLLIN, .data.u64 = 7};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, second, &e));
  for (int i = 0; i < 2; i++) {
    tell('c');
    only_7(ep, patience(1000), EPOLLIN);
    echo_n(i ? first : second, 1);
  }
  echo_all(first);
  close(first);
  echo_all(second);
}
static void sandboxed_client(int fd) {
  (void)fd;
  int first = dial();
  ask(first, 1, MIB, 9000);
  int second = dial();
  ask(second, 2, MIB, 9000);
  for (int i = 0; i < 2; i++) {
    hear('c');
    nap(300);
    ask(i ? first : second, 1, 1, 1);
  }
  finish(first);
  finish(second);
}
// A child uses a connection that its parent sleeps on, for its end alone: the set stays as the
// parent made it.
static void child_uses_server(int fd) {
  int ep = set_of(fd, EPOLLRDHUP);
  pid_t kid = fork();
  if (!kid) {
    echo_all(fd);
    _exit(0);
  }
  only_7(ep, 20000, EPOLLRDHUP);
  EQ(exit_status(kid), 0);
}
static void child_uses_client(int fd) {
  nap(100);
  ask(fd, 1, 4 * MIB, 9000);
  finish(fd);
}
// A child goes on with the set where its parent was, as daemons do.
static void takes_over_server(int fd) {
  struct epoll_event e;
  int ep = set_of(fd, EPOLLIN);
  EQ(epoll_wait(ep, &e, 1, 50), 0);
  pid_t kid = fork();
  if (!kid) {
    for (;;) {
      char b[9000];
      only_7(ep, 20000, EPOLLIN);
      ssize_t k = recv(fd, b, sizeof b, 0);
      CHECK(k >= 0);
      if (!k) break;
      put(fd, b, k);
    }
    _exit(0);
  }
  close(fd);
  close(ep);
  tell('c');
  EQ(exit_status(kid), 0);
}
static void takes_over_client(int fd) {
  hear('c');
  for (int i = 0; i < 20; i++) {
    nap(10);
    ask(fd, i, 9000, 9000);
  }
  ask(fd, 1, 2 * MIB, 9000);
  for (int i = 0; i < 20; i++) {
    nap(10);
    ask(fd, i, 9000, 9000);
  }
  finish(fd);
}
// Parent and child each have an event loop; the child's has nothing to do with what the parent's
// sleeps on, though it has inherited it.
static void own_loop(int ep, int fd) {
  for (;;) {
    char c;
    only_7(ep, 20000, EPOLLIN);
    ssize_t k = recv(fd, &c, 1, 0);
    CHECK(k >= 0);
    if (!k) return;
    put(fd, &c, 1);
  }
}
static void two_loops_server(int lfd) {
  int first = accept(lfd, NULL, NULL);
  CHECK(first >= 0);
  echo_n(first, MIB);
  int ep = set_of(first, EPOLLIN);
  pid_t kid = fork();
  if (!kid) {
    int second = accept(lfd, NULL, NULL);
    CHECK(second >= 0);
    echo_n(second, MIB);
    own_loop(set_of(second, EPOLLIN), second);
    _exit(0);
  }
  own_loop(ep, first);
  EQ(exit_status(kid), 0);
}
static _Atomic int rounds_done;
static void *busy(void *p) {
  (void)p;
  int fd = dial();
  ask(fd, 2, MIB, 9000);
  while (!rounds_done) ask(fd, 2, 100, 1);
  finish(fd);
  return NULL;
}
static void two_loops_client(int fd) {
  pthread_t t;
  uint64_t seed = 5;
  fd = dial();
  ask(fd, 1, MIB, 9000);
  CHECK(!pthread_create(&t, NULL, busy, NULL));
  for (int i = 0; i < often(3000); i++) {
    char c = (char)i;
    usleep(rnd(&seed) % 400);
    put(fd, &c, 1);
    if (!ready(fd, POLLIN, 1000)) FAIL("no answer in round %d", i);
    get(fd, &c, 1);
    EQ(c, (char)i);
  }
  rounds_done = 1;
  pthread_join(t, NULL);
  finish(fd);
}

// Parent and child each have a set of their own with the same connection: both hear of what comes,
// whichever is first.
static void both_hear_server(int fd) {
  int up[2], down[2];
  char c;
  CHECK(!pipe(up) && !pipe(down));
  pid_t kid = fork();
  int ep = set_of(fd, EPOLLIN);
  if (!kid) {
    for (int i = 0; i < 10; i++) {
      only_7(ep, patience(2000), EPOLLIN);
      EQ(write(up[1], "h", 1), 1);
      EQ(read(down[0], &c, 1), 1);
    }
    _exit(0);
  }
  close(up[1]);
  for (int i = 0; i < 10; i++) {
    only_7(ep, patience(2000), EPOLLIN);
    EQ(read(up[0], &c, 1), 1);
    get(fd, &c, 1);
    EQ(write(down[1], "r", 1), 1);
    put(fd, &c, 1);
  }
  EQ(exit_status(kid), 0);
  echo_all(fd);
}
// The same, half an exchange later: the connection leaves TCP while one of them has nothing to do
// with that.
static void both_hear_later_server(int fd) {
  char c;
  get(fd, &c, 1);
  both_hear_server(fd);
}
static void both_hear_client(int fd) {
  for (int i = 0; i < 10; i++) {
    nap(100);
    ask(fd, i, 1, 1);
  }
  finish(fd);
}

static void both_hear_later_client(int fd) {
  put(fd, "o", 1);
  both_hear_client(fd);
}

const test_case CASES[] = {
    {"a_child_closes_its_parents_set", closes_server, closes_client, 0},
    {"a_sandboxed_child_and_its_parents_set", sandboxed_server, sandboxed_client, RAW},
    {"a_child_uses_what_its_parent_sleeps_on", child_uses_server, child_uses_client, 0},
    {"a_child_takes_over_a_set", takes_over_server, takes_over_client, 0},
    {"parent_and_child_have_loops", two_loops_server, two_loops_client, RAW},
    {"parent_and_child_hear_of_one", both_hear_server, both_hear_client, 0},
    {"parent_and_child_hear_of_one_later", both_hear_later_server, both_hear_later_client, 0},
    {0},
};
