// Edges of epoll where the sender goes back to TCP behind unread bytes, or ends the stream there.
// There is one for each arrival, and none for what was told before.
#include "pair.h"
#include "set.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/syscall.h>

// The sender goes back by a call that only the kernel can do; what it sends then comes behind what
// is unread.
static void behind(int lfd, uint32_t more, int before) {
  static char b[3000];
  int s[2], n = 1000;
  two(lfd, s);
  int early = before ? set_of(s[1], EPOLLIN | EPOLLET | more) : -1;
  put(s[0], b, 1000);
  here(s[1], n);
  if (before) {
    EQ(said(early, patience(2000)), EPOLLIN);
    quiet(early);
  }
  EQ(dprintf(s[0], "%s", "back"), 4);
  here(s[1], n += 4);
  int late = set_of(s[1], EPOLLIN | EPOLLET | more), sets[2] = {late, early};
  for (int i = 0; i < 1 + before; i++) {
    EQ(said(sets[i], patience(2000)), EPOLLIN);
    quiet(sets[i]);
  }
  for (int round = 0; round < 5; round++) {
    put(s[0], b, 100);
    here(s[1], n += 100);
    for (int i = 0; i < 1 + before; i++) {
      EQ(said(sets[i], round & 1 ? 0 : patience(2000)), EPOLLIN);
      quiet(sets[i]);
    }
    // What is read of the unread makes no news.
    get(s[1], b, 50);
    n -= 50;
    for (int i = 0; i < 1 + before; i++) quiet(sets[i]);
  }
  CHECK(!shutdown(s[0], SHUT_WR));
  until(s[1], POLLRDHUP, POLLRDHUP);
  for (int i = 0; i < 1 + before; i++) {
    EQ(said(sets[i], patience(2000)), EPOLLIN | (more & EPOLLRDHUP));
    quiet(sets[i]);
  }
  get(s[1], b, n);
  EQ(recv(s[1], b, 1, 0), 0);
}
static void behind_unread(int lfd) { behind(lfd, 0, 1); }
static void behind_unread_and_end(int lfd) { behind(lfd, EPOLLRDHUP, 1); }
// With nothing unread before it.
static void behind_nothing(int lfd) {
  char b[300];
  for (int round = 0; round < 4; round++) {
    int s[2];
    two(lfd, s);
    int ep = set_of(s[1], EPOLLIN | EPOLLET);
    if (round & 1) quiet(ep);
    EQ(dprintf(s[0], "%s", "back"), 4);
    here(s[1], 4);
    if (round & 2) until(s[1], POLLIN, POLLIN);
    EQ(said(ep, patience(2000)), EPOLLIN);
    quiet(ep);
    put(s[0], b, 300);
    here(s[1], 304);
    EQ(said(ep, 0), EPOLLIN);
    quiet(ep);
    close(ep), close(s[0]), close(s[1]);
  }
}
static void added_behind_unread(int lfd) { behind(lfd, 0, 0); }

// The same for one that sleeps on the set when the bytes come.
static void goes_back_server(int fd) {
  static char b[1000];
  put(fd, b, sizeof b);
  hear('a');
  nap(20);
  EQ(dprintf(fd, "%s", "back"), 4);
  for (int round = 0; round < 5; round++) {
    hear('n');
    nap(20);
    put(fd, b, 100);
  }
  hear('e');
}
static void sleeps_client(int fd) {
  here(fd, 1000);
  int ep = set_of(fd, EPOLLIN | EPOLLET);
  EQ(said(ep, patience(2000)), EPOLLIN);
  quiet(ep);
  tell('a');
  EQ(said(ep, patience(5000)), EPOLLIN);
  here(fd, 1004);
  for (int round = 0; round < 5; round++) {
    quiet(ep);
    tell('n');
    EQ(said(ep, patience(5000)), EPOLLIN);
    here(fd, 1104 + 100 * round);
  }
  quiet(ep);
  tell('e');
}

// How far TCP is with the end of a connection: by a call of which the library does not learn.
static unsigned state(int fd) {
  struct tcp_info info = {0};
  socklen_t l = sizeof info;
  CHECK(!syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &l));
  return info.tcpi_state;
}
// FIN is here.
static void fin(int fd) {
  for (double end = now() + 10;;) {
    CHECK(now() < end);
    switch (state(fd)) {
      case TCP_CLOSE_WAIT: case TCP_CLOSING: case TCP_TIME_WAIT: case TCP_CLOSE: return;
    }
  }
}
// The end of the stream is told at once, whatever is unread before it and however soon the set was
// asked before.
static void end_beside_unread(int lfd, int mine, unsigned end) {
  static const unsigned wanted[] = {EPOLLIN, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT | EPOLLRDHUP,
                                    EPOLLIN | EPOLLRDHUP | EPOLLET};
  static char b[3000];
  for (int i = 0; i < 4; i++) {
    int s[2];
    unsigned room = wanted[i] & EPOLLOUT;
    two(lfd, s);
    put(s[0], b, 2000);
    put(s[0], b, 1000);
    here(s[1], 3000);
    if (mine) CHECK(!shutdown(s[1], SHUT_WR));
    int ep = set_of(s[1], wanted[i]);
    EQ(said(ep, patience(2000)), EPOLLIN | room);
    EQ(said(ep, 0), wanted[i] & EPOLLET ? 0 : EPOLLIN | room);
    CHECK(!shutdown(s[0], SHUT_WR));
    fin(s[1]);
    unsigned all = EPOLLIN | room | (end & (wanted[i] | EPOLLHUP));
    EQ(said(ep, 0), all);
    for (int k = 0; k < 20; k++) EQ(said(ep, 0), wanted[i] & EPOLLET ? 0 : all);
    get(s[1], b, 2500);
    for (int k = 0; k < 20; k++) EQ(said(ep, 0), wanted[i] & EPOLLET ? 0 : all);
    close(ep), close(s[0]), close(s[1]);
  }
}
static void half_closed(int lfd) { end_beside_unread(lfd, 0, EPOLLRDHUP); }
static void closed_both_ways(int lfd) { end_beside_unread(lfd, 1, EPOLLRDHUP | EPOLLHUP); }

// Another number for the connection, by a message, which leaves the device.
static int passed(int fd) {
  int p[2], other = -1;
  char c = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, p));
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  EQ(sendmsg(p[0], &m, 0), 1);
  EQ(recvmsg(p[1], &m, 0), 1);
  memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof other);
  close(p[0]), close(p[1]), close(fd);
  return other;
}
// The end was told. What either end does with its descriptor behind it is no news.
static void end_and(int lfd, int by_message, int own, int reads) {
  static const unsigned wanted[] = {EPOLLIN | EPOLLET, EPOLLIN | EPOLLRDHUP | EPOLLET, EPOLLRDHUP | EPOLLET};
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < 6; i++) {
    char b[6];
    int s[2], unread = i >= 3 && !by_message;
    two(lfd, s);
    if (unread) put(s[0], "unread", 6), here(s[1], 6);
    int ep = set_of(s[1], wanted[i % 3]);
    unsigned in = wanted[i % 3] & EPOLLIN;
    if (unread) EQ(said(ep, in ? patience(2000) : 20), in);
    CHECK(!shutdown(s[0], SHUT_WR));
    fin(s[1]);
    EQ(said(ep, patience(2000)), wanted[i % 3] & (EPOLLIN | EPOLLRDHUP));
    if (i & 1) quiet(ep);
    if (reads) EQ(recv(s[1], b, 6, MSG_DONTWAIT), unread ? 6 : 0);
    if (reads) EQ(recv(s[1], b, 6, MSG_DONTWAIT), 0);
    if (own) EQ(dprintf(s[1], "%s", "back"), 4);
    else if (by_message) s[0] = passed(s[0]);
    else FAILS(dprintf(s[0], "%s", "back"), EPIPE);
    quiet(ep);
    int again = dup(s[0]);
    CHECK(again >= 0 && !close(s[0]));
    quiet(ep);
    close(ep), close(again), close(s[1]);
  }
}
static void after_the_end(int lfd) {
  for (int reads = 0; reads < 2; reads++) end_and(lfd, 0, 0, reads);
}
static void passed_after_the_end(int lfd) {
  for (int reads = 0; reads < 2; reads++) end_and(lfd, 1, 0, reads);
}
static void own_after_the_end(int lfd) {
  for (int reads = 0; reads < 2; reads++) end_and(lfd, 0, 1, reads);
}
// The end was not told. The program reads it, behind what either end does with its descriptor, and
// hears of it by the set all the same, once.
static void untold(int lfd, int by_message) {
  static const unsigned wanted[] = {EPOLLIN | EPOLLET, EPOLLIN | EPOLLRDHUP | EPOLLET, EPOLLRDHUP | EPOLLET};
  for (int i = 0; i < 6; i++) {
    char b[6];
    int s[2];
    two(lfd, s);
    int ep = set_of(s[1], wanted[i % 3]);
    // Or was, and then asked once more.
    ready(ep, POLLIN, 0);
    if (i >= 3) quiet(ep);
    CHECK(!shutdown(s[0], SHUT_WR));
    fin(s[1]);
    if (by_message) s[0] = passed(s[0]);
    EQ(recv(s[1], b, 6, MSG_DONTWAIT), 0);
    EQ(said(ep, patience(2000)), wanted[i % 3] & (EPOLLIN | EPOLLRDHUP));
    quiet(ep);
    close(ep), close(s[0]), close(s[1]);
  }
}
static void untold_end(int lfd) { untold(lfd, 0); }
static void untold_end_of_a_passed(int lfd) { untold(lfd, 1); }

// A set that is polled itself, and has just been given a connection with nothing to tell, has
// nothing to tell; then it has.
static void polled_set(int lfd) {
  unsigned wanted[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLRDHUP | EPOLLET, EPOLLIN | EPOLLONESHOT, EPOLLRDHUP | EPOLLET};
  int s[2];
  char c = 'x';
  two(lfd, s);
  for (int i = 0; i < 100; i++) {
    put(s[i & 1], &c, 1);
    get(s[~i & 1], &c, 1);
  }
  for (int i = 0; i < 20; i++) {
    int ep = epoll_create1(0), outer = epoll_create1(0), says = wanted[i % 5] & EPOLLIN;
    struct epoll_event e = {.events = wanted[i % 5]}, o = {.events = EPOLLIN}, got;
    if (i >= 10) CHECK(!epoll_ctl(outer, EPOLL_CTL_ADD, ep, &o));
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, s[1], &e));
    for (int k = 0; k < 2; k++) {
      EQ(ready(ep, POLLIN, k * 5), 0);
      if (i >= 10) EQ(epoll_wait(outer, &got, 1, k * 5), 0);
    }
    put(s[0], &c, 1);
    if (says) EQ(ready(ep, POLLIN, 2000), POLLIN);
    if (says && i >= 10) EQ(epoll_wait(outer, &got, 1, patience(2000)), 1);
    if (says) EQ(epoll_wait(ep, &got, 1, 0), 1);
    get(s[1], &c, 1);
    EQ(ready(ep, POLLIN, 0), 0);
    EQ(epoll_wait(ep, &got, 1, 0), 0);
    close(ep), close(outer);
  }
  close(s[0]), close(s[1]);
}

// What is added, or asked for anew, while others of its set are ready is told by the next call. It
// is another kind of descriptor, or a connection that TCP has.
static void added_beside(int lfd) {
  static const uint32_t kinds[] = {EPOLLIN, EPOLLIN | EPOLLET, EPOLLIN | EPOLLONESHOT};
  char b[100] = "";
  for (int i = 0; i < 12; i++) {
    int s[2], tcp[2], ev = eventfd(1, EFD_NONBLOCK), ep;
    two(lfd, s), two(lfd, tcp);
    for (int k = 0; k < 100; k++) {
      put(s[k & 1], b, 100);
      get(s[~k & 1], b, 100);
    }
    put(tcp[0], b, 1);
    here(tcp[1], 1);
    ep = set_of(s[0], EPOLLOUT);
    struct epoll_event e = {.data.u32 = 7}, got[4];
    EQ(epoll_wait(ep, got, 4, 0), 1);
    int other = i & 1 ? ev : tcp[1];
    if (i >= 6) {
      CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, other, &e));
      EQ(epoll_wait(ep, got, 4, 0), 1);
    }
    e.events = kinds[i / 2 % 3];
    CHECK(!epoll_ctl(ep, i >= 6 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, other, &e));
    EQ(epoll_wait(ep, got, 4, 0), 2);
    CHECK(got[0].data.u32 == 7 || got[1].data.u32 == 7);
    for (int k = 0; k < 2; k++) close(s[k]), close(tcp[k]);
    close(ev), close(ep);
  }
}

// SO_RCVLOWAT, whenever it is set, has what is unread told once more if it is enough: by the
// device, and by TCP behind it.
static void low_water(int lfd) {
  char b[200] = "";
  for (int by_tcp = 0; by_tcp < 2; by_tcp++) {
    int s[2], lows[] = {20, 20, 100, 1, 50, 49};
    two(lfd, s);
    for (int k = 0; k < 100; k++) {
      put(s[k & 1], b, 100);
      get(s[~k & 1], b, 100);
    }
    int ep = set_of(s[1], EPOLLIN | EPOLLET), level = set_of(s[1], EPOLLIN);
    if (by_tcp) EQ(dprintf(s[0], "%049d", 0), 49);
    else put(s[0], b, 49);
    here(s[1], 49);
    EQ(said(ep, patience(2000)), EPOLLIN);
    quiet(ep);
    for (int i = 0; i < 6; i++) {
      CHECK(!setsockopt(s[1], SOL_SOCKET, SO_RCVLOWAT, &lows[i], sizeof lows[i]));
      EQ(said(ep, 0), lows[i] > 49 ? 0 : EPOLLIN);
      EQ(said(level, 0), lows[i] > 49 ? 0 : EPOLLIN);
      quiet(ep);
    }
    get(s[1], b, 49);
    close(ep), close(level), close(s[0]), close(s[1]);
  }
}

// A reset is an edge, also where a call takes its error before the set is asked. There is no second
// edge where the set has told of the error.
enum { SEND, ERROR, RECV, READ, PEEK, RECVMMSG, SENDFILE, SPLICE, CALLS };
static unsigned take(int fd, int how) {
  int e = 0, p[2];
  socklen_t l = sizeof e;
  char c;
  ssize_t r = -1;
  struct iovec v = {&c, 1};
  struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
  CHECK(!pipe(p) && signal(SIGPIPE, SIG_IGN) != SIG_ERR);
  int file = open("/proc/self/exe", O_RDONLY);
  switch (how) {
    case SEND: r = send(fd, "x", 1, MSG_NOSIGNAL); break;
    case ERROR: r = getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &l); break;
    case RECV: r = recv(fd, &c, 1, MSG_DONTWAIT); break;
    case READ: r = read(fd, &c, 1); break;
    case PEEK: r = recv(fd, &c, 1, MSG_PEEK | MSG_DONTWAIT); break;
    case RECVMMSG: r = recvmmsg(fd, &m, 1, MSG_DONTWAIT, NULL); break;
    case SENDFILE: r = sendfile(fd, file, NULL, 100); break;
    default: r = splice(fd, NULL, p[1], NULL, 100, SPLICE_F_NONBLOCK);
  }
  if (r == -1) e = errno;
  close(p[0]), close(p[1]), close(file);
  return (unsigned)e;
}
static void told_once(int fd, int ep, int first, int how) {
  until(fd, 0, POLLERR | POLLHUP);
  if (first) EQ(said(ep, patience(2000)), EPOLLIN | EPOLLERR | EPOLLHUP);
  if (first) quiet(ep);
  SAME(take(fd, how), ECONNRESET);
  if (!first) EQ(said(ep, patience(2000)), EPOLLIN | EPOLLHUP);
  quiet(ep);
}
// Where reading was shut, only some of the calls ask for the error.
static void reset_by_bytes(int lfd) {
  for (int round = 0; round < 4; round++) {
    int s[2];
    two(lfd, s);
    CHECK(!shutdown(s[1], SHUT_RDWR));
    // The peer's word that it has heard of that is an edge, too.
    for (double end = now() + 10; state(s[1]) != TCP_FIN_WAIT2;) CHECK(now() < end);
    int ep = set_of(s[1], EPOLLIN | EPOLLET);
    EQ(said(ep, patience(2000)), EPOLLIN | EPOLLHUP);
    quiet(ep);
    EQ(dprintf(s[0], "%s", "back"), 4);
    told_once(s[1], ep, round & 1, round / 2);
    close(ep), close(s[0]), close(s[1]);
  }
}
static void reset_by_close(int lfd) {
  for (int round = 0; round < 2 * CALLS; round++) {
    int s[2];
    two(lfd, s);
    int ep = set_of(s[1], EPOLLIN | EPOLLET);
    quiet(ep);
    CHECK(!setsockopt(s[0], SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger)));
    CHECK(!close(s[0]));
    told_once(s[1], ep, round & 1, round / 2);
    close(ep), close(s[1]);
  }
}

// A member for which the kernel answers and one that is ours, both always ready. No two waits in a
// row leave one of them out.
static void always_ready(int lfd, int returned) {
  int s[2], other[2];
  two(lfd, s);
  int ep = set_of(s[0], EPOLLOUT);
  if (returned) two(lfd, other);
  else CHECK(!pipe(other));
  if (returned) EQ(dprintf(other[1], "%s", "back"), 4);
  struct epoll_event e[4] = {{.events = EPOLLOUT, .data.u64 = 1}};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, other[1], &e[0]));
  for (int round = 0; round < 1000; round++) {
    unsigned seen = 0;
    for (int call = 0; call < 2; call++) {
      int n = epoll_wait(ep, e, 4, round & 1 ? 0 : patience(2000));
      for (int i = 0; i < n; i++) seen |= 1U << e[i].data.u64;
    }
    EQ(seen, 3);
  }
}
static void beside_a_pipe(int lfd) { always_ready(lfd, 0); }
static void beside_a_returned(int lfd) { always_ready(lfd, 1); }

const test_case CASES[] = {
    {"behind_unread", behind_unread, NULL, SOLO | NOSHM},
    {"behind_unread_and_end", behind_unread_and_end, NULL, SOLO | NOSHM},
    {"behind_nothing", behind_nothing, NULL, SOLO | NOSHM},
    {"added_behind_unread", added_behind_unread, NULL, SOLO | NOSHM},
    {"sleeps_behind_unread", goes_back_server, sleeps_client, TOUCH | NOSHM},
    {"end_beside_unread", half_closed, NULL, SOLO},
    {"end_of_both_beside_unread", closed_both_ways, NULL, SOLO},
    {"nothing_after_the_end", after_the_end, NULL, SOLO},
    {"nothing_when_passed_after_the_end", passed_after_the_end, NULL, SOLO | NOSHM},
    {"nothing_by_an_own_call_after_the_end", own_after_the_end, NULL, SOLO | NOSHM},
    {"end_that_was_read_first", untold_end, NULL, SOLO},
    {"end_that_was_read_first_of_a_passed", untold_end_of_a_passed, NULL, SOLO | NOSHM},
    {"polled_set_with_nothing_to_tell", polled_set, NULL, SOLO},
    {"added_while_others_are_ready", added_beside, NULL, SOLO},
    {"low_water_tells_again", low_water, NULL, SOLO | NOSHM},
    {"reset_by_bytes_whose_error_is_taken", reset_by_bytes, NULL, SOLO | NOSHM},
    {"reset_by_close_whose_error_is_taken", reset_by_close, NULL, SOLO},
    {"always_ready_beside_a_pipe", beside_a_pipe, NULL, SOLO},
    {"always_ready_beside_a_returned_one", beside_a_returned, NULL, SOLO | NOSHM},
    {0},
};
