// What a process does by one of its connections, its own next wait finds at another one, whatever
// else that wait has to tell.
//
// Loopback delivers within the call, but for a machine whose softirqs are behind: of all rounds a
// few may miss.
#include "pair.h"

enum { ROUNDS = 20, FEW = 2 };

// A set in which one connection is always ready, and has just been told.
static int busy_set(int ready) {
  int set = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLOUT, .data.u64 = 1};
  CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, ready, &e));
  return set;
}
static void add(int set, int fd, uint32_t events) {
  struct epoll_event e = {.events = events, .data.u64 = 2};
  CHECK(!epoll_ctl(set, EPOLL_CTL_ADD, fd, &e));
}
// What the set says of the other member beside the one that is ready.
static uint32_t beside(int set) {
  struct epoll_event e[4];
  uint32_t other = 0;
  int n = epoll_wait(set, e, 4, 0), ready = 0;
  CHECK(n >= 0);
  for (int i = 0; i < n; i++) {
    if (e[i].data.u64 == 1) ready = 1;
    else other = e[i].events;
  }
  CHECK(ready);
  return other;
}
// How often `act` is seen at once; it gets both ends of a connection, of which `s[0]` is in the
// set, and a port that listens.
static void rounds(int lfd, uint32_t asks, int busy_end, void (*before)(int s[2]),
                   void (*act)(int s[2]), uint32_t wanted) {
  int seen = 0;
  for (int i = 0; i < ROUNDS; i++) {
    int s[2];
    two(lfd, s);
    if (before) before(s);
    int set = busy_set(s[busy_end]);
    add(set, s[!busy_end], asks);
    while (beside(set) & ~(uint32_t)EPOLLOUT) {}
    act(s);
    seen += (beside(set) & wanted) == wanted;
    close(set);
    close(s[0]);
    close(s[1]);
  }
  if (seen < ROUNDS - FEW) FAIL("seen at once in %d of %d rounds", seen, ROUNDS);
}

static void shut_read(int s[2]) { CHECK(!shutdown(s[1], SHUT_RD)); }
static void shut_write(int s[2]) { CHECK(!shutdown(s[1], SHUT_WR)); }
static void own_end(int lfd) { rounds(lfd, 0, 0, shut_read, shut_write, EPOLLHUP); }
static void peers_end(int lfd) {
  rounds(lfd, EPOLLIN | EPOLLRDHUP, 1, NULL, shut_write, EPOLLIN | EPOLLRDHUP);
}
// Only the kernel can do that: what follows goes by TCP.
static void by_libc(int s[2]) {
  char b[4];
  EQ(dprintf(s[1], "four"), 4);
  get(s[0], b, 4);
}
static void one_byte(int s[2]) { put(s[1], "b", 1); }
static void bytes(int lfd) { rounds(lfd, EPOLLIN, 1, NULL, one_byte, EPOLLIN); }
static void bytes_by_tcp(int lfd) { rounds(lfd, EPOLLIN, 1, by_libc, one_byte, EPOLLIN); }
static void edges_by_tcp(int lfd) { rounds(lfd, EPOLLIN | EPOLLET, 1, by_libc, one_byte, EPOLLIN); }

// Bytes lie there that were told already.
static void behind_unread(int lfd) {
  int seen = 0;
  for (int i = 0; i < ROUNDS; i++) {
    int s[2];
    two(lfd, s);
    // Or TCP holds the second piece until the first is acknowledged.
    int on = 1;
    CHECK(!setsockopt(s[1], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on));
    EQ(dprintf(s[1], "four"), 4);
    int set = busy_set(s[1]);
    add(set, s[0], EPOLLIN | EPOLLET);
    while (!(beside(set) & EPOLLIN)) {}
    one_byte(s);
    seen += (beside(set) & EPOLLIN) != 0;
    close(set);
    close(s[0]);
    close(s[1]);
  }
  if (seen < ROUNDS - FEW) FAIL("seen at once in %d of %d rounds", seen, ROUNDS);
}

// Another connection comes to a port.
static void a_connection(int lfd) {
  int seen = 0, s[2], port, other = listener(&port);
  two(lfd, s);
  int set = busy_set(s[0]);
  add(set, other, EPOLLIN);
  for (int i = 0; i < ROUNDS; i++) {
    CHECK(!beside(set));
    int fd = dial_port(port);
    CHECK(fd >= 0);
    seen += beside(set) == EPOLLIN;
    int end = accept(other, NULL, NULL);
    CHECK(end >= 0);
    close(end);
    close(fd);
  }
  if (seen < ROUNDS - FEW) FAIL("seen at once in %d of %d rounds", seen, ROUNDS);
}

const test_case CASES[] = {
    {"own_end", own_end, NULL, SOLO},
    {"peers_end", peers_end, NULL, SOLO},
    {"bytes", bytes, NULL, SOLO},
    {"bytes_by_tcp", bytes_by_tcp, NULL, SOLO | NOSHM},
    {"edges_by_tcp", edges_by_tcp, NULL, SOLO | NOSHM},
    {"behind_unread", behind_unread, NULL, SOLO | NOSHM},
    {"a_connection", a_connection, NULL, SOLO},
    {0},
};
