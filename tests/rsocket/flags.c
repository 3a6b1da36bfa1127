// Every line of the table of flags in rsocket(7): those of messages, and those of descriptors.
#include "rs.h"

// MSG_DONTWAIT, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_NOSIGNAL, MSG_MORE, MSG_OOB.
static void flags_server(int fd) {
  char buf[64];
  FAILS(rrecv(fd, buf, sizeof buf, MSG_DONTWAIT), EAGAIN);
  FAILS(rrecv(fd, buf, sizeof buf, MSG_DONTWAIT | MSG_PEEK), EAGAIN);
  tell('1');
  EQ(ready(fd, POLLIN, 20000), POLLIN);
  // MSG_MORE: no end holds the bytes back for ever.
  EQ(rrecv(fd, buf, 6, MSG_WAITALL), 6);
  EQ(memcmp(buf, "abcdef", 6), 0);
  tell('2');
  hear('3');
  // MSG_PEEK leaves it; with MSG_WAITALL it waits for all.
  EQ(rrecv(fd, buf, 2, MSG_PEEK), 2);
  EQ(memcmp(buf, "gh", 2), 0);
  tell('4');
  EQ(rrecv(fd, buf, 8, MSG_PEEK | MSG_WAITALL), 8);
  EQ(memcmp(buf, "ghijklmn", 8), 0);
  // MSG_TRUNC throws away.
  memset(buf, '-', sizeof buf);
  EQ(rrecv(fd, buf, 3, MSG_TRUNC), 3);
  CHECK(buf[0] == '-');
  EQ(rrecv(fd, buf, sizeof buf, 0), 5);
  EQ(memcmp(buf, "jklmn", 5), 0);
#ifndef PLAIN
  FAILS(rrecv(fd, buf, 1, MSG_OOB), ENOTSUP);
#endif
  FAILS(rrecv(fd, buf, 1, MSG_ERRQUEUE), EAGAIN);
  EQ(rclose(fd), 0);
  tell('5');
}
static int pipes_broken;
static void on_pipe(int sig) {
  (void)sig;
  pipes_broken++;
}
static void flags_client(int fd) {
  signal(SIGPIPE, on_pipe);
  hear('1');
  EQ(rsend(fd, "abc", 3, MSG_MORE), 3);
  EQ(rsend(fd, "def", 3, MSG_NOSIGNAL), 3);
  hear('2');
  EQ(rsend(fd, "ghij", 4, MSG_DONTWAIT), 4);
  tell('3');
  hear('4');
  nap(100);
  put(fd, "klmn", 4);
#ifndef PLAIN
  FAILS(rsend(fd, "x", 1, MSG_OOB), ENOTSUP);
#endif
  hear('5');
  CHECK(ready(fd, POLLRDHUP, 20000) & POLLRDHUP);
  char c;
  get_eof(fd);
  for (int i = 0; i < 3; i++) {
    ssize_t n = rsend(fd, "x", 1, MSG_NOSIGNAL);
    if (n == 1) {
      nap(100);
      continue;  // TCP must hear of it first
    }
    CHECK(n == -1 && (errno == EPIPE || errno == ECONNRESET));
  }
  EQ(pipes_broken, 0);
  CHECK(rsend(fd, "x", 1, 0) == -1 && errno == EPIPE);
  EQ(pipes_broken, 1);
  CHECK(rrecv(fd, &c, 1, 0) <= 0);
}

// O_NONBLOCK and FD_CLOEXEC, SOCK_NONBLOCK and SOCK_CLOEXEC.
static void modes_solo(int l) {
  int plain = fresh(), fd = rsocket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), ends[2];
  char c;
  CHECK(fd >= 0);
  EQ(rfcntl(plain, F_GETFL) & O_NONBLOCK, 0);
  EQ(rfcntl(plain, F_GETFD), 0);
  EQ(rfcntl(fd, F_GETFL) & O_NONBLOCK, O_NONBLOCK);
  EQ(rfcntl(fd, F_GETFD), FD_CLOEXEC);
  EQ(rfcntl(fd, F_SETFD, 0), 0);
  EQ(rfcntl(fd, F_GETFD), 0);
  // What a listener has does not go to what it accepts.
  nonblock(l, 1);
  EQ(rfcntl(l, F_SETFD, FD_CLOEXEC), 0);
  FAILS(raccept(l, NULL, NULL), EAGAIN);
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  ends[0] = plain;
  EQ(rconnect(ends[0], (struct sockaddr *)&a, len), 0);
  EQ(ready(l, POLLIN, 20000), POLLIN);
  ends[1] = raccept(l, NULL, NULL);
  CHECK(ends[1] >= 0);
  EQ(rfcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
  EQ(rfcntl(ends[1], F_GETFD), 0);
  touch(ends[0], 0 * (put(ends[1], "y", 1), 0));
  get(ends[1], &c, 1);
  nonblock(ends[0], 1);
  FAILS(rrecv(ends[0], &c, 1, 0), EAGAIN);
  FAILS(rrecv(ends[0], &c, 1, MSG_WAITALL), EAGAIN);
  nonblock(ends[0], 0);
  EQ(rfcntl(ends[0], F_GETFL) & O_NONBLOCK, 0);
}

const rs_case CASES[] = {
    {"flags", flags_server, flags_client, 0},
    {"modes", modes_solo, NULL, SOLO},
    {0},
};
