// epoll registrations are the file's, under the number that they were made with. They live on when
// that number is closed or given away, as long as the file has another name. A member is registered
// before the connection has reason to leave TCP, and after it.
#include "pair.h"

enum { ROUNDS = 48, PART = 1024 };
static void live(int fd, int starts) {
  char b[PART], c[PART];
  for (int i = 0; i < ROUNDS; i++) {
    fill(b, sizeof b, 4, i * sizeof b);
    if (starts) put(fd, b, sizeof b), get(fd, c, sizeof c);
    else get(fd, c, sizeof c), put(fd, b, sizeof b);
    verify(c, sizeof c, 4, i * sizeof c);
  }
}
// The peer sends so many bytes, as often as it is told.
static void client(int fd) {
  live(fd, 1);
  for (long n; (n = hear_int()) > 0;) {
    char b[100];
    fill(b, n, 6, 0);
    put(fd, b, n);
    tell('s');
  }
  get_eof(fd);
}
static void send_some(int n) {
  tell_int(n);
  hear('s');
}
static void took(int fd, int n) {
  char b[100];
  get(fd, b, n);
  verify(b, n, 6, 0);
}

enum { OLD = 71, NEW = 72 };
static int ctl(int ep, int op, int fd, unsigned events, int data) {
  struct epoll_event e = {.events = events, .data.u64 = data};
  return epoll_ctl(ep, op, fd, &e);
}
// What one wait says: data, and conditions above it; 0 if nothing.
static int seen(int ep, int ms) {
  struct epoll_event e[4];
  int n = epoll_wait(ep, e, 4, ms < 1000 ? ms : patience(ms));
  CHECK(n == 0 || n == 1);
  return n ? (int)(e[0].data.u64 | e[0].events << 8) : 0;
}
#define SAID(data, events) ((data) | (int)(events) << 8)

typedef struct {
  int fd, number, dup, ep;
} outlived;
enum { FIRST, THEN };
// A connection that is registered, has another name, and has lost the one that it was registered
// under.
static outlived begin(int fd, unsigned events, int when) {
  outlived o = {fd, fd, -1, epoll_create1(0)};
  CHECK(o.ep >= 0);
  if (when == FIRST) CHECK(!ctl(o.ep, EPOLL_CTL_ADD, fd, events, OLD));
  live(fd, 0);
  if (when == THEN) CHECK(!ctl(o.ep, EPOLL_CTL_ADD, fd, events, OLD));
  if (events & EPOLLET || when == FIRST) while (seen(o.ep, 0)) {}
  if (events & EPOLLONESHOT) CHECK(!ctl(o.ep, EPOLL_CTL_MOD, fd, events, OLD));
  o.dup = dup(fd);
  CHECK(o.dup >= 0 && !close(fd));
  o.fd = o.dup;
  return o;
}
static void end(outlived o) {
  char b[100];
  // What is unread would reset the connection.
  while (recv(o.fd, b, sizeof b, MSG_DONTWAIT) > 0) {}
  tell_int(0);
  close(o.fd);
  EQ(seen(o.ep, 20), 0);
  close(o.ep);
}

static void level(int fd, int when) {
  outlived o = begin(fd, EPOLLIN, when);
  EQ(seen(o.ep, 20), 0);
  for (int i = 0; i < 3; i++) {
    send_some(5);
    EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
    EQ(seen(o.ep, 0), SAID(OLD, EPOLLIN));
    took(o.fd, 5);
    EQ(seen(o.ep, 0), 0);
  }
  FAILS(ctl(o.ep, EPOLL_CTL_MOD, o.number, EPOLLIN, NEW), EBADF);
  FAILS(ctl(o.ep, EPOLL_CTL_DEL, o.number, 0, 0), EBADF);
  FAILS(ctl(o.ep, EPOLL_CTL_MOD, o.fd, EPOLLIN, NEW), ENOENT);
  // A member of its own under the other name.
  CHECK(!ctl(o.ep, EPOLL_CTL_ADD, o.fd, EPOLLOUT, NEW));
  EQ(seen(o.ep, 0), SAID(NEW, EPOLLOUT));
  CHECK(!ctl(o.ep, EPOLL_CTL_DEL, o.fd, 0, 0));
  send_some(2);
  EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
  end(o);
}
static void level_first(int fd) { level(fd, FIRST); }
static void level_then(int fd) { level(fd, THEN); }

static void sleeping(int fd) {
  outlived o = begin(fd, EPOLLIN, THEN);
  for (int i = 0; i < 3; i++) {
    tell_int(5);
    EQ(seen(o.ep, 5000), SAID(OLD, EPOLLIN));
    hear('s');
    took(o.fd, 5);
  }
  end(o);
}

static void edge(int fd, int when) {
  outlived o = begin(fd, EPOLLIN | EPOLLET, when);
  EQ(seen(o.ep, 20), 0);
  for (int i = 0; i < 3; i++) {
    send_some(5);
    EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
    EQ(seen(o.ep, 20), 0);
    took(o.fd, i < 2 ? 5 : 4);
    EQ(seen(o.ep, 0), 0);
  }
  end(o);
}
static void edge_first(int fd) { edge(fd, FIRST); }
static void edge_then(int fd) { edge(fd, THEN); }

static void oneshot(int fd, int when) {
  outlived o = begin(fd, EPOLLIN | EPOLLONESHOT, when);
  send_some(5);
  EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
  EQ(seen(o.ep, 20), 0);
  EQ(dup2(o.fd, o.number), o.number);
  CHECK(!ctl(o.ep, EPOLL_CTL_MOD, o.number, EPOLLIN | EPOLLONESHOT, NEW));
  EQ(seen(o.ep, 2000), SAID(NEW, EPOLLIN));
  EQ(seen(o.ep, 20), 0);
  close(o.number);
  took(o.fd, 5);
  send_some(1);
  EQ(seen(o.ep, 20), 0);
  end(o);
}
static void oneshot_first(int fd) { oneshot(fd, FIRST); }
static void oneshot_then(int fd) { oneshot(fd, THEN); }

// Something else has the number, and is registered under it beside the connection.
static void replaced(int fd, int when) {
  int p[2];
  outlived o = begin(fd, EPOLLIN, when);
  CHECK(!pipe(p));
  CHECK(p[0] == o.number || dup2(p[0], o.number) == o.number);
  FAILS(ctl(o.ep, EPOLL_CTL_MOD, o.number, EPOLLIN, NEW), ENOENT);
  FAILS(ctl(o.ep, EPOLL_CTL_DEL, o.number, 0, 0), ENOENT);
  CHECK(!ctl(o.ep, EPOLL_CTL_ADD, o.number, EPOLLIN, NEW));
  EQ(seen(o.ep, 20), 0);
  send_some(3);
  EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
  took(o.fd, 3);
  EQ(write(p[1], "x", 1), 1);
  EQ(seen(o.ep, 2000), SAID(NEW, EPOLLIN));
  CHECK(!ctl(o.ep, EPOLL_CTL_MOD, o.number, EPOLLIN | EPOLLET, NEW));
  EQ(seen(o.ep, 2000), SAID(NEW, EPOLLIN));
  CHECK(!ctl(o.ep, EPOLL_CTL_DEL, o.number, 0, 0));
  FAILS(ctl(o.ep, EPOLL_CTL_DEL, o.number, 0, 0), ENOENT);
  send_some(3);
  EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
  end(o);
}
static void replaced_first(int fd) { replaced(fd, FIRST); }
static void replaced_then(int fd) { replaced(fd, THEN); }

// dup2 puts something else there without a close.
static void dup2_over(int fd) {
  int p[2], ep = epoll_create1(0), other;
  CHECK(!pipe(p));
  live(fd, 0);
  CHECK(!ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, OLD));
  CHECK((other = dup(fd)) >= 0);
  EQ(dup2(p[0], fd), fd);
  FAILS(ctl(ep, EPOLL_CTL_DEL, fd, 0, 0), ENOENT);
  send_some(3);
  EQ(seen(ep, 2000), SAID(OLD, EPOLLIN));
  // And the file itself again: it is found, and was never gone.
  EQ(dup2(other, fd), fd);
  FAILS(ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, NEW), EEXIST);
  EQ(dup2(other, fd), fd);
  CHECK(!ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, NEW));
  EQ(seen(ep, 2000), SAID(NEW, EPOLLIN));
  close(other);
  EQ(seen(ep, 2000), SAID(NEW, EPOLLIN));
  took(fd, 3);
  outlived o = {fd, fd, -1, ep};
  end(o);
}

// The number names the file again.
static void again(int fd, int when) {
  outlived o = begin(fd, EPOLLIN, when);
  EQ(dup2(o.fd, o.number), o.number);
  FAILS(ctl(o.ep, EPOLL_CTL_ADD, o.number, EPOLLIN, NEW), EEXIST);
  send_some(3);
  EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
  CHECK(!ctl(o.ep, EPOLL_CTL_MOD, o.number, EPOLLIN | EPOLLOUT, NEW));
  EQ(seen(o.ep, 2000), SAID(NEW, EPOLLIN | EPOLLOUT));
  took(o.fd, 3);
  EQ(seen(o.ep, 0), SAID(NEW, EPOLLOUT));
  CHECK(!ctl(o.ep, EPOLL_CTL_DEL, o.number, 0, 0));
  FAILS(ctl(o.ep, EPOLL_CTL_DEL, o.number, 0, 0), ENOENT);
  close(o.number);
  send_some(3);
  EQ(seen(o.ep, 20), 0);
  EQ(dup2(o.fd, o.number), o.number);
  CHECK(!ctl(o.ep, EPOLL_CTL_ADD, o.number, EPOLLIN, NEW));
  EQ(seen(o.ep, 2000), SAID(NEW, EPOLLIN));
  // Lost and found by turns.
  for (int i = 0; i < 5; i++) {
    close(o.number);
    EQ(seen(o.ep, 0), SAID(NEW, EPOLLIN));
    EQ(dup2(o.fd, o.number), o.number);
    CHECK(!ctl(o.ep, EPOLL_CTL_MOD, o.number, EPOLLIN, NEW));
  }
  close(o.number);
  end(o);
}
static void again_first(int fd) { again(fd, FIRST); }
static void again_then(int fd) { again(fd, THEN); }

// Names come and go; the last one ends it, and the connection.
static void many_names(int fd) {
  outlived o = begin(fd, EPOLLIN, THEN);
  for (int i = 0; i < 4; i++) {
    int next = fcntl(o.fd, F_DUPFD, 20 + i);
    CHECK(next >= 0 && !close(o.fd));
    o.fd = next;
    send_some(3);
    EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
    took(o.fd, 3);
    EQ(seen(o.ep, 0), 0);
  }
  end(o);
}
static void two_sets(int fd) {
  outlived o;
  int other = epoll_create1(0);
  CHECK(!ctl(other, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET, NEW));
  o = begin(fd, EPOLLIN, FIRST);
  while (seen(other, 0)) {}
  for (int i = 0; i < 3; i++) {
    send_some(3);
    EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
    EQ(seen(other, 2000), SAID(NEW, EPOLLIN));
    EQ(seen(other, 0), 0);
    took(o.fd, 3);
    EQ(seen(o.ep, 0), 0);
  }
  end(o);
  EQ(seen(other, 0), 0);
}
static void two_sets_then(int fd) {
  int other = epoll_create1(0), more;
  live(fd, 0);
  CHECK(!ctl(other, EPOLL_CTL_ADD, fd, EPOLLIN, OLD));
  CHECK((more = dup(fd)) >= 0);
  CHECK(!ctl(other, EPOLL_CTL_ADD, more, EPOLLIN | EPOLLONESHOT, NEW));
  close(fd);
  send_some(3);
  int both = 0;
  for (int i = 0; i < 100 && both != 3; i++) {
    struct epoll_event e[2];
    int n = epoll_wait(other, e, 2, 100);
    while (n-- > 0) both |= e[n].data.u64 == OLD ? 1 : 2;
  }
  EQ(both, 3);
  EQ(seen(other, 0), SAID(OLD, EPOLLIN));
  CHECK(!ctl(other, EPOLL_CTL_DEL, more, 0, 0));
  EQ(seen(other, 0), SAID(OLD, EPOLLIN));
  outlived o = {more, fd, -1, other};
  end(o);
}

// A child closes what it has inherited: its parent's registration is not its business.
static void child_closes(int fd, int when) {
  outlived o = begin(fd, EPOLLIN, when);
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    close(o.fd);
    close(o.ep);
    _exit(0);
  }
  EQ(exit_status(child), 0);
  send_some(3);
  EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
  took(o.fd, 3);
  EQ(seen(o.ep, 20), 0);
  end(o);
}
static void child_closes_first(int fd) { child_closes(fd, FIRST); }
static void child_closes_then(int fd) { child_closes(fd, THEN); }
static void child_loses_number(int fd) {
  int ep = epoll_create1(0), other;
  live(fd, 0);
  CHECK(!ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, OLD));
  CHECK((other = dup(fd)) >= 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (!child) {
    close(fd);
    close(other);
    _exit(0);
  }
  EQ(exit_status(child), 0);
  for (int i = 0; i < 2; i++) {
    send_some(3);
    EQ(seen(ep, 2000), SAID(OLD, EPOLLIN));
    took(fd, 3);
    EQ(seen(ep, 20), 0);
  }
  CHECK(!ctl(ep, EPOLL_CTL_MOD, fd, EPOLLIN, NEW));
  close(other);
  outlived o = {fd, fd, -1, ep};
  end(o);
}

// Back on TCP, before the number is closed and after it: what is sent, or all.
static void back(int fd) {
  int n = 8 | 16;  // SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &n, sizeof n));
}
static void returned(int fd, int when, unsigned events) {
  outlived o;
  if (when == FIRST) {
    int spare = dup(fd);
    o = begin(fd, events, THEN);
    close(spare);
  } else {
    o = begin(fd, events, FIRST);
  }
  back(o.fd);
  for (int i = 0; i < 4; i++) {
    send_some(3);
    EQ(seen(o.ep, 2000), SAID(OLD, EPOLLIN));
    EQ(seen(o.ep, 20), events & EPOLLET ? 0 : SAID(OLD, EPOLLIN));
    took(o.fd, 3);
    EQ(seen(o.ep, 20), 0);
  }
  EQ(dup2(o.fd, o.number), o.number);
  FAILS(ctl(o.ep, EPOLL_CTL_ADD, o.number, events, NEW), EEXIST);
  CHECK(!ctl(o.ep, EPOLL_CTL_MOD, o.number, events, NEW));
  send_some(3);
  EQ(seen(o.ep, 2000), SAID(NEW, EPOLLIN));
  CHECK(!ctl(o.ep, EPOLL_CTL_DEL, o.number, 0, 0));
  EQ(seen(o.ep, 20), 0);
  close(o.number);
  end(o);
}
static void returned_level(int fd) { returned(fd, FIRST, EPOLLIN); }
static void returned_edge(int fd) { returned(fd, FIRST, EPOLLIN | EPOLLET); }
static void returned_level_first(int fd) { returned(fd, THEN, EPOLLIN); }
static void closed_after_return(int fd) {
  int ep = epoll_create1(0), other;
  live(fd, 0);
  CHECK(!ctl(ep, EPOLL_CTL_ADD, fd, EPOLLIN, OLD));
  back(fd);
  send_some(3);
  EQ(seen(ep, 2000), SAID(OLD, EPOLLIN));
  took(fd, 3);
  CHECK((other = dup(fd)) >= 0 && !close(fd));
  for (int i = 0; i < 3; i++) {
    send_some(3);
    EQ(seen(ep, 2000), SAID(OLD, EPOLLIN));
    took(other, 3);
    EQ(seen(ep, 20), 0);
  }
  outlived o = {other, fd, -1, ep};
  end(o);
}

const test_case CASES[] = {
#define CASE(name) {#name, name, client, COLD}
    CASE(level_first),
    CASE(level_then),
    CASE(sleeping),
    CASE(edge_first),
    CASE(edge_then),
    CASE(oneshot_first),
    CASE(oneshot_then),
    CASE(replaced_first),
    CASE(replaced_then),
    CASE(dup2_over),
    CASE(again_first),
    CASE(again_then),
    CASE(many_names),
    CASE(two_sets),
    CASE(two_sets_then),
    CASE(child_closes_first),
    CASE(child_closes_then),
    CASE(child_loses_number),
    {"returned_level", returned_level, client, COLD | NOSHM},
    {"returned_edge", returned_edge, client, COLD | NOSHM},
    {"returned_level_first", returned_level_first, client, COLD | NOSHM},
    {"closed_after_return", closed_after_return, client, COLD | NOSHM},
    {0},
};
