// The error that a connection has still to say: which call says it, which does not, and that it is
// said once.
#include "sem.h"

enum { ALL = POLLIN | POLLOUT | POLLRDHUP };

// Until the connection has failed; a poll takes no error.
static void await_failure(int fd) {
  double end = now() + patience(3000) / 1000.0;
  while (!(ready(fd, ALL, 0) & POLLERR)) {
    CHECK(now() < end);
    nap(1);
  }
}
static int so_error(int fd) {
  int e = -1;
  socklen_t n = sizeof e;
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &n));
  return e;
}
static void linger0(int fd) {
  struct linger l = {1, 0};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
  close(fd);
}

static void closes_server(int fd) {
  close(fd);
  tell('c');
}
// The peer has closed: what is sent brings a reset behind its FIN. Receivers hear of the end alone.
static void reset_behind_fin(int fd) {
  hear('c');
  signal(SIGPIPE, SIG_IGN);
  EQ(ready(fd, POLLRDHUP, patience(2000)), POLLRDHUP);
  EQ(send(fd, "nobody", 6, 0), 6);
  await_failure(fd);
}
static void receivers_leave_it_client(int fd) {
  char b[10];
  reset_behind_fin(fd);
  for (int i = 0; i < 3; i++) {
    EQ(recv(fd, b, sizeof b, 0), 0);
    EQ(ready(fd, ALL, 0), ALL | POLLERR | POLLHUP);
  }
  EQ(so_error(fd), EPIPE);
  EQ(ready(fd, ALL, 0), ALL | POLLHUP);
}
static void after_shutdown_client(int fd) {
  char b[10];
  reset_behind_fin(fd);
  FAILS(shutdown(fd, SHUT_RD), ENOTCONN);
  EQ(recv(fd, b, sizeof b, 0), 0);
  EQ(recv(fd, b, sizeof b, MSG_DONTWAIT), 0);
  EQ(ready(fd, POLLOUT, 0), POLLOUT | POLLERR | POLLHUP);
  EQ(so_error(fd), EPIPE);
  EQ(so_error(fd), 0);
}
static void by_recvmmsg_client(int fd) {
  char b[10];
  struct iovec v = {b, sizeof b};
  struct mmsghdr m = {.msg_hdr = {.msg_iov = &v, .msg_iovlen = 1}};
  reset_behind_fin(fd);
  FAILS(shutdown(fd, SHUT_RDWR), ENOTCONN);
  EQ(recv(fd, b, sizeof b, 0), 0);
  FAILS(recvmmsg(fd, &m, 1, 0, NULL), EPIPE);
  EQ(recvmmsg(fd, &m, 1, 0, NULL), 1);
  EQ(m.msg_len, 0);
}
// A receive of nothing is a receive.
static void nothing_leaves_it_client(int fd) {
  char b[1];
  reset_behind_fin(fd);
  EQ(recv(fd, b, 0, 0), 0);
  EQ(ready(fd, POLLIN, 0), POLLIN | POLLERR | POLLHUP);
  EQ(so_error(fd), EPIPE);
}
static void deaf_server(int fd) {
  CHECK(!shutdown(fd, SHUT_RDWR));
  tell('c');
  hear('e');
}
static void to_deaf_client(int fd) {
  nothing_leaves_it_client(fd);
  tell('e');
}
static void fin_then_reset_server(int fd) {
  CHECK(!shutdown(fd, SHUT_WR));
  linger0(fd);
  tell('c');
}
static void fin_then_reset_client(int fd) {
  char b[1];
  hear('c');
  await_failure(fd);
  EQ(recv(fd, b, 0, 0), 0);
  EQ(ready(fd, 0, 0), POLLERR | POLLHUP);
  EQ(so_error(fd), EPIPE);
}
// A reset without FIN is for receivers, too: a receive of nothing takes it.
static void reset_server(int fd) {
  linger0(fd);
  tell('c');
}
static void nothing_takes_it_client(int fd) {
  char b[1];
  hear('c');
  await_failure(fd);
  FAILS(recv(fd, b, 0, 0), ECONNRESET);
  EQ(recv(fd, b, 0, 0), 0);
  EQ(so_error(fd), 0);
}

// A call that has bytes to report leaves the error to the next one. Here it is a call that the
// kernel does, of an end whose sending has gone back to it.
static void reads_half(int fd) {
  char b[344];
  fill(b, sizeof b, 5, 0);
  EQ(send(fd, b, sizeof b, 0), sizeof b);  // in one piece, which waits for nothing
  EQ(ready(fd, POLLIN, patience(2000)), POLLIN);
}
static void unread_server(int fd) {
  reads_half(fd);
  close(fd);
  tell('c');
}
static void unread_reset_server(int fd) {
  reads_half(fd);
  linger0(fd);
  tell('c');
}
static void bytes_first(int fd) {
  char b[2000];
  signal(SIGPIPE, SIG_IGN);
  EQ(dprintf(fd, "text"), 4);
  hear('c');
  await_failure(fd);
  EQ(recv(fd, b, sizeof b, MSG_WAITALL), 344);
  verify(b, 344, 5, 0);
}
static void then_send_client(int fd) {
  bytes_first(fd);
  FAILS(send(fd, "x", 1, 0), ECONNRESET);
  FAILS(send(fd, "x", 1, 0), EPIPE);
}
static void then_dprintf_client(int fd) {
  bytes_first(fd);
  FAILS(dprintf(fd, "text"), ECONNRESET);
  FAILS(send(fd, "x", 1, 0), EPIPE);
}
static void then_ready_client(int fd) {
  bytes_first(fd);
  EQ(ready(fd, POLLOUT, 0), POLLOUT | POLLERR | POLLHUP);
  EQ(so_error(fd), ECONNRESET);
  FAILS(send(fd, "x", 1, 0), EPIPE);
}
static void then_recv_client(int fd) {
  char b[10];
  bytes_first(fd);
  FAILS(recv(fd, b, sizeof b, MSG_DONTWAIT), ECONNRESET);
  EQ(recv(fd, b, sizeof b, 0), 0);
  FAILS(send(fd, "x", 1, 0), EPIPE);
}
// The end that connected goes on alone for some calls. By now it may have attached, while the other
// one has not heard of that, and never will.
static void goes_on(int fd) {
  char c;
  for (int i = 0; i < 4; i++) EQ(recv(fd, &c, 1, MSG_PEEK) >= 0, 1);
}
static void half_then_dprintf_client(int fd) { goes_on(fd), then_dprintf_client(fd); }
static void half_then_recv_client(int fd) { goes_on(fd), then_recv_client(fd); }

// What is moved into a pipe ends as it does for a receive: bytes, then the error, and the end after
// that.
static void spliced_client(int fd) {
  char b[2000];
  int p[2];
  signal(SIGPIPE, SIG_IGN);
  CHECK(!pipe(p));
  EQ(send(fd, "text", 4, 0), 4);
  hear('c');
  await_failure(fd);
  EQ(splice(fd, NULL, p[1], NULL, sizeof b, SPLICE_F_NONBLOCK), 344);
  EQ(read(p[0], b, sizeof b), 344);
  verify(b, 344, 5, 0);
  FAILS(splice(fd, NULL, p[1], NULL, sizeof b, SPLICE_F_NONBLOCK), ECONNRESET);
  EQ(splice(fd, NULL, p[1], NULL, sizeof b, SPLICE_F_NONBLOCK), 0);
  FAILS(send(fd, "x", 1, 0), EPIPE);
}

// The same of a peer whose sending has gone back to the kernel before it closes with bytes unread.
static void unread_back_server(int fd) {
  hear('r');
  EQ(dprintf(fd, "back"), 4);
  reads_half(fd);
  close(fd);
  tell('c');
}
static void back_first(int fd) {
  char b[2000];
  signal(SIGPIPE, SIG_IGN);
  tell('r');
  get(fd, b, 4);
  EQ(send(fd, "text", 4, 0), 4);
  hear('c');
  await_failure(fd);
}
static void back_recv_client(int fd) {
  char b[2000];
  back_first(fd);
  EQ(recv(fd, b, sizeof b, MSG_DONTWAIT), 344);
  verify(b, 344, 5, 0);
  FAILS(recv(fd, b, sizeof b, MSG_DONTWAIT), ECONNRESET);
  EQ(recv(fd, b, sizeof b, MSG_DONTWAIT), 0);
}
static void back_splice_client(int fd) {
  char b[2000];
  int p[2];
  back_first(fd);
  CHECK(!pipe(p));
  EQ(splice(fd, NULL, p[1], NULL, sizeof b, SPLICE_F_NONBLOCK), 344);
  FAILS(splice(fd, NULL, p[1], NULL, sizeof b, SPLICE_F_NONBLOCK), ECONNRESET);
  EQ(splice(fd, NULL, p[1], NULL, sizeof b, SPLICE_F_NONBLOCK), 0);
}

const test_case CASES[] = {
    {"receivers_leave_it", closes_server, receivers_leave_it_client, TOUCH},
    {"after_shutdown", closes_server, after_shutdown_client, TOUCH},
    {"said_by_recvmmsg", closes_server, by_recvmmsg_client, TOUCH},
    {"receive_of_nothing_leaves_it", closes_server, nothing_leaves_it_client, TOUCH},
    {"deaf_peer", deaf_server, to_deaf_client, TOUCH},
    {"end_then_reset", fin_then_reset_server, fin_then_reset_client, TOUCH},
    {"receive_of_nothing_takes_it", reset_server, nothing_takes_it_client, TOUCH},
    {"behind_bytes_for_send", unread_server, then_send_client, TOUCH},
    {"behind_bytes_for_send_by_reset", unread_reset_server, then_send_client, TOUCH},
    {"behind_bytes_for_dprintf", unread_server, then_dprintf_client, TOUCH},
    {"behind_bytes_for_poll", unread_reset_server, then_ready_client, TOUCH},
    {"behind_bytes_for_recv", unread_server, then_recv_client, TOUCH},
    {"half_attached_for_dprintf", unread_server, half_then_dprintf_client, TOUCH},
    {"half_attached_for_recv", unread_server, half_then_recv_client, TOUCH},
    {"behind_bytes_for_splice", unread_server, spliced_client, TOUCH},
    {"behind_bytes_of_tcp_for_recv", unread_back_server, back_recv_client, TOUCH},
    {"behind_bytes_of_tcp_for_splice", unread_back_server, back_splice_client, TOUCH},
    {"behind_bytes_for_splice_by_reset", unread_reset_server, spliced_client, TOUCH},
    {0},
};
