// Members of a set of repoll_create's. They are of all kinds, many of them; those that are being
// connected, those that are closed, and those whose peer is killed.
#include "epoll.h"

#include <sys/eventfd.h>

// A member that is closed is none any more, and its number may be another's.
static void closing_solo(int l) {
  int ends[2], more[2];
  struct epoll_event got[4];
  int set = create();
  for (int i = 0; i < 20; i++) {
    pair(l, ends);
    EQ(put_in(set, ends[0], EPOLLIN), 0);
    put(ends[1], "x", 1);
    EQ(one(set, ends[0], 10000), EPOLLIN);
    EQ(rclose(ends[0]), 0);
    EQ(repoll_wait(set, got, 4, 0), 0);
    pair(l, more);
    EQ(put_in(set, more[0], EPOLLIN), 0);
    EQ(one(set, more[0], 0), 0);
    put(more[1], "y", 1);
    EQ(one(set, more[0], 10000), EPOLLIN);
    EQ(rclose(more[0]), 0);
    EQ(rclose(more[1]), 0);
    EQ(rclose(ends[1]), 0);
  }
  // While another descriptor of it lives, it stays.
  pair(l, ends);
  EQ(put_in(set, ends[0], EPOLLIN), 0);
  EQ(rclose(set), 0);
}

static void *write_later(void *arg) {
  nap(200);
  if (write(*(int *)arg, "pppppppp", 8) != 8) abort();
  return NULL;
}

// All kinds of descriptors in one set.
static void mixture_server(int fd) {
  touch(fd, 0);
  hear('b');
  put(fd, "x", 1);
  tell('b');
  get_eof(fd);
}
static void mixture_client(int fd) {
  int pipes[2], unused_port, l = listener(&unused_port), event = eventfd(0, 0), set = create();
  struct epoll_event got[8];
  pthread_t thread;
  touch(fd, 1);
  EQ(pipe(pipes), 0);
  EQ(put_in(set, fd, EPOLLIN), 0);
  EQ(put_in(set, pipes[0], EPOLLIN), 0);
  EQ(put_in(set, l, EPOLLIN), 0);
  EQ(put_in(set, event, EPOLLIN), 0);
  EQ(repoll_wait(set, got, 8, 0), 0);
  EQ(pthread_create(&thread, NULL, write_later, &pipes[1]), 0);
  double t = now();
  EQ(one(set, pipes[0], 10000), EPOLLIN);
  took(t, 0.1, 5);
  EQ(pthread_join(thread, NULL), 0);
  EQ(pthread_create(&thread, NULL, write_later, &event), 0);
  char buf[8];
  EQ(read(pipes[0], buf, 8), 8);
  EQ(one(set, event, 10000), EPOLLIN);
  EQ(pthread_join(thread, NULL), 0);
  tell('b');
  hear('b');
  // All that is ready comes, in as many calls as it takes. (The byte may be on its way still.)
  unsigned seen = 0;
  t = now();
  while (seen != 3) {
    took(t, 0, 10);
    int n = repoll_wait(set, got, 1, 1000);
    EQ(n, 1);
    unsigned which = (unsigned)got[0].data.u64;
    CHECK(which == (unsigned)fd || which == (unsigned)event);
    seen |= which == (unsigned)fd ? 1 : 2;
  }
  for (int n = 0, i = 0; n != 2; i++) {
    n = repoll_wait(set, got, 8, 1000);
    CHECK(n > 0 && i < 100);
  }
  // A set in a set, and in rpoll.
  struct pollfd p = {set, POLLIN, 0};
  EQ(rpoll(&p, 1, 1000), 1);
  EQ(p.revents, POLLIN);
  int outer = create();
  EQ(put_in(outer, set, EPOLLIN), 0);
  EQ(one(outer, set, 1000), EPOLLIN);
  EQ(read(event, buf, 8), 8);
  get(fd, buf, 1);
  EQ(one(outer, set, 50), 0);
  EQ(rpoll(&p, 1, 50), 0);
  // A connection of one's own, and what the listener has.
  struct sockaddr_storage a;
  socklen_t len = address(&a, unused_port);
  int mine = rsocket(family, SOCK_STREAM, 0);
  EQ(rconnect(mine, (struct sockaddr *)&a, len), 0);
  EQ(one(outer, set, 10000), EPOLLIN);
  EQ(one(set, l, 10000), EPOLLIN);
  int theirs = raccept(l, NULL, NULL);
  CHECK(theirs >= 0);
  // As long as it attaches, a set around the set may be woken for nothing.
  put(mine, "p", 1);
  get(theirs, buf, 1);
  EQ(put_in(set, theirs, EPOLLIN), 0);
  EQ(one(outer, set, 50), 0);
  put(mine, "q", 1);
  EQ(rpoll(&p, 1, 10000), 1);
  EQ(one(outer, set, 10000), EPOLLIN);
  EQ(one(set, theirs, 10000), EPOLLIN);
}

// Listening, connecting without blocking, being refused: said at once.
static void meeting_server(int l) {
  int set = create();
  EQ(put_in(set, l, EPOLLIN), 0);
  tell('p');
  double t = now();
  EQ(one(set, l, 20000), EPOLLIN);
  took(t, 0.1, 5);
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  touch(fd, 0);
  get_eof(fd);
}
static void meeting_client(int fd) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  int set = create(), e;
  hear('p');
  nap(200);
  fd = rsocket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  // It is a member before it is connected, which Linux calls hung up.
  EQ(put_in(set, fd, EPOLLOUT | EPOLLONESHOT), 0);
  EQ(one(set, fd, 0) & ~(unsigned)EPOLLOUT, EPOLLHUP);
  FAILS(rconnect(fd, (struct sockaddr *)&a, len), EINPROGRESS);
  EQ(change(set, fd, EPOLLOUT), 0);
  EQ(one(set, fd, 20000), EPOLLOUT);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  nonblock(fd, 0);
  EQ(change(set, fd, EPOLLIN), 0);
  put(fd, "t", 1);
  EQ(one(set, fd, 20000), EPOLLIN);
  char c;
  get(fd, &c, 1);
  EQ(rclose(fd), 0);
  int nobody, l = listener(&nobody);
  EQ(rclose(l), 0);
  len = address(&a, nobody);
  fd = rsocket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  e = rconnect(fd, (struct sockaddr *)&a, len) == 0 ? 0 : errno;
  EQ(e, EINPROGRESS);
  EQ(put_in(set, fd, EPOLLOUT), 0);
  CHECK(one(set, fd, 20000) & EPOLLERR);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), ECONNREFUSED);
}

enum { MANY = 50, ROUNDS = 30, PIECE = 3000 };

static void many_server(int l) {
  static char buf[PIECE];
  static struct epoll_event got[16];
  int set = create(), open = 0, served = 0;
  nonblock(l, 1);
  EQ(put_in(set, l, EPOLLIN), 0);
  while (served < MANY || open) {
    int n = repoll_wait(set, got, 16, 20000);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
      int fd = (int)(unsigned)got[i].data.u64;
      if (fd == l) {
        while ((fd = raccept(l, NULL, NULL)) >= 0) {
          nonblock(fd, 1);
          // Half of them by edges.
          EQ(put_in(set, fd, EPOLLIN | (served % 2 ? EPOLLET : 0)), 0);
          open++, served++;
        }
        CHECK(errno == EAGAIN);
        continue;
      }
      for (;;) {
        ssize_t len = rrecv(fd, buf, sizeof buf, 0);
        if (len < 0) {
          CHECK(errno == EAGAIN);
          break;
        }
        if (len == 0) {
          EQ(rclose(fd), 0);
          open--;
          break;
        }
        nonblock(fd, 0);
        put(fd, buf, len);
        nonblock(fd, 1);
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

// A waiter hears that the peer was killed.
static void killed_server(int fd) {
  int set = create();
  char c;
  get(fd, &c, 1);
  EQ(put_in(set, fd, EPOLLIN | EPOLLRDHUP), 0);
  tell('k');
  uint32_t seen = one(set, fd, 20000);
  CHECK(seen & EPOLLIN && seen & (EPOLLRDHUP | EPOLLHUP));
  ssize_t n = rrecv(fd, &c, 1, 0);
  CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
}
static void killed_client(int fd) {
  pid_t child = fork();
  if (child == 0) {
    fd = dial();
    put(fd, "x", 1);
    pause();
  }
  hear('k');
  nap(100);
  EQ(kill(child, SIGKILL), 0);
  int status;
  EQ(waitpid(child, &status, 0), child);
}
static void killed_server_raw(int l) {
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  killed_server(fd);
}

const rs_case CASES[] = {
    {"closing", closing_solo, NULL, SOLO},
    {"mixture", mixture_server, mixture_client, 0},
    {"meeting", meeting_server, meeting_client, RAW},
    {"many", many_server, many_client, RAW},
    {"peer_killed", killed_server_raw, killed_client, RAW},
    {0},
};
