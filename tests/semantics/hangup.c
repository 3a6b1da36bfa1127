// What epoll says of an end of the connection beside what it has said before: at once, and once.
#include "sem.h"

static int set_of(int fd, uint32_t events) {
  int ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = events};
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  return ep;
}
static unsigned said(int ep, int ms) {
  struct epoll_event e = {0};
  int n = epoll_wait(ep, &e, 1, ms);
  CHECK(n >= 0);
  return n ? e.events : 0;
}
static void await_events(int fd, short events) {
  double end = now() + patience(3000) / 1000.0;
  while ((ready(fd, events, 0) & events) != events) {
    CHECK(now() < end);
    nap(1);
  }
}

static void talks_server(int fd) {
  put(fd, "some bytes", 10);
  hear('e');
}
// The program's own shutdown, beside what is unread or always so: no call may leave it out.
static void own_client(int fd, int how, unsigned end) {
  static const unsigned wanted[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLOUT};
  int sets[4];
  EQ(ready(fd, POLLIN, patience(2000)), POLLIN);
  for (int i = 0; i < 4; i++) {
    sets[i] = set_of(fd, wanted[i]);
    for (int k = 0; k < 20; k++) EQ(said(sets[i], 0), wanted[i] & (EPOLLIN | EPOLLOUT));
  }
  CHECK(!shutdown(fd, how));
  for (int i = 0; i < 4; i++) {
    unsigned now_so = (wanted[i] & (EPOLLIN | EPOLLOUT)) | (end & (wanted[i] | EPOLLHUP));
    for (int k = 0; k < 20; k++) EQ(said(sets[i], 0), now_so);
    close(sets[i]);
  }
  tell('e');
}
static void own_both_client(int fd) { own_client(fd, SHUT_RDWR, EPOLLRDHUP | EPOLLHUP); }
static void own_read_client(int fd) { own_client(fd, SHUT_RD, EPOLLRDHUP); }
static void own_in_turn_client(int fd) {
  CHECK(!shutdown(fd, SHUT_WR));
  own_client(fd, SHUT_RD, EPOLLRDHUP | EPOLLHUP);
}

static void closes_server(int fd) {
  close(fd);
  tell('c');
}
// A reset that a send has brought, where there is always room.
static void reset_client(int fd) {
  hear('c');
  signal(SIGPIPE, SIG_IGN);
  await_events(fd, POLLRDHUP);
  int before = set_of(fd, EPOLLOUT);
  EQ(said(before, 0), EPOLLOUT);
  EQ(send(fd, "nobody", 6, 0), 6);
  await_events(fd, POLLERR);
  int after = set_of(fd, EPOLLOUT);
  // At once, without a call in between.
  for (int i = 0; i < 20; i++) EQ(said(after, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
  EQ(said(before, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
  EQ(said(after, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
}

// The same as soon as it is there, within what a set that has just been asked is believed: no sleep, and no poll.
static void reset_soon_client(int fd) {
  char b[1];
  hear('c');
  signal(SIGPIPE, SIG_IGN);
  await_events(fd, POLLRDHUP);
  EQ(recv(fd, b, 1, 0), 0);
  int ep = set_of(fd, EPOLLOUT);
  EQ(said(ep, 0), EPOLLOUT);
  EQ(send(fd, "nobody", 6, 0), 6);
  int e = 0, n = 0;
  while (n++ < 1000000 && !e) {
    struct tcp_info info;
    socklen_t l = sizeof info;
    CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &l));
    e = info.tcpi_state == TCP_CLOSE;
  }
  CHECK(e);
  EQ(said(ep, 0), EPOLLOUT | EPOLLERR | EPOLLHUP);
}

static void passes_server(int fd) {
  int p[2], other = -1;
  char c = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  CHECK(!shutdown(fd, SHUT_WR));
  tell('s');
  hear('n');
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, p));
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  EQ(sendmsg(p[0], &m, 0), 1);
  EQ(recvmsg(p[1], &m, 0), 1);
  memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof other);
  close(fd);
  tell('p');
  hear('e');
  close(other);
}
// The end is an edge that comes once, whatever becomes of the peer's descriptor behind it.
static void edge_client(int fd) {
  int rdhup = set_of(fd, EPOLLRDHUP | EPOLLET), both = set_of(fd, EPOLLIN | EPOLLRDHUP | EPOLLET);
  hear('s');
  await_events(fd, POLLRDHUP);
  EQ(said(rdhup, patience(2000)), EPOLLRDHUP);
  EQ(said(both, patience(2000)), EPOLLIN | EPOLLRDHUP);
  tell('n');
  hear('p');
  for (int i = 0; i < 20; i++) {
    EQ(said(rdhup, 1), 0);
    EQ(said(both, 1), 0);
  }
  tell('e');
}

const test_case CASES[] = {
    {"own_shutdown_of_both", talks_server, own_both_client, 0},
    {"own_shutdown_of_reading", talks_server, own_read_client, 0},
    {"own_shutdown_in_turn", talks_server, own_in_turn_client, 0},
    {"reset_beside_room", closes_server, reset_client, TOUCH},
    {"reset_beside_room_soon", closes_server, reset_soon_client, TOUCH},
    {"edge_of_the_end_once", passes_server, edge_client, TOUCH},
    {0},
};
