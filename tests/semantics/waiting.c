// select, pselect, poll, ppoll and epoll: what is ready, when, how often, and in what shape.
#include "sem.h"

#include <sys/eventfd.h>

static void echo_server(int fd) {
  char b[70000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
// The server follows one-letter orders: a digit n means "send n bytes", 'q' ends.
static void orders_server(int fd) {
  static const char text[] = "0123456789";
  for (;;) {
    char c = hear_int();
    if (c == 'q') return;
    if (c == 's') CHECK(!shutdown(fd, SHUT_WR));
    else put(fd, text, c - '0');
    tell('d');
  }
}
static void order(char c) {
  tell_int(c);
  if (c != 'q') hear('d');
}
static void select_c(int fd) {
  fd_set r, w, x;
  struct timeval tv = {5, 0};
  char b[20];
  FD_ZERO(&r);
  FD_ZERO(&w);
  FD_ZERO(&x);
  FD_SET(fd, &r), FD_SET(fd, &w), FD_SET(fd, &x);
  EQ(select(fd + 1, &r, &w, &x, &tv), 1);
  CHECK(!FD_ISSET(fd, &r) && FD_ISSET(fd, &w) && !FD_ISSET(fd, &x));
  order('5');
  FD_SET(fd, &r);
  EQ(select(fd + 1, &r, NULL, NULL, NULL), 1);
  CHECK(FD_ISSET(fd, &r));
  FD_SET(fd, &w), FD_SET(fd, &x);
  EQ(select(fd + 1, &r, &w, &x, &tv), 2);
  EQ(recv(fd, b, 20, 0), 5);
  struct timespec ts = {0, 10000000};
  EQ(pselect(fd + 1, &r, NULL, NULL, &ts, NULL), 0);
  CHECK(!FD_ISSET(fd, &r));
  // Beside other descriptors.
  int p[2];
  CHECK(!pipe(p));
  order('3');
  FD_ZERO(&r);
  FD_SET(fd, &r), FD_SET(p[0], &r);
  int top = fd > p[0] ? fd : p[0];
  EQ(select(top + 1, &r, NULL, NULL, NULL), 1);
  CHECK(FD_ISSET(fd, &r) && !FD_ISSET(p[0], &r));
  CHECK(write(p[1], "x", 1) == 1);
  FD_SET(fd, &r), FD_SET(p[0], &r);
  EQ(select(top + 1, &r, NULL, NULL, NULL), 2);
  get(fd, b, 3);
  FD_SET(fd, &r), FD_SET(p[0], &r);
  EQ(select(top + 1, &r, NULL, NULL, NULL), 1);
  CHECK(!FD_ISSET(fd, &r) && FD_ISSET(p[0], &r));
  FD_ZERO(&r);
  FD_SET(p[1], &r);
  close(p[1]);
  FAILS(select(p[1] + 1, &r, NULL, NULL, &tv), EBADF);
  order('s');
  FD_ZERO(&r);
  FD_SET(fd, &r);
  EQ(select(fd + 1, &r, NULL, NULL, NULL), 1);
  order('q');
}
static void poll_c(int fd) {
  int p[2];
  char b[20];
  CHECK(!pipe(p));
  struct pollfd v[4] = {{fd, POLLIN | POLLOUT, 7}, {-1, POLLIN, 7}, {p[0], POLLIN, 7}, {fd, POLLIN, 7}};
  EQ(poll(v, 4, 1000), 1);
  CHECK(v[0].revents == POLLOUT && !v[1].revents && !v[2].revents && !v[3].revents);
  order('5');
  v[0].events = POLLIN;
  EQ(poll(v, 4, 2000), 2);  // the same descriptor twice counts twice
  CHECK(v[0].revents == POLLIN && v[3].revents == POLLIN);
  EQ(ready(fd, POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM, 0), POLLIN | POLLRDNORM | POLLOUT | POLLWRNORM);
  EQ(ready(fd, POLLPRI, 0), 0);
  get(fd, b, 5);
  struct timespec ts = {0, 1000000};
  EQ(ppoll(v, 4, &ts, NULL), 0);
  CHECK(write(p[1], "x", 1) == 1);
  EQ(poll(v, 4, -1), 1);
  CHECK(v[2].revents == POLLIN);
  v[1].fd = 9999;
  EQ(poll(v, 4, 1000), 2);
  CHECK(v[1].revents == POLLNVAL);
  EQ(poll(NULL, 0, 1), 0);
  order('q');
}
// A sleeper is woken by data, in every kind of sleep.
static void late_server(int fd) {
  for (int i = 0; i < 5; i++) {
    hear('w');
    nap(40);
    put(fd, "x", 1);
  }
  hear('q');
}
static void woken(double t0) { CHECK(now() - t0 < most_at_once()); }
static void wakes(int fd) {
  char c;
  double t = now();
  tell('w');
  EQ(ready(fd, POLLIN, 5000), POLLIN);
  get(fd, &c, 1);
  tell('w');
  fd_set r;
  FD_ZERO(&r);
  FD_SET(fd, &r);
  EQ(select(fd + 1, &r, NULL, NULL, NULL), 1);
  get(fd, &c, 1);
  tell('w');
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN, .data.fd = 42};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  EQ(epoll_wait(ep, &e, 1, -1), 1);
  CHECK(e.data.fd == 42);
  get(fd, &c, 1);
  tell('w');  // a poll of the epoll descriptor
  EQ(ready(ep, POLLIN, 5000), POLLIN);
  get(fd, &c, 1);
  EQ(ready(ep, POLLIN, 0), 0);
  tell('w');
  int outer = epoll_create1(0);  // an epoll set in an epoll set
  e.data.fd = 43;
  CHECK(!epoll_ctl(outer, EPOLL_CTL_ADD, ep, &e));
  EQ(epoll_wait(outer, &e, 1, 5000), 1);
  CHECK(e.data.fd == 43);
  EQ(epoll_wait(ep, &e, 1, 0), 1);
  get(fd, &c, 1);
  woken(t);
  tell('q');
}
static int ep_one(int ep, int ms) {
  struct epoll_event e[4];
  int n = epoll_wait(ep, e, 4, ms < 1000 ? ms : patience(ms));
  if (n != 0 && n != 1)
    FAIL("%d events: %x of %d, %x of %d", n, e[0].events, e[0].data.fd, e[1].events, e[1].data.fd);
  return n ? (int)e[0].events : 0;
}
static void arm(int ep, int op, int fd, uint32_t ev) {
  struct epoll_event e = {.events = ev, .data.fd = fd};
  CHECK(!epoll_ctl(ep, op, fd, &e));
}
static void level(int fd) {
  char b[20];
  int ep = epoll_create1(0);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLIN);
  EQ(ep_one(ep, 10), 0);
  order('5');
  for (int i = 0; i < 3; i++) EQ(ep_one(ep, 2000), EPOLLIN);
  get(fd, b, 2);
  EQ(ep_one(ep, 0), EPOLLIN);
  get(fd, b, 3);
  EQ(ep_one(ep, 10), 0);
  arm(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLOUT);
  for (int i = 0; i < 3; i++) EQ(ep_one(ep, 1000), EPOLLOUT);
  order('1');
  EQ(ready(fd, POLLIN, 2000), POLLIN);
  EQ(ep_one(ep, 1000), EPOLLIN | EPOLLOUT);  // one event for one member
  arm(ep, EPOLL_CTL_MOD, fd, 0);
  EQ(ep_one(ep, 10), 0);
  order('q');
}
static void edge(int fd) {
  char b[20];
  int ep = epoll_create1(0);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
  EQ(ep_one(ep, 10), 0);
  order('5');
  EQ(ep_one(ep, 2000), EPOLLIN);
  EQ(ep_one(ep, 20), 0);  // once for what has come
  get(fd, b, 2);
  EQ(ep_one(ep, 20), 0);  // reading a part is no new edge
  order('1');
  EQ(ep_one(ep, 2000), EPOLLIN);  // more data is
  get(fd, b, 4);
  order('2');
  EQ(ep_one(ep, 2000), EPOLLIN);
  get(fd, b, 2);
  EQ(ep_one(ep, 10), 0);
  // MOD tells again what is so.
  order('2');
  EQ(ep_one(ep, 2000), EPOLLIN);
  arm(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
  EQ(ep_one(ep, 1000), EPOLLIN);
  EQ(ep_one(ep, 10), 0);
  get(fd, b, 2);
  order('s');
  EQ(ep_one(ep, 2000), EPOLLIN);
  get_eof(fd);
  EQ(ep_one(ep, 10), 0);
  order('q');
}
// An option that the library cannot know: whatever carried the bytes before it, the kernel does
// from here on. An edge is still told once, and setting the member again tells it once more.
static void edge_after_odd_option(int fd) {
  char b[20];
  int one = 1, ep = epoll_create1(0);
  FAILS(setsockopt(fd, 999, 1, &one, sizeof one), ENOPROTOOPT);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
  EQ(ep_one(ep, 10), 0);
  for (int i = 0; i < 100; i++) {
    order('5');
    EQ(ep_one(ep, 2000), EPOLLIN);
    arm(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLET);
    EQ(ep_one(ep, 1000), EPOLLIN);
    for (int k = 0; k < 10; k++) EQ(ep_one(ep, 0), 0);
    get(fd, b, 5);
    EQ(ep_one(ep, i % 3), 0);
  }
  order('q');
}
static void edge_out(int fd) {
  char b[20000] = "";
  int ep = epoll_create1(0);
  nonblock(fd, 1);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLOUT | EPOLLET);
  EQ(ep_one(ep, 1000), EPOLLOUT);
  EQ(ep_one(ep, 10), 0);
  uint64_t n = 0;
  for (int i = 0; i < 4; i++) {
    // Room that comes late is an edge that is passed over here; what is refused after that must be
    // told when there is more.
    while (ep_one(ep, 0))
      ;
    ssize_t k = send(fd, b, sizeof b, 0);
    if (k > 0) n += k, i = 0;
    else if (i < 3) nap(patience(5));
  }
  // Tell the reader to empty it: there must be an edge, or the writer would hang for ever.
  tell('r');
  tell_int(n);
  EQ(ep_one(ep, 5000), EPOLLOUT);
  CHECK(send(fd, "x", 1, 0) == 1);
  hear('d');
}
static void edge_out_server(int fd) {
  static char b[100000];
  hear('r');
  long n = hear_int() + 1;
  while (n) {
    ssize_t k = recv(fd, b, (size_t)n < sizeof b ? (size_t)n : sizeof b, 0);
    CHECK(k > 0);
    n -= k;
  }
  tell('d');
}
static void oneshot(int fd) {
  char b[20];
  int ep = epoll_create1(0);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
  order('5');
  EQ(ep_one(ep, 2000), EPOLLIN);
  order('1');
  EQ(ep_one(ep, 30), 0);  // disarmed
  arm(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
  EQ(ep_one(ep, 1000), EPOLLIN);
  get(fd, b, 6);
  arm(ep, EPOLL_CTL_MOD, fd, EPOLLIN | EPOLLONESHOT);
  EQ(ep_one(ep, 10), 0);
  order('3');
  EQ(ep_one(ep, 2000), EPOLLIN);
  arm(ep, EPOLL_CTL_MOD, fd, EPOLLOUT | EPOLLONESHOT);
  EQ(ep_one(ep, 1000), EPOLLOUT);
  EQ(ep_one(ep, 10), 0);
  order('q');
}
static void members(int fd) {
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN};
  FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e), ENOENT);
  FAILS(epoll_ctl(ep, EPOLL_CTL_DEL, fd, &e), ENOENT);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLIN);
  FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e), EEXIST);
  FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, ep, &e), EINVAL);
  FAILS(epoll_ctl(fd, EPOLL_CTL_ADD, fd, &e), EINVAL);
  FAILS(epoll_ctl(ep, EPOLL_CTL_ADD, 9999, &e), EBADF);
  FAILS(epoll_wait(fd, &e, 1, 0), EINVAL);
  FAILS(epoll_wait(ep, &e, 0, 0), EINVAL);
  order('5');
  EQ(ep_one(ep, 2000), EPOLLIN);
  CHECK(!epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
  EQ(ep_one(ep, 20), 0);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLET);
  EQ(ep_one(ep, 1000), EPOLLIN);  // added while ready
  // A duplicate is a member of its own.
  int d = dup(fd);
  arm(ep, EPOLL_CTL_ADD, d, EPOLLIN);
  EQ(ep_one(ep, 1000), EPOLLIN);
  CHECK(!epoll_ctl(ep, EPOLL_CTL_DEL, d, NULL));
  close(d);
  // Closing the last descriptor takes it out of the set.
  int ep2 = epoll_create1(0), copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
  arm(ep2, EPOLL_CTL_ADD, copy, EPOLLIN);
  EQ(ep_one(ep2, 1000), EPOLLIN);
  order('q');
  close(fd);
  EQ(ep_one(ep2, 100), EPOLLIN);
  close(copy);
  EQ(ep_one(ep2, 20), 0);
  EQ(ep_one(ep, 20), 0);
}
// Leaves and joins the set again and again while data flows.
static void churn(int fd) {
  int ep = epoll_create1(0);
  uint64_t sent = 0, got = 0, r = 3, total = 3 << 20;
  static char b[20000];
  nonblock(fd, 1);
  int in = 0;
  for (long step = 0; got < total; step++) {
    uint32_t ev = EPOLLIN | (sent < total ? EPOLLOUT : 0) | (rnd(&r) % 2 ? EPOLLET : 0) | (rnd(&r) % 3 ? 0 : EPOLLONESHOT);
    if (in && rnd(&r) % 3 == 0) {
      CHECK(!epoll_ctl(ep, EPOLL_CTL_DEL, fd, NULL));
      in = 0;
    }
    arm(ep, in ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, fd, ev);
    in = 1;
    struct epoll_event e[3];
    int n = epoll_wait(ep, e, 3, 10000);
    if (n != 1) FAIL("step %ld: %d events, sent %llu got %llu", step, n, (unsigned long long)sent, (unsigned long long)got);
    CHECK(e[0].data.fd == fd && !(e[0].events & ~(ev | EPOLLERR | EPOLLHUP)));
    if (e[0].events & EPOLLIN) {
      ssize_t k = recv(fd, b, 1 + rnd(&r) % sizeof b, 0);
      CHECK(k > 0);
      verify(b, k, 9, got);
      got += k;
    }
    if (e[0].events & EPOLLOUT) {
      size_t m = 1 + rnd(&r) % sizeof b;
      if (m > total - sent) m = total - sent;
      fill(b, m, 9, sent);
      ssize_t k = send(fd, b, m, 0);
      CHECK(k > 0 || errno == EAGAIN);
      if (k > 0) sent += k;
    }
  }
}
// A set that was made and filled before there was a connection.
static void before_connect(int fd) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, ctx.port);
  int ep = epoll_create1(0), out;
  (void)fd;
  fd = socket(ctx.family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  arm(ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLOUT | EPOLLET);
  EQ(ep_one(ep, 0), EPOLLOUT | EPOLLHUP);
  out = connect(fd, (void *)&a, n);
  CHECK(out == 0 || errno == EINPROGRESS);
  EQ(ep_one(ep, 2000), EPOLLOUT);
  static char b[8192];
  uint64_t sent = 0, got = 0, total = 2 << 20;
  // An event loop as programs write them: read until EAGAIN, write until EAGAIN, then wait for an
  // edge.
  while (got < total) {
    ssize_t k = 0;
    while (sent < total) {
      fill(b, sizeof b, 4, sent);
      k = send(fd, b, sizeof b < total - sent ? sizeof b : total - sent, 0);
      if (k < 0) break;
      sent += k;
    }
    CHECK(k >= 0 || errno == EAGAIN);
    while ((k = recv(fd, b, sizeof b, 0)) > 0) verify(b, k, 4, got), got += k;
    CHECK(k < 0 && errno == EAGAIN);
    if (got < total) {
      int ev = ep_one(ep, 5000);
      if (!ev) FAIL("no edge: sent %llu got %llu", (unsigned long long)sent, (unsigned long long)got);
    }
  }
  close(fd);
}
static void accept_echo(int lfd) {
  int fd = accept(lfd, NULL, NULL);
  CHECK(fd >= 0);
  close(lfd);
  echo_server(fd);
}
// Two threads wait on one set; one event wakes one of them (EPOLLONESHOT), and no byte is lost.
static int shared_ep;
static uint64_t shared_got;
static void *shared_waiter(void *p) {
  int fd = *(int *)p;
  static __thread char b[5000];
  for (;;) {
    struct epoll_event e;
    int n = epoll_wait(shared_ep, &e, 1, 10000);
    CHECK(n == 1);
    if (__atomic_load_n(&shared_got, __ATOMIC_SEQ_CST) >= 1 << 20) return NULL;
    ssize_t k = recv(fd, b, sizeof b, MSG_DONTWAIT);
    CHECK(k > 0);
    verify(b, k, 6, shared_got);  // alone with it until it is armed again
    __atomic_add_fetch(&shared_got, k, __ATOMIC_SEQ_CST);
    arm(shared_ep, EPOLL_CTL_MOD, fd, shared_got < 1 << 20 ? EPOLLIN | EPOLLONESHOT : EPOLLOUT);
  }
}
static void shared_set(int fd) {
  pthread_t t[2];
  shared_ep = epoll_create1(0);
  arm(shared_ep, EPOLL_CTL_ADD, fd, EPOLLIN | EPOLLONESHOT);
  for (int i = 0; i < 2; i++) CHECK(!pthread_create(&t[i], NULL, shared_waiter, &fd));
  put_stream(fd, 6, 0, 1 << 20, 20000);
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
}
// A thread that went to sleep on a set, or in poll on its descriptor, before the connection came
// into it.
struct late {
  int ep, polls, n;
  struct epoll_event e;
};
static void *late_waiter(void *p) {
  struct late *l = p;
  l->n = l->polls ? ready(l->ep, POLLIN, 5000) == POLLIN : epoll_wait(l->ep, &l->e, 1, patience(5000));
  return NULL;
}
static void late_member_of(int fd, int polls, char c) {
  char b[20];
  struct late l = {.ep = epoll_create1(0), .polls = polls};
  pthread_t t;
  arm(l.ep, EPOLL_CTL_ADD, eventfd(0, 0), EPOLLIN);
  CHECK(!pthread_create(&t, NULL, late_waiter, &l));
  nap(patience(50));
  struct epoll_event e = {.events = EPOLLIN, .data.ptr = &l};
  CHECK(!epoll_ctl(l.ep, EPOLL_CTL_ADD, fd, &e));
  nap(20);
  order(c);
  pthread_join(t, NULL);
  EQ(l.n, 1);
  if (polls) EQ(epoll_wait(l.ep, &l.e, 1, 0), 1);
  if (l.e.data.ptr != &l || !(l.e.events & EPOLLIN)) FAIL("%x of %llx", l.e.events, (unsigned long long)l.e.data.u64);
  if (c == 'q') return get_eof(fd);
  get(fd, b, c - '0');
  order('q');
}
static void late_member(int fd) { late_member_of(fd, 0, '5'); }
static void late_member_closed(int fd) { late_member_of(fd, 0, 'q'); }
static void late_member_polled(int fd) { late_member_of(fd, 1, '5'); }
// Workers that wait on one set since it had a listener only; the worker that is woken is told in
// the program's own words.
static int crew_listener, crew_conn, crew_end;
static void *crew_member(void *p) {
  static __thread char b[60000];
  for (;;) {
    struct epoll_event e;
    EQ(epoll_wait(shared_ep, &e, 1, patience(10000)), 1);
    if (e.data.ptr == &crew_end) return p;
    if (e.data.ptr == &crew_listener) {
      crew_conn = accept(crew_listener, NULL, NULL);
      CHECK(crew_conn >= 0);
      e = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.ptr = &crew_conn};
      CHECK(!epoll_ctl(shared_ep, EPOLL_CTL_ADD, crew_conn, &e));
      continue;
    }
    if (e.data.ptr != &crew_conn) FAIL("%x of %llx", e.events, (unsigned long long)e.data.u64);
    ssize_t k = recv(crew_conn, b, sizeof b, 0);
    CHECK(k >= 0);
    if (k == 0) {
      CHECK(write(crew_end, &(uint64_t){1}, 8) == 8);
      return p;
    }
    put(crew_conn, b, k);
    nap(5);
    e = (struct epoll_event){.events = EPOLLIN | EPOLLONESHOT, .data.ptr = &crew_conn};
    CHECK(!epoll_ctl(shared_ep, EPOLL_CTL_MOD, crew_conn, &e));
  }
}
static void crew_server(int lfd) {
  pthread_t t[4];
  crew_listener = lfd, crew_end = eventfd(0, 0), shared_ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN | EPOLLET, .data.ptr = &crew_listener};
  CHECK(!epoll_ctl(shared_ep, EPOLL_CTL_ADD, lfd, &e));
  e = (struct epoll_event){.events = EPOLLIN, .data.ptr = &crew_end};
  CHECK(!epoll_ctl(shared_ep, EPOLL_CTL_ADD, crew_end, &e));
  for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, crew_member, NULL));
  nap(patience(50));
  tell('w');
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}
static void crew_client(int fd) {
  hear('w');
  fd = dial();
  nonblock(fd, 1);
  pump(fd, 7, 7, 1 << 20, 60000);
  close(fd);
}
const test_case CASES[] = {
    {"select", orders_server, select_c, 0},
    {"poll", orders_server, poll_c, 0},
    {"data_wakes_sleepers", late_server, wakes, 0},
    {"epoll_level", orders_server, level, 0},
    {"epoll_edge", orders_server, edge, 0},
    {"epoll_edge_after_odd_option", orders_server, edge_after_odd_option, 0},
    {"epoll_edge_out", edge_out_server, edge_out, 0},
    {"epoll_oneshot", orders_server, oneshot, 0},
    {"epoll_members", orders_server, members, 0},
    {"epoll_churn", echo_server, churn, 0},
    {"epoll_before_connect", accept_echo, before_connect, RAW},
    {"epoll_shared_by_threads", echo_server, shared_set, 0},
    {"epoll_late_member", orders_server, late_member, 0},
    {"epoll_late_member_closed", orders_server, late_member_closed, 0},
    {"epoll_late_member_polled", orders_server, late_member_polled, 0},
    {"epoll_shared_with_listener", crew_server, crew_client, RAW},
    {0},
};
