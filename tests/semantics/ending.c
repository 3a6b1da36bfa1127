// How a connection ends: half-close, end of file, hang-up, reset, broken pipe, and what poll and
// epoll say.
#include "sem.h"

enum { ALL = POLLIN | POLLOUT | POLLRDHUP };

static void epoll_one(int fd, uint32_t want, uint32_t got, int ms) {
  int ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = want, .data.u64 = 0x1234567890abcdef}, o = {0};
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  int n = epoll_wait(ep, &o, 1, ms);
  EQ(n, got != 0);
  if (n) {
    EQ(o.events, got);
    CHECK(o.data.u64 == e.data.u64);
  }
  close(ep);
}

// The client stops writing; the server still answers.
static void half_c_server(int fd) {
  get_stream(fd, 1, 0, 300000, 9000);
  get_eof(fd);
  get_eof(fd);  // and it stays so
  EQ(ready(fd, ALL, 2000), POLLIN | POLLOUT | POLLRDHUP);
  epoll_one(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP, EPOLLIN | EPOLLOUT | EPOLLRDHUP, 2000);
  EQ(ready(fd, POLLIN, 0), POLLIN);
  put_stream(fd, 2, 0, 3 << 20, 90000);
  tell('w');
  hear('r');
  close(fd);
}
static void half_c_client(int fd) {
  put_stream(fd, 1, 0, 300000, 9000);
  CHECK(!shutdown(fd, SHUT_WR));
  get_stream(fd, 2, 0, 3 << 20, 70000);
  hear('w');
  EQ(ready(fd, POLLIN | POLLRDHUP, 0), 0);
  signal(SIGPIPE, SIG_IGN);
  FAILS(write(fd, "x", 1), EPIPE);
  CHECK(!shutdown(fd, SHUT_WR));  // a second time is no error
  tell('r');
  get_eof(fd);
  EQ(ready(fd, ALL, 2000), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
}
// The server stops writing; the client still talks.
static void half_s_server(int fd) {
  put(fd, "that is all", 11);
  CHECK(!shutdown(fd, SHUT_WR));
  get_stream(fd, 3, 0, 3 << 20, 90000);
  get_eof(fd);
  EQ(ready(fd, ALL, 2000), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
}
static void half_s_client(int fd) {
  char b[11];
  get(fd, b, 11);
  get_eof(fd);
  put_stream(fd, 3, 0, 3 << 20, 50000);
  CHECK(!shutdown(fd, SHUT_WR));
}
// End of file comes after the data, not instead of it.
static void eof_after_data_server(int fd) {
  put_stream(fd, 4, 0, 100000, 100000);
  close(fd);
  tell('c');
}
static void eof_after_data_client(int fd) {
  hear('c');
  nap(patience(20));
  EQ(ready(fd, POLLIN | POLLRDHUP, 2000), POLLIN | POLLRDHUP);
  get_stream(fd, 4, 0, 100000, 777);
  EQ(ready(fd, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
  get_eof(fd);
}
static void rdhup_server(int fd) {
  hear('w');
  nap(patience(50));
  CHECK(!shutdown(fd, SHUT_WR));
  hear('e');
}
// Sleepers are woken by the end.
static void rdhup_client(int fd) {
  tell('w');
  double t = now();
  EQ(ready(fd, POLLRDHUP, 5000), POLLRDHUP);
  CHECK(now() - t < most_at_once());
  epoll_one(fd, EPOLLRDHUP, EPOLLRDHUP, 1000);
  epoll_one(fd, EPOLLIN | EPOLLET, EPOLLIN, 1000);
  epoll_one(fd, EPOLLOUT, EPOLLOUT, 1000);
  EQ(ready(fd, 0, 0), 0);
  tell('e');
}
static void epoll_eof_server(int fd) {
  hear('w');
  nap(patience(50));
  close(fd);
}
static void epoll_eof_client(int fd) {
  tell('w');
  epoll_one(fd, EPOLLIN | EPOLLRDHUP, EPOLLIN | EPOLLRDHUP, 5000);
  get_eof(fd);
}
static void recv_eof_client(int fd) {
  tell('w');
  get_eof(fd);  // blocked in recv when it happens
}
static void linger0(int fd) {
  struct linger l = {1, 0};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_LINGER, &l, sizeof l));
  close(fd);
}
// A reset by SO_LINGER 0.
static void rst_server(int fd) {
  hear('w');
  nap(patience(30));
  linger0(fd);
  tell('c');
}
static void rst_recv_client(int fd) {
  char b[10];
  tell('w');
  FAILS(recv(fd, b, sizeof b, 0), ECONNRESET);
  EQ(recv(fd, b, sizeof b, 0), 0);
  signal(SIGPIPE, SIG_IGN);
  FAILS(send(fd, b, 1, 0), EPIPE);
  EQ(ready(fd, ALL, 0), POLLIN | POLLOUT | POLLRDHUP | POLLHUP);
  hear('c');  // or the server's pipe would be broken
}
static void rst_poll_client(int fd) {
  char b[10];
  tell('w');
  hear('c');
  nap(patience(20));
  EQ(ready(fd, ALL, 2000), POLLIN | POLLOUT | POLLRDHUP | POLLERR | POLLHUP);
  epoll_one(fd, 0, EPOLLERR | EPOLLHUP, 1000);
  epoll_one(fd, EPOLLIN, EPOLLIN | EPOLLERR | EPOLLHUP, 1000);
  FAILS(recv(fd, b, sizeof b, 0), ECONNRESET);
}
static void rst_write_client(int fd) {
  tell('w');
  hear('c');
  nap(patience(20));
  signal(SIGPIPE, SIG_IGN);
  FAILS(write(fd, "x", 1), ECONNRESET);  // the socket's error first,
  FAILS(write(fd, "x", 1), EPIPE);       // then what it is now
}
static void rst_soerror_client(int fd) {
  tell('w');
  hear('c');
  nap(patience(20));
  int e = 0;
  socklen_t l = sizeof e;
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &l));
  EQ(e, ECONNRESET);
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &l));
  EQ(e, 0);
  char c;
  EQ(recv(fd, &c, 1, 0), 0);
}
static void rst_sleeping_poll_client(int fd) {
  tell('w');
  double t = now();
  EQ(ready(fd, POLLIN, 5000), POLLIN | POLLERR | POLLHUP);
  CHECK(now() - t < most_at_once());
  hear('c');
}
// What arrived before the reset can still be read.
static void rst_data_server(int fd) {
  put_stream(fd, 5, 0, 5000, 5000);
  hear('w');
  linger0(fd);
  tell('c');
}
static void rst_data_client(int fd) {
  EQ(ready(fd, POLLIN, 2000), POLLIN);
  nap(patience(20));
  tell('w');
  hear('c');
  nap(patience(20));
  get_stream(fd, 5, 0, 5000, 1000);
  char c;
  FAILS(recv(fd, &c, 1, 0), ECONNRESET);
}
// Closing with unread data resets the peer.
static void unread_server(int fd) {
  EQ(ready(fd, POLLIN, 5000), POLLIN);
  hear('s');
  nap(patience(10));
  close(fd);
  tell('c');
}
static void unread_client(int fd) {
  char b[10];
  put(fd, "nobody reads this", 17);
  tell('s');
  hear('c');
  nap(patience(20));
  FAILS(recv(fd, b, sizeof b, 0), ECONNRESET);
}
static void unread_part_server(int fd) {
  char b[7];
  hear('s');
  get(fd, b, 7);
  close(fd);
  tell('c');
}
static void unread_big_client(int fd) {
  static char b[100000];
  put(fd, b, sizeof b);
  tell('s');
  hear('c');
  nap(patience(20));
  EQ(ready(fd, POLLIN, 2000), POLLIN | POLLERR | POLLHUP);
  FAILS(recv(fd, b, 1, 0), ECONNRESET);
}
// Writing to a peer that has closed: reset, then a broken pipe, with and without the signal.
static volatile sig_atomic_t pipes;
static void on_pipe(int s) {
  (void)s;
  pipes++;
}
static void gone_server(int fd) {
  close(fd);
  tell('c');
}
static void epipe_client(int fd) {
  signal(SIGPIPE, on_pipe);
  hear('c');
  nap(patience(10));
  EQ(write(fd, "x", 1), 1);  // the peer's kernel answers this with a reset
  // Asked for nothing, poll tells of the reset alone.
  CHECK(ready(fd, 0, patience(2000)) != 0);
  // The reset came after the peer's FIN: the error is EPIPE, and it raises no signal when it is the
  // socket's own.
  FAILS(write(fd, "x", 1), EPIPE);
  FAILS(write(fd, "x", 1), EPIPE);
  EQ(pipes, 2);
  FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  EQ(pipes, 2);
  struct iovec v = {"x", 1};
  FAILS(writev(fd, &v, 1), EPIPE);
  EQ(pipes, 3);
}
// Written while the end is still on its way: a thread that waits then is told of the reset all the
// same.
static void at_once_client(int fd) {
  signal(SIGPIPE, SIG_IGN);
  hear('c');
  EQ(write(fd, "x", 1), 1);
  CHECK(ready(fd, 0, patience(2000)) != 0);
  FAILS(write(fd, "x", 1), EPIPE);
}
static void sigpipe_kills_client(int fd) {
  hear('c');
  pid_t p = fork();
  if (!p) {
    signal(SIGPIPE, SIG_DFL);
    for (int i = 0; i < 200; i++) {
      if (write(fd, "x", 1) < 0) _exit(1);
      nap(patience(5));
    }
    _exit(2);
  }
  EQ(exit_status(p), 128 + SIGPIPE);
}
static void shut_wr_server(int fd) {
  get_eof(fd);
  hear('e');
}
static void shut_wr_client(int fd) {
  signal(SIGPIPE, on_pipe);
  CHECK(!shutdown(fd, SHUT_WR));
  FAILS(send(fd, "x", 1, 0), EPIPE);
  EQ(pipes, 1);
  FAILS(send(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  EQ(pipes, 1);
  EQ(ready(fd, POLLOUT, 0), POLLOUT);
  tell('e');
}
// A writer that is blocked when the reader goes away.
static void blocked_writer_server(int fd) {
  char b[1000];
  get(fd, b, sizeof b);
  nap(patience(100));
  close(fd);
}
static void blocked_writer_client(int fd) {
  static char b[1 << 20];
  signal(SIGPIPE, SIG_IGN);
  double t = now();
  ssize_t k;
  while ((k = write(fd, b, sizeof b)) > 0)
    ;
  CHECK(k == -1 && (errno == ECONNRESET || errno == EPIPE));
  CHECK(now() - t < 5 + most_at_once());
}
static void shut_rd_server(int fd) {
  hear('s');
  put(fd, "late", 4);
  tell('p');
  hear('d');
}
// After SHUT_RD there is an end of file where there is nothing to read; the peer's writes do not
// fail. (Whether late bytes can still be read has changed between kernels.)
static void shut_rd_client(int fd) {
  char b[10];
  CHECK(!shutdown(fd, SHUT_RD));
  EQ(recv(fd, b, sizeof b, 0), 0);
  EQ(ready(fd, POLLIN | POLLRDHUP, 0), POLLIN | POLLRDHUP);
  tell('s');
  hear('p');
  nap(patience(30));
  ssize_t late = recv(fd, b, sizeof b, 0);
  CHECK(late == 0 || late == 4);
  EQ(recv(fd, b, sizeof b, 0), 0);
  put(fd, "x", 1);
  tell('d');
}
static void shut_rdwr_server(int fd) {
  char b[5];
  get(fd, b, 5);
  get_eof(fd);
}
static void shut_rdwr_client(int fd) {
  put(fd, "hello", 5);
  CHECK(!shutdown(fd, SHUT_RDWR));
  char c;
  EQ(recv(fd, &c, 1, 0), 0);
  signal(SIGPIPE, SIG_IGN);
  FAILS(write(fd, "x", 1), EPIPE);
  CHECK(ready(fd, ALL, 0) & POLLHUP);
}
// An end that has shut both directions without closing takes nothing more, and a peer that goes on
// writing is told.
static void deaf(int fd, int at_once) {
  char b[5000];
  put_stream(fd, 8, 0, 3000, 3000);
  EQ(recv(fd, b, sizeof b, MSG_PEEK | MSG_WAITALL), sizeof b);
  if (!at_once) CHECK(!shutdown(fd, SHUT_RD));
  CHECK(!shutdown(fd, at_once ? SHUT_RDWR : SHUT_WR));
  // What came before is there to read, and its end behind it.
  get_stream(fd, 7, 0, 5000, 1000);
  get_eof(fd);
  CHECK((ready(fd, ALL, 2000) & (POLLIN | POLLRDHUP | POLLHUP)) == (POLLIN | POLLRDHUP | POLLHUP));
  tell('s');
  hear('e');
}
static void deaf_server(int fd) { deaf(fd, 1); }
static void deaf_in_turn_server(int fd) { deaf(fd, 0); }
static void to_deaf_client(int fd) {
  static char b[100000];
  signal(SIGPIPE, SIG_IGN);
  put_stream(fd, 7, 0, 5000, 5000);
  hear('s');
  get_stream(fd, 8, 0, 3000, 3000);
  get_eof(fd);
  EQ(ready(fd, POLLIN | POLLRDHUP, 2000), POLLIN | POLLRDHUP);
  double t = now();
  ssize_t k;
  while ((k = write(fd, b, sizeof b)) > 0)
    ;
  CHECK(k == -1 && (errno == ECONNRESET || errno == EPIPE));
  CHECK(now() - t < 5 + most_at_once());
  tell('e');
}
static void shut_wakes_server(int fd) { get_eof(fd); }
static void *sleeper(void *p) {
  char c;
  return (void *)(intptr_t)recv(*(int *)p, &c, 1, 0);
}
// shutdown by another thread ends a blocked recv.
static void shut_wakes_client(int fd) {
  pthread_t t;
  void *r = (void *)7;
  CHECK(!pthread_create(&t, NULL, sleeper, &fd));
  nap(patience(50));
  CHECK(!shutdown(fd, SHUT_RDWR));
  pthread_join(t, &r);
  EQ((intptr_t)r, 0);
}
static void unconnected(int lfd) {
  char c;
  int fd = socket(ctx.family, SOCK_STREAM, 0);
  signal(SIGPIPE, SIG_IGN);
  FAILS(recv(fd, &c, 1, 0), ENOTCONN);
  FAILS(send(fd, &c, 1, 0), EPIPE);
  FAILS(shutdown(fd, SHUT_WR), ENOTCONN);
  EQ(ready(fd, ALL, 0), POLLOUT | POLLHUP);
  FAILS(recv(lfd, &c, 1, 0), ENOTCONN);
  FAILS(accept(fd, NULL, NULL), EINVAL);
  close(fd);
  FAILS(recv(fd, &c, 1, 0), EBADF);
  FAILS(write(fd, &c, 1), EBADF);
  FAILS(close(fd), EBADF);
}
static void exit_flushes_server(int fd) {
  get_stream(fd, 6, 0, 1 << 20, 30000);
  get_eof(fd);
}
// Whatever was accepted for sending arrives, though the writer ends right after.
static void exit_flushes_client(int fd) {
  put_stream(fd, 6, 0, 1 << 20, 30000);
  _exit(0);
}
// Both close at once, no deadlock, no reset.
static void both_close(int fd) {
  put(fd, "x", 1);
  char c;
  get(fd, &c, 1);
  tell('b');
  hear('b');
  CHECK(!close(fd));
}

const test_case CASES[] = {
    {"half_close_by_client", half_c_server, half_c_client, 0},
    {"half_close_by_server", half_s_server, half_s_client, 0},
    {"eof_after_data", eof_after_data_server, eof_after_data_client, 0},
    {"rdhup_wakes", rdhup_server, rdhup_client, 0},
    {"epoll_sees_close", epoll_eof_server, epoll_eof_client, 0},
    {"recv_sees_close", epoll_eof_server, recv_eof_client, 0},
    {"reset_recv", rst_server, rst_recv_client, 0},
    {"reset_poll", rst_server, rst_poll_client, 0},
    {"reset_write", rst_server, rst_write_client, 0},
    {"reset_so_error", rst_server, rst_soerror_client, 0},
    {"reset_wakes_poll", rst_server, rst_sleeping_poll_client, 0},
    {"data_before_reset", rst_data_server, rst_data_client, 0},
    {"close_with_unread_data", unread_server, unread_client, 0},
    {"close_with_some_unread", unread_part_server, unread_big_client, 0},
    {"epipe_and_signal", gone_server, epipe_client, TOUCH},
    {"written_at_once", gone_server, at_once_client, TOUCH},
    {"sigpipe_kills", gone_server, sigpipe_kills_client, TOUCH},
    {"write_after_shutdown", shut_wr_server, shut_wr_client, 0},
    {"blocked_writer_is_told", blocked_writer_server, blocked_writer_client, 0},
    {"shutdown_read", shut_rd_server, shut_rd_client, 0},
    {"shutdown_both", shut_rdwr_server, shut_rdwr_client, 0},
    {"shutdown_both_stops_writer", deaf_server, to_deaf_client, 0},
    {"shutdown_in_turn_stops_writer", deaf_in_turn_server, to_deaf_client, 0},
    {"shutdown_wakes_recv", shut_wakes_server, shut_wakes_client, 0},
    {"not_connected", unconnected, NULL, SOLO},
    {"exit_keeps_data", exit_flushes_server, exit_flushes_client, 0},
    {"both_close", both_close, both_close, 0},
    {0},
};
