// What upstream's preload library gets wrong about calls, one case for each row of the list of its
// gaps, section 6.
#include "pair.h"

#include <dlfcn.h>
#include <netinet/ip.h>
#include <sys/syscall.h>

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *restrict, size_t, size_t, int, struct sockaddr *restrict, socklen_t *restrict);
int __poll_chk(struct pollfd *, nfds_t, int, size_t);
int __ppoll_chk(struct pollfd *, nfds_t, const struct timespec *, const sigset_t *, size_t);
int fcntl64(int, int, ...);
ssize_t sendfile64(int, int, off_t *, size_t);

static void both_ways(int a, int b) {
  char x[64], y[64];
  fill(x, sizeof x, 3, 0);
  put(a, x, sizeof x), get(b, y, sizeof y);
  verify(y, sizeof y, 3, 0);
  put(b, x, sizeof x), get(a, y, sizeof y);
  verify(y, sizeof y, 3, 0);
}

// 6.1 Calls that act on a placeholder: ppoll, epoll_pwait, recvmmsg, sendmmsg, FIONBIO, FIONREAD,
// fstat; stdio.
static void g6_01_no_placeholder(int lfd) {
  int s[2], n = -1, on = 1;
  two(lfd, s);
  struct pollfd p = {s[0], POLLIN, 0};
  struct timespec ts = {0, 1000000};
  EQ(ppoll(&p, 1, &ts, NULL), 0);
  char b[2][4] = {"abc", "def"}, in[2][4] = {{0}};
  struct iovec v[2] = {{b[0], 4}, {b[1], 4}}, w[2] = {{in[0], 4}, {in[1], 4}};
  struct mmsghdr out[2] = {{{.msg_iov = v, .msg_iovlen = 1}, 0}, {{.msg_iov = v + 1, .msg_iovlen = 1}, 0}};
  struct mmsghdr got[2] = {{{.msg_iov = w, .msg_iovlen = 1}, 0}, {{.msg_iov = w + 1, .msg_iovlen = 1}, 0}};
  EQ(sendmmsg(s[1], out, 2, 0), 2);
  until(s[0], POLLIN, POLLIN);
  for (double end = now() + 5; n != 8 && now() < end; nap(1)) CHECK(!ioctl(s[0], FIONREAD, &n));
  EQ(n, 8);
  EQ(recvmmsg(s[0], got, 2, MSG_WAITALL, NULL), 2);
  CHECK(!memcmp(in, b, 8) && got[0].msg_len == 4 && got[1].msg_len == 4);
  EQ(ioctl(s[0], FIONBIO, &on), 0);
  FAILS(read(s[0], in, 1), EAGAIN);
}
static void g6_01_stdio(int lfd) {
  int s[2];
  char line[32];
  two(lfd, s);
  FILE *a = fdopen(s[0], "r+"), *b = fdopen(s[1], "r+");
  CHECK(a && b);
  CHECK(fprintf(a, "line %d\n", 1) == 7 && !fflush(a));
  CHECK(fgets(line, sizeof line, b) && !strcmp(line, "line 1\n"));
  fclose(a);
  CHECK(!fgets(line, sizeof line, b) && feof(b));
  fclose(b);
}

// 6.2 The fortified names.
static void g6_02_fortified(int lfd) {
  int s[2];
  char b[8];
  two(lfd, s);
  put(s[0], "abcdef", 6);
  struct pollfd p = {s[1], POLLIN, 0};
  EQ(__poll_chk(&p, 1, 5000, sizeof p), 1);
  EQ(__ppoll_chk(&p, 1, NULL, NULL, sizeof p), 1);
  EQ(__read_chk(s[1], b, 2, sizeof b), 2);
  EQ(__recv_chk(s[1], b + 2, 2, sizeof b - 2, 0), 2);
  EQ(__recvfrom_chk(s[1], b + 4, 2, sizeof b - 4, 0, NULL, NULL), 2);
  CHECK(!memcmp(b, "abcdef", 6));
  FAILS(__recv_chk(s[1], b, 2, sizeof b, MSG_DONTWAIT), EAGAIN);
}

// 6.3 fstat.
static void g6_03_fstat(int lfd) {
  int s[2];
  two(lfd, s);
  struct stat a, b;
  EQ(fstat(s[0], &a), 0);
  EQ(fstat(s[1], &b), 0);
  CHECK(S_ISSOCK(a.st_mode) && a.st_ino != b.st_ino && a.st_uid == geteuid());
}

// 6.4 dup and F_DUPFD. 6.5 dup2 and dup3: each name lives until it is closed itself.
static void g6_04_dup(int lfd) {
  int s[2];
  two(lfd, s);
  int a = dup(s[0]), b = fcntl(s[0], F_DUPFD, 50), c = fcntl(s[0], F_DUPFD_CLOEXEC, 50);
  CHECK(a >= 0 && b >= 50 && c >= 50);
  EQ(fcntl(b, F_GETFD), 0);
  EQ(fcntl(c, F_GETFD), FD_CLOEXEC);
  both_ways(a, s[1]);
  close(s[0]), close(a), close(b);
  both_ways(c, s[1]);
  close(c);
  get_eof(s[1]);
}
static void g6_05_dup2_dup3(int lfd) {
  int s[2];
  two(lfd, s);
  EQ(dup2(s[0], 70), 70);
  EQ(dup3(s[0], 71, O_CLOEXEC), 71);
  EQ(fcntl(71, F_GETFD), FD_CLOEXEC);
  FAILS(dup3(s[0], s[0], 0), EINVAL);
  EQ(dup2(s[0], s[0]), s[0]);
  EQ(close(70), 0);
  both_ways(s[0], s[1]);
  EQ(close(s[0]), 0);
  both_ways(71, s[1]);
  EQ(close(71), 0);
  get_eof(s[1]);
}

// 6.6 sendfile: with and without an offset, at odd places.
static void g6_06_sendfile(int lfd) {
  int s[2];
  static char b[50000];
  two(lfd, s);
  FILE *f = tmpfile();
  int fd = fileno(f);
  fill(b, sizeof b, 4, 0);
  CHECK(write(fd, b, sizeof b) == sizeof b && lseek(fd, 11, SEEK_SET) == 11);
  off_t at = 12345;
  EQ(sendfile(s[0], fd, &at, 1001), 1001);
  EQ(at, 13346);
  EQ(lseek(fd, 0, SEEK_CUR), 11);
  EQ(sendfile64(s[0], fd, NULL, 777), 777);
  EQ(lseek(fd, 0, SEEK_CUR), 788);
  get_stream(s[1], 4, 12345, 13346, 100);
  get_stream(s[1], 4, 11, 788, 100);
  at = sizeof b - 5;
  EQ(sendfile(s[0], fd, &at, 1000), 5);
  EQ(sendfile(s[0], fd, &at, 1000), 0);
}

// 6.7 select as a sleep, in a thread that never selected.
static void *sleeps(void *arg) {
  struct timeval tv = {0, 20000};
  double t = now();
  *(int *)arg = select(0, NULL, NULL, NULL, &tv) == 0 && now() - t >= 0.02;
  return NULL;
}
static void g6_07_select_sleeps(int lfd) {
  int s[2], good = 0;
  two(lfd, s);
  pthread_t t;
  pthread_create(&t, NULL, sleeps, &good);
  pthread_join(t, NULL);
  CHECK(good);
}

// 6.8 Any call may be the first of a process: with a socket that it inherited.
static int first_call(const char *role, const char *what) {
  char b[4] = "";
  socklen_t n = sizeof b;
  struct sockaddr_storage a = {.ss_family = AF_INET};
  socklen_t room = sizeof a;
  (void)role;
  switch (*what) {
    case 'r': return recv(0, b, 1, 0) == 1 ? 0 : 1;
    case 'R': return read(0, b, 1) == 1 ? 0 : 1;
    case 's': return send(0, "x", 1, 0) == 1 ? 0 : 1;
    case 'w': return write(0, "x", 1) == 1 ? 0 : 1;
    case 'g': return getsockopt(0, SOL_SOCKET, SO_ERROR, b, &n) ? 1 : 0;
    case 'p': return getpeername(0, (void *)&a, &room) ? 1 : 0;
    case 'd': return shutdown(0, SHUT_WR) ? 1 : 0;
    case 'c': return connect(0, (void *)&a, 4) == -1 ? 0 : 1;
    case 'l': return bind(0, (void *)&a, 1) == -1 && errno == EINVAL ? 0 : 1;
    case 'f': return sendfile(0, 0, NULL, 1) == -1 ? 0 : 1;
  }
  return 2;
}
__attribute__((constructor)) static void set_role(void) { extra_role = first_call; }
static void g6_08_first_call(int lfd) {
  for (const char *what = "rRswgpdclf"; *what; what++) {
    int s[2];
    // Before anything has been sent: a connection that another program inherits is on TCP.
    s[0] = dial();
    s[1] = accept(lfd, NULL, NULL);
    put(s[1], "yy", 2);
    pid_t p = spawn_self(1, "first", s[0], (char[]){*what, 0});
    int status = exit_status(p);
    if (status) FAIL("%c as the first call: %d", *what, status);
    close(s[0]), close(s[1]);
  }
}

// 6.9 accept4 sets what it is asked to set and nothing else; one that fails leaves nothing.
static void g6_09_accept4(int lfd) {
  int c = dial();
  CHECK(ready(lfd, POLLIN, 10000));
  int a = accept4(lfd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
  CHECK(fcntl(a, F_GETFL) & O_NONBLOCK && fcntl(a, F_GETFD) == FD_CLOEXEC);
  int d = dial();
  nonblock(lfd, 1);
  // A connection over RDMA stands a moment before it can be accepted.
  CHECK(ready(lfd, POLLIN, 10000));
  int b = accept4(lfd, NULL, NULL, 0);
  CHECK(!(fcntl(b, F_GETFL) & O_NONBLOCK) && fcntl(b, F_GETFD) == 0);
  int before = count_fds("");
  for (int i = 0; i < 20; i++) {
    FAILS(accept4(lfd, NULL, NULL, 0), EAGAIN);
    FAILS(accept4(lfd, NULL, NULL, 0x40), EINVAL);
    FAILS(accept4(c, NULL, NULL, 0), EINVAL);
  }
  // The library's own threads may have one open for a moment.
  double end = now() + 2;
  while (count_fds("") != before && now() < end) nap(1);
  SAME(count_fds(""), before);
  (void)d;
}

// 6.10 close gives 0, or -1 with errno.
static void g6_10_close(int lfd) {
  int s[2];
  two(lfd, s);
  EQ(close(s[0]), 0);
  FAILS(close(s[0]), EBADF);
  get_eof(s[1]);
  EQ(close(s[1]), 0);
  FAILS(close(-1), EBADF);
}

// 6.11 Types with flag bits, and the names of programs that are built for large files.
static void g6_11_flag_bits(int lfd) {
  int c = socket(ctx.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP);
  struct sockaddr_storage a;
  socklen_t n = address(&a, ctx.port);
  CHECK(fcntl64(c, F_GETFD) == FD_CLOEXEC && fcntl64(c, F_GETFL) & O_NONBLOCK);
  FAILS(connect(c, (void *)&a, n), EINPROGRESS);
  int s = accept(lfd, NULL, NULL);
  until(c, POLLOUT, POLLOUT);
  EQ(fcntl64(c, F_SETFL, 0), 0);
  settle(c, s);
  both_ways(c, s);
}

// 6.12 What was bound before the connect stays bound; a connect that does not block connects as
// well.
static void g6_12_bind_then_connect(int lfd) {
  struct sockaddr_storage a, own, peer;
  int c = socket(ctx.family, SOCK_STREAM, 0);
  socklen_t n = address(&a, 0), o = sizeof own, p = sizeof peer;
  EQ(bind(c, (void *)&a, n), 0);
  EQ(getsockname(c, (void *)&own, &o), 0);
  n = address(&a, ctx.port);
  EQ(connect(c, (void *)&a, n), 0);
  int s = accept(lfd, (void *)&peer, &p);
  CHECK(p == o && ((struct sockaddr_in *)&own)->sin_port == ((struct sockaddr_in *)&peer)->sin_port);
  settle(c, s);
  both_ways(c, s);
}

// 6.13 Sockets that are not TCP's are left alone.
static void g6_13_others(int lfd) {
  (void)lfd;
  int u = socket(ctx.family, SOCK_DGRAM, 0), v = socket(ctx.family, SOCK_DGRAM, 0), x[2], type;
  struct sockaddr_storage a;
  socklen_t n = address(&a, 0), m = sizeof a, t = sizeof type;
  EQ(bind(u, (void *)&a, n), 0);
  EQ(getsockname(u, (void *)&a, &m), 0);
  EQ(sendto(v, "datagram", 8, 0, (void *)&a, m), 8);
  char b[16];
  EQ(recv(u, b, sizeof b, 0), 8);
  EQ(getsockopt(u, SOL_SOCKET, SO_TYPE, &type, &t), 0);
  EQ(type, SOCK_DGRAM);
  EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, x), 0);
  EQ(write(x[0], "one", 3), 3);
  EQ(read(x[1], b, sizeof b), 3);
}

// 6.16 TCP_INFO in a small buffer, its state, TCP_CONGESTION as text.
static void g6_16_tcp_info(int lfd) {
  int s[2];
  two(lfd, s);
  struct {
    unsigned char info[8], guard[64];
  } small;
  memset(&small, 0xee, sizeof small);
  socklen_t n = sizeof small.info;
  EQ(getsockopt(s[0], IPPROTO_TCP, TCP_INFO, small.info, &n), 0);
  EQ(n, sizeof small.info);
  EQ(small.info[0], TCP_ESTABLISHED);
  for (size_t i = 0; i < sizeof small.guard; i++) EQ(small.guard[i], 0xee);
  char name[32] = "";
  n = sizeof name;
  EQ(getsockopt(s[0], IPPROTO_TCP, TCP_CONGESTION, name, &n), 0);
  CHECK(name[0] >= 'a' && name[0] <= 'z');
}

// 6.17 IP_TOS with an int.
static void g6_17_tos(int lfd) {
  int s[2], tos = 0x10, got = 0;
  socklen_t n = sizeof got;
  two(lfd, s);
  int level = ctx.family == AF_INET ? IPPROTO_IP : IPPROTO_IPV6, name = ctx.family == AF_INET ? IP_TOS : 67;
  EQ(setsockopt(s[0], level, name, &tos, sizeof tos), 0);
  EQ(getsockopt(s[0], level, name, &got, &n), 0);
  EQ(got, tos);
  both_ways(s[0], s[1]);
}

// 6.18 Looked up by name, without a version or with one, a function is right.
static void g6_18_looked_up(int lfd) {
  int s[2];
  char b[4];
  two(lfd, s);
  ssize_t (*out)(int, const void *, size_t) = (void *)dlsym(RTLD_DEFAULT, "write");
  ssize_t (*in)(int, void *, size_t) = (void *)dlsym(RTLD_DEFAULT, "read");
  CHECK(in && out);
  for (int i = 0; i < 30; i++) {
    EQ(out(s[i & 1], "abc", 3), 3);
    EQ(in(s[~i & 1], b, 3), 3);
  }
  void *libc = dlopen("libc.so.6", RTLD_LAZY | RTLD_NOLOAD);
  CHECK(libc && dlsym(libc, "write"));
}

// 6.19 Raw system calls are out of reach: beside libc's, on a connection that is still TCP's, they
// do no harm.
static void g6_19_raw_calls(int lfd) {
  int c = dial(), s = accept(lfd, NULL, NULL);
  char b[8];
  for (int i = 0; i < 3; i++) {
    EQ(syscall(SYS_write, c, "raw", 3), 3);
    EQ(write(c, "libc", 4), 4);
    get(s, b, 7);
    CHECK(!memcmp(b, "rawlibc", 7));
    put(s, b, 2);
    EQ(syscall(SYS_read, c, b, 1), 1);
    EQ(read(c, b, 1), 1);
  }
  both_ways(c, s);
}

#define CASE(name, flags) {#name, name, NULL, SOLO | (flags)}
const test_case CASES[] = {
  CASE(g6_01_no_placeholder, 0),
  CASE(g6_01_stdio, 0),
  CASE(g6_02_fortified, 0),
  CASE(g6_03_fstat, 0),
  CASE(g6_04_dup, 0),
  CASE(g6_05_dup2_dup3, 0),
  CASE(g6_06_sendfile, 0),
  CASE(g6_07_select_sleeps, 0),
  CASE(g6_08_first_call, NOSHM),
  CASE(g6_09_accept4, 0),
  CASE(g6_10_close, 0),
  CASE(g6_11_flag_bits, 0),
  CASE(g6_12_bind_then_connect, 0),
  CASE(g6_13_others, 0),
  CASE(g6_16_tcp_info, 0),
  CASE(g6_17_tos, 0),
  CASE(g6_18_looked_up, 0),
  CASE(g6_19_raw_calls, NOSHM),
  {0},
};
