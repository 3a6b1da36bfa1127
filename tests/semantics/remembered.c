// What a connection remembers of its end, and what calls make of flags and times that few programs
// use.
#include "pair.h"

#include <sys/syscall.h>
#include <sys/uio.h>

static char x[70000];

// The peer sends 100 bytes and resets; they are here when this returns.
static int reset_behind(int lfd) {
  int s[2];
  struct linger g = {1, 0};
  two(lfd, s);
  put(s[0], x, 100);
  CHECK(!setsockopt(s[0], SOL_SOCKET, SO_LINGER, &g, sizeof g));
  CHECK(!close(s[0]));
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP | POLLERR | POLLHUP);
  return s[1];
}
// A stream that was cut short does not look like one that has ended, whatever took the last bytes.
static void then_reset(int fd) {
  FAILS(recv(fd, x, 10, 0), ECONNRESET);
  EQ(recv(fd, x, 10, 0), 0);
  EQ(recv(fd, x, 10, MSG_DONTWAIT), 0);
  EQ(recv(fd, x, 10, MSG_DONTWAIT), 0);
  FAILS(send(fd, x, 1, MSG_NOSIGNAL), EPIPE);
  close(fd);
}
static void reset_after_part(int lfd) {
  int fd = reset_behind(lfd);
  EQ(recv(fd, x, 1000, 0), 100);
  then_reset(fd);
}
static void reset_after_waitall(int lfd) {
  int fd = reset_behind(lfd);
  EQ(recv(fd, x, 1000, MSG_WAITALL), 100);
  then_reset(fd);
  fd = reset_behind(lfd);
  EQ(recv(fd, x, 1000, MSG_WAITALL | MSG_DONTWAIT), 100);
  then_reset(fd);
  fd = reset_behind(lfd);
  EQ(recv(fd, x, 1000, MSG_WAITALL | MSG_PEEK), 100);
  EQ(recv(fd, x, 100, 0), 100);
  then_reset(fd);
}
static void reset_after_low_water(int lfd) {
  int fd = reset_behind(lfd), low = 5000;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &low, sizeof low));
  EQ(recv(fd, x, 9000, 0), 100);
  then_reset(fd);
}
static void reset_after_splice(int lfd) {
  int fd = reset_behind(lfd), p[2];
  CHECK(!pipe(p));
  EQ(splice(fd, NULL, p[1], NULL, 1000, 0), 100);
  FAILS(splice(fd, NULL, p[1], NULL, 1000, 0), ECONNRESET);
  EQ(splice(fd, NULL, p[1], NULL, 1000, 0), 0);
  close(fd);
  // What the last one takes is less than the pipe could.
  fd = reset_behind(lfd);
  EQ(splice(fd, NULL, p[1], NULL, 60, 0), 60);
  EQ(splice(fd, NULL, p[1], NULL, 1000, SPLICE_F_NONBLOCK), 40);
  then_reset(fd);
  close(p[0]), close(p[1]);
}
static void reset_is_an_error_to_ask_for(int lfd) {
  int fd = reset_behind(lfd), e = -1;
  socklen_t l = sizeof e;
  EQ(recv(fd, x, 1000, MSG_WAITALL), 100);
  EQ(ready(fd, POLLIN, 0) & POLLERR, POLLERR);
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &l));
  EQ(e, ECONNRESET);
  EQ(ready(fd, POLLIN, 0) & POLLERR, 0);
  EQ(recv(fd, x, 10, 0), 0);
}
static void several(struct mmsghdr *m, struct iovec *v) {
  memset(m, 0, 3 * sizeof *m);
  for (int i = 0; i < 3; i++) {
    v[i] = (struct iovec){x + 100 * i, 100};
    m[i].msg_hdr = (struct msghdr){.msg_iov = &v[i], .msg_iovlen = 1};
  }
}
// recvmmsg looks for the error before it takes the first message.
static void reset_before_messages(int lfd) {
  struct mmsghdr m[3];
  struct iovec v[3];
  for (int flags = 0; flags <= MSG_DONTWAIT; flags += MSG_DONTWAIT) {
    int fd = reset_behind(lfd);
    several(m, v);
    FAILS(recvmmsg(fd, m, 3, flags, NULL), ECONNRESET);
    EQ(recv(fd, x, 1000, 0), 100);
    EQ(recv(fd, x, 10, 0), 0);
    close(fd);
  }
}
// Both ends are shut, and what is sent all the same is answered by a reset: a shutdown after it
// ends nothing in order.
static void reset_before_shutdown(int lfd) {
  int s[2];
  two(lfd, s);
  CHECK(!shutdown(s[0], SHUT_RDWR));
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
  EQ(send(s[1], x, 4096, MSG_NOSIGNAL), 4096);
  until(s[1], POLLIN, POLLIN | POLLERR | POLLHUP);
  FAILS(shutdown(s[1], SHUT_WR), ENOTCONN);
  FAILS(recv(s[0], x, 10, MSG_DONTWAIT), ECONNRESET);
  EQ(recv(s[0], x, 10, MSG_DONTWAIT), 0);
  EQ(recv(s[1], x, 10, MSG_DONTWAIT), 0);
}
// An end is an end however often, and however fast, it is asked for.
static void end_without_waiting(int lfd) {
  int s[2];
  for (int i = 0; i < 2; i++) {
    two(lfd, s);
    if (i) put(s[0], "tail", 4);
    close(s[0]);
    until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
    if (i) EQ(recv(s[1], x, 100, MSG_DONTWAIT), 4);
    for (int k = 0; k < 6; k++) EQ(recv(s[1], x, 100, MSG_DONTWAIT | (k & 1 ? MSG_PEEK : 0)), 0);
    nonblock(s[1], 1);
    for (int k = 0; k < 6; k++) EQ(read(s[1], x, 100), 0);
    close(s[1]);
  }
}
static int pipes;
static void piped(int n) { pipes += n == SIGPIPE; }
static void breaks(long r) {
  int e = errno;
  CHECK(r == -1 && e == EPIPE && pipes == 1);
  pipes = 0;
}
// Nothing can be written to a connection that has ended, but for no buffers at all.
static void zero_writes(int lfd) {
  int s[2];
  struct iovec v[2] = {{x, 0}, {x, 0}};
  signal(SIGPIPE, piped);
  two(lfd, s);
  EQ(write(s[0], x, 0), 0);
  CHECK(!shutdown(s[0], SHUT_RDWR));
  EQ(writev(s[0], v, 2), 0);
  EQ(writev(s[0], v, 0), 0);
  breaks(write(s[0], x, 0));
  breaks(send(s[0], x, 0, 0));
  FAILS(send(s[0], x, 0, MSG_NOSIGNAL), EPIPE);
  EQ(pipes, 0);
  close(s[0]);
  close(s[1]);
  two(lfd, s);
  close(s[0]);
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
  EQ(send(s[1], x, 8, 0), 8);
  until(s[1], POLLIN, POLLIN | POLLERR | POLLHUP);
  breaks(write(s[1], x, 0));
  FAILS(send(s[1], x, 0, MSG_NOSIGNAL), EPIPE);
  FAILS(send(s[1], x, 1, MSG_NOSIGNAL), EPIPE);
}
// A receive of nothing hears of a reset, too.
static void zero_receives(int lfd) {
  int s[2];
  two(lfd, s);
  FAILS(recv(s[0], x, 0, MSG_DONTWAIT), EAGAIN);
  put(s[1], x, 8);
  EQ(recv(s[0], x, 0, 0), 0);
  put(s[0], x, 8);
  until(s[1], POLLIN, POLLIN);
  close(s[1]);
  until(s[0], POLLRDHUP, POLLRDHUP | POLLERR | POLLHUP);
  get(s[0], x, 8);
  FAILS(recv(s[0], x, 0, MSG_DONTWAIT), ECONNRESET);
  EQ(recv(s[0], x, 0, MSG_DONTWAIT), 0);
  EQ(recv(s[0], x, 1, 0), 0);
}
// MSG_TRUNC takes as much as was asked for.
static void thrown_away(int lfd) {
  int s[2];
  two(lfd, s);
  for (int i = 0; i < 70000; i += 7000) put(s[0], x, 7000);
  EQ(recv(s[1], x, 70000, MSG_PEEK | MSG_WAITALL), 70000);
  EQ(recv(s[1], NULL, 70000, MSG_PEEK | MSG_TRUNC), 70000);
  EQ(recv(s[1], NULL, 70000, MSG_TRUNC), 70000);
  FAILS(recv(s[1], x, 1, MSG_DONTWAIT), EAGAIN);
}
// The flags of docs/flags.md that mean something; all others of the 32 mean nothing to TCP.
enum { RECV_MEANS = MSG_OOB | MSG_PEEK | MSG_WAITALL | MSG_ERRQUEUE, SEND_MEANS = MSG_OOB | MSG_FASTOPEN | MSG_MORE };
static struct mmsghdr one_message(struct iovec *v) {
  return (struct mmsghdr){.msg_hdr = {.msg_iov = v, .msg_iovlen = 1, .msg_flags = MSG_CTRUNC}};
}
// Flags that mean nothing to TCP are nothing to wait for.
static void all_flags(int lfd) {
  int s[2];
  signal(SIGPIPE, SIG_IGN);
  two(lfd, s);
  for (int i = 31; i >= 0; i--) {
    int flag = (int)(1u << i), out = flag & SEND_MEANS ? 0 : flag, in = flag & RECV_MEANS ? 0 : flag;
    struct iovec v = {x, 64};
    struct mmsghdr m = one_message(&v);
    EQ(send(s[0], x, 64, out), 64);
    EQ(ready(s[1], POLLIN, 2000), POLLIN);
    EQ(recv(s[1], x, 64, in), 64);
    EQ(sendto(s[0], x, 64, out, NULL, 0), 64);
    EQ(ready(s[1], POLLIN, 2000), POLLIN);
    EQ(recvfrom(s[1], x, 64, in, NULL, NULL), 64);
    if (flag < 0) {
      FAILS(sendmsg(s[0], &m.msg_hdr, flag), EINVAL);
      FAILS(sendmmsg(s[0], &m, 1, flag), EINVAL);
      FAILS(recvmsg(s[1], &m.msg_hdr, flag), EINVAL);
      FAILS(recvmmsg(s[1], &m, 1, flag, NULL), EINVAL);
      continue;
    }
    EQ(sendmsg(s[0], &m.msg_hdr, out), 64);
    EQ(ready(s[1], POLLIN, 2000), POLLIN);
    EQ(recvmsg(s[1], &m.msg_hdr, in), 64);
    // The only one that the header gives back.
    EQ(m.msg_hdr.msg_flags, in & MSG_CMSG_CLOEXEC);
    m = one_message(&v);
    EQ(sendmmsg(s[0], &m, 1, out), 1);
    EQ(m.msg_len, 64);
    EQ(ready(s[1], POLLIN, 2000), POLLIN);
    m = one_message(&v);
    EQ(recvmmsg(s[1], &m, 1, in, NULL), 1);
    EQ(m.msg_len, 64);
    EQ(m.msg_hdr.msg_flags, in & MSG_CMSG_CLOEXEC);
  }
  FAILS(recv(s[1], x, 1, MSG_DONTWAIT), EAGAIN);
}
// Where nothing is here, one flag says not to wait, and two ask for what is not of the stream.
static void all_flags_of_nothing(int lfd) {
  int s[2];
  struct timeval t = {0, 30000};
  two(lfd, s);
  CHECK(!setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
  for (int i = 0; i < 31; i++) {
    int flag = 1 << i, error = flag == MSG_OOB ? EINVAL : EAGAIN;
    struct iovec v = {x, 64};
    struct mmsghdr m = one_message(&v);
    double began = now();
    FAILS(recv(s[1], x, 64, flag), error);
    FAILS(recvfrom(s[1], x, 64, flag, NULL, NULL), error);
    FAILS(recvmsg(s[1], &m.msg_hdr, flag), error);
    FAILS(recvmmsg(s[1], &m, 1, flag, NULL), error);
    if (!(flag & (MSG_OOB | MSG_ERRQUEUE | MSG_DONTWAIT))) CHECK(now() - began > 0.1);
  }
}
// A connection is not connected again, and stays what it is.
static void connected_already(int lfd) {
  int s[2];
  two(lfd, s);
  struct iovec v = {x, 8};
  struct mmsghdr m = one_message(&v);
  // What this host's kernel says, which no library hears.
  CHECK(syscall(SYS_sendto, s[0], x, 8, MSG_FASTOPEN, NULL, 0) == -1);
  const int refused = errno;
  FAILS(send(s[0], x, 8, MSG_FASTOPEN), refused);
  FAILS(sendto(s[0], x, 8, MSG_FASTOPEN, NULL, 0), refused);
  FAILS(sendmsg(s[0], &m.msg_hdr, MSG_FASTOPEN), refused);
  FAILS(sendmmsg(s[0], &m, 1, MSG_FASTOPEN), refused);
  FAILS(recv(s[1], x, 1, MSG_DONTWAIT), EAGAIN);
  put(s[0], x, 8);
  get(s[1], x, 8);
}
// Less than no time is no time.
static void negative_times(int lfd) {
  int s[2];
  struct timeval t = {-1, 0};
  two(lfd, s);
  CHECK(!setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
  CHECK(!setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
  FAILS(recv(s[1], x, 1, 0), EAGAIN);
  put(s[0], x, 1);
  EQ(recv(s[1], x, 1, MSG_WAITALL), 1);
  long r;
  while ((r = send(s[0], x, sizeof x, 0)) > 0) {}
  CHECK(r == -1 && errno == EAGAIN);
  // None at all is for ever.
  t = (struct timeval){0, 0};
  CHECK(!setsockopt(s[0], SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t));
  t = (struct timeval){0, 1000000};
  FAILS(setsockopt(s[1], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t), EDOM);
}
static void address_of_no_length(int lfd) {
  int s[2];
  struct sockaddr_storage a;
  socklen_t l = (socklen_t)-1;
  two(lfd, s);
  put(s[0], x, 6);
  EQ(ready(s[1], POLLIN, 2000), POLLIN);
  FAILS(recvfrom(s[1], x, 2, 0, (struct sockaddr *)&a, &l), EINVAL);
  l = sizeof a;
  EQ(recvfrom(s[1], x, 2, 0, (struct sockaddr *)&a, &l), 2);
  EQ(l, 0);
  FAILS(recvfrom(s[1], x, 1, 0, (struct sockaddr *)&a, NULL), EFAULT);
  EQ(recvfrom(s[1], x, 2, 0, NULL, NULL), 1);
}

#define CASE(name) {#name, name, NULL, SOLO}
const test_case CASES[] = {
  CASE(reset_after_part),
  CASE(reset_after_waitall),
  CASE(reset_after_low_water),
  CASE(reset_after_splice),
  CASE(reset_is_an_error_to_ask_for),
  CASE(reset_before_messages),
  CASE(reset_before_shutdown),
  CASE(end_without_waiting),
  CASE(zero_writes),
  CASE(zero_receives),
  CASE(thrown_away),
  CASE(all_flags),
  CASE(all_flags_of_nothing),
  CASE(connected_already),
  CASE(negative_times),
  CASE(address_of_no_length),
  {0},
};
