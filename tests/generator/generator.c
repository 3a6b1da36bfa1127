// A generator of calls: random sequences on a TCP connection in mid-life, made once without the library and once with it.
//
//   generator run FIRST COUNT [-6]   writes one line a call ("SEED STEP CALL = RESULT") for seeds FIRST to FIRST+COUNT-1
//   generator replay SEED [-6] [KEEP]  the calls of one seed; KEEP is a string of 0 and 1, which of them are made
//
// It knows nothing of the library. `tests/generator/run` runs it both ways and compares what was written, so whatever is
// written must not depend on time: before each call all bytes that were sent have arrived (`settle`), and no call moves
// more than the buffers of both ends hold. Both ends belong to one process; forked children make calls too.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 20, LARGEST = 3000, WARM = 40 };

static uint64_t state;
static int s[2];                       // s[0] dialled, s[1] was accepted
static uint64_t sent[2], received[2];  // positions of the streams that s[i] sends, receives
static int ended[2];                   // s[i] sends no more
static int closed[2], set, six;
static char buffer[LARGEST * 4];

static unsigned pick(unsigned n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)(state >> 33) % n;
}

static void die(const char *what) {
  perror(what);
  exit(2);
}

// The byte at a position of the stream that s[end] sends.
static char byte_at(int end, uint64_t at) { return (char)((at * 31 + (at >> 8) * 7 + (uint64_t)end * 101) & 0xff); }

static void write_out(int end, size_t n) {
  for (size_t i = 0; i < n; i++) buffer[i] = byte_at(end, sent[end] + i);
}

// What was received is right, by its position; a peek does not move it on.
static const char *read_back(int end, ssize_t n, int moves) {
  for (ssize_t i = 0; i < n; i++)
    if (buffer[i] != byte_at(!end, received[end] + (uint64_t)i)) return " WRONG BYTES";
  if (moves && n > 0) received[end] += (uint64_t)n;
  return "";
}

static long waiting(int end) {
  int n = 0;
  return ioctl(s[end], FIONREAD, &n) < 0 ? -1 : n;
}

// Until everything that was sent, the end too, has arrived.
static void settle(void) {
  for (int end = 0; end < 2; end++) {
    if (closed[0] || closed[1]) return;
    for (int i = 0; i < 300; i++) {
      struct pollfd p = {s[end], POLLRDHUP, 0};
      int here = waiting(end) >= (long)(sent[!end] - received[end]);
      if (here && (!ended[!end] || (poll(&p, 1, 0) == 1 && p.revents & POLLRDHUP))) break;
      usleep(i < 50 ? 20 : 1000);
    }
  }
}

static void pair(void) {
  struct sockaddr_storage a = {0};
  socklen_t n = six ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in);
  if (six) {
    ((struct sockaddr_in6 *)&a)->sin6_family = AF_INET6;
    ((struct sockaddr_in6 *)&a)->sin6_addr = in6addr_loopback;
  } else {
    ((struct sockaddr_in *)&a)->sin_family = AF_INET;
    ((struct sockaddr_in *)&a)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  static int listener = -1;
  if (listener < 0) {
    listener = socket(a.ss_family, SOCK_STREAM, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&a, n) < 0 || listen(listener, 8) < 0) die("listen");
  }
  getsockname(listener, (struct sockaddr *)&a, &n);
  s[0] = socket(a.ss_family, SOCK_STREAM, 0);
  if (s[0] < 0 || connect(s[0], (struct sockaddr *)&a, n) < 0) die("connect");
  s[1] = accept(listener, NULL, NULL);
  if (s[1] < 0) die("accept");
  for (int end = 0; end < 2; end++) sent[end] = received[end] = 0, ended[end] = closed[end] = 0;
  // To and fro, so that the connection is in mid-life.
  for (int i = 0; i < WARM; i++) {
    int end = i & 1;
    write_out(end, 1000);
    if (send(s[end], buffer, 1000, 0) != 1000) die("warm send");
    sent[end] += 1000;
    if (recv(s[!end], buffer, 1000, MSG_WAITALL) != 1000 || *read_back(!end, 1000, 1)) die("warm recv");
  }
  for (int end = 0; end < 2; end++) {
    int one = 1;
    setsockopt(s[end], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    fcntl(s[end], F_SETFL, fcntl(s[end], F_GETFL) | O_NONBLOCK);
  }
  set = epoll_create1(0);
}

#define SAY(...) snprintf(out, 200, __VA_ARGS__)
static const char *error(ssize_t r) { return r < 0 ? strerrorname_np(errno) : ""; }

static void do_send(int end, int how, size_t n, char *out) {
  static const int flags[] = {0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_DONTROUTE, MSG_EOR, MSG_CONFIRM};
  int f = flags[pick(6)] | MSG_NOSIGNAL;
  write_out(end, n);
  struct iovec v[3] = {{buffer, n / 3}, {buffer + n / 3, 0}, {buffer + n / 3, n - n / 3}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
  struct mmsghdr mm = {.msg_hdr = m};
  ssize_t r = 0;
  if (how == 0) r = send(s[end], buffer, n, f);
  if (how == 1) r = write(s[end], buffer, n);
  if (how == 2) r = writev(s[end], v, 3);
  if (how == 3) r = sendmsg(s[end], &m, f);
  if (how == 4) r = sendmmsg(s[end], &mm, 1, f) == 1 ? (ssize_t)mm.msg_len : -1;
  if (how == 5) r = sendto(s[end], buffer, n, f, NULL, 0);
  SAY("%d send/%d %zu flags %#x = %zd %s", end, how, n, f, r, error(r));
  if (r > 0) sent[end] += (uint64_t)r;
}

static void do_receive(int end, int how, size_t n, char *out) {
  static const int flags[] = {0, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_DONTWAIT, MSG_CTRUNC, MSG_MORE, MSG_EOR,
                              MSG_PEEK | MSG_TRUNC, MSG_DONTROUTE, MSG_NOSIGNAL, MSG_WAITFORONE};
  int f = flags[pick(12)];
  struct iovec v[3] = {{buffer, n / 3}, {buffer + n / 3, 0}, {buffer + n / 3, n - n / 3}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
  struct mmsghdr mm = {.msg_hdr = m};
  ssize_t r = 0;
  if (how == 1 || how == 2) f = 0;
  if (how == 0) r = recv(s[end], buffer, n, f);
  if (how == 1) r = read(s[end], buffer, n);
  if (how == 2) r = readv(s[end], v, 3);
  if (how == 3) r = recvmsg(s[end], &m, f);
  if (how == 4) r = recvmmsg(s[end], &mm, 1, f, NULL) == 1 ? (ssize_t)mm.msg_len : -1;
  if (how == 5) r = recvfrom(s[end], buffer, n, f, NULL, NULL);
  const char *right = f & MSG_TRUNC ? "" : read_back(end, r, !(f & MSG_PEEK));
  // MSG_TRUNC alone drops the bytes.
  if (f == MSG_TRUNC && r > 0) received[end] += (uint64_t)r;
  SAY("%d recv/%d %zu flags %#x = %zd %s%s", end, how, n, f, r, error(r), right);
}

static void do_ready(int end, int how, char *out) {
  if (how == 0) {
    struct pollfd p = {s[end], POLLIN | POLLOUT | POLLRDHUP | POLLPRI, 0};
    int r = poll(&p, 1, 0);
    SAY("%d poll = %d %#x", end, r, (unsigned)p.revents);
  } else if (how == 1) {
    fd_set in, to;
    FD_ZERO(&in);
    FD_ZERO(&to);
    FD_SET(s[end], &in);
    FD_SET(s[end], &to);
    struct timeval t = {0, 0};
    int r = select(s[end] + 1, &in, &to, NULL, &t);
    SAY("%d select = %d %d%d", end, r, !!FD_ISSET(s[end], &in), !!FD_ISSET(s[end], &to));
  } else if (how == 2) {
    static const unsigned kinds[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLONESHOT, EPOLLPRI,
                                     EPOLLIN | EPOLLRDHUP, 0};
    struct epoll_event e = {.events = kinds[pick(7)], .data.u32 = (unsigned)end};
    unsigned wanted = e.events;
    int op = 1 + (int)pick(3), r = epoll_ctl(set, op, s[end], &e);
    SAY("%d epoll_ctl %d %#x = %d %s", end, op, wanted, r, error(r));
  } else {
    struct epoll_event e[4];
    unsigned seen[2] = {0, 0};
    int r = epoll_wait(set, e, 4, 0);
    // In whatever order.
    for (int i = 0; i < r; i++) seen[e[i].data.u32 & 1] |= e[i].events;
    SAY("epoll_wait = %d %#x %#x", r, seen[0], seen[1]);
  }
}

static void do_option(int end, int how, char *out) {
  static const struct { int level, name, most; } options[] = {
      {SOL_SOCKET, SO_KEEPALIVE, 2}, {SOL_SOCKET, SO_RCVLOWAT, 50}, {IPPROTO_TCP, TCP_NODELAY, 2},
      {IPPROTO_TCP, TCP_QUICKACK, 2}, {SOL_SOCKET, SO_OOBINLINE, 2}, {SOL_SOCKET, SO_PRIORITY, 4}};
  if (how == 0) {
    unsigned i = pick(6);
    int v = (int)pick((unsigned)options[i].most), r = setsockopt(s[end], options[i].level, options[i].name, &v, sizeof v);
    SAY("%d setsockopt %d %d = %d = %d %s", end, options[i].level, options[i].name, v, r, error(r));
  } else if (how == 1) {
    int v = -1;
    socklen_t n = sizeof v;
    int r = getsockopt(s[end], SOL_SOCKET, SO_ERROR, &v, &n);
    SAY("%d SO_ERROR = %d %d", end, r, v);
  } else SAY("%d FIONREAD = %ld", end, waiting(end));
}

// Another number for the connection, by dup, by dup2, by a message to ourselves.
static void do_number(int end, int how, char *out) {
  int other = -1, p[2];
  if (how == 0) other = dup(s[end]);
  if (how == 1) other = fcntl(s[end], F_DUPFD_CLOEXEC, 50);
  if (how == 2 && socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0) {
    char c = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec v = {&c, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    struct cmsghdr *h = CMSG_FIRSTHDR(&m);
    h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(h), &s[end], sizeof(int));
    if (sendmsg(p[0], &m, 0) == 1 && recvmsg(p[1], &m, 0) == 1) memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof(int));
    close(p[0]), close(p[1]);
  }
  // A registration stays with its old number: it is taken away first, so that the old number means nothing any more.
  epoll_ctl(set, EPOLL_CTL_DEL, s[end], NULL);
  close(s[end]);
  s[end] = other;
  SAY("%d number/%d = %s", end, how, other < 0 ? "none" : "ok");
}

// A child that sends and receives.
static void do_fork(int end, char *out) {
  size_t n = 1 + pick(LARGEST);
  write_out(end, n);
  pid_t child = fork();
  if (child == 0) _exit(write(s[end], buffer, n) == (ssize_t)n ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  if (status == 0) sent[end] += n;
  SAY("%d fork writes %zu = %d", end, n, status);
}

// One call, or one idea of a few.
static void step(char *out) {
  int end = (int)pick(2);
  unsigned what = pick(100);
  size_t n = pick(8) ? 1 + pick(LARGEST) : pick(3);
  if (closed[end]) end = !end;
  if (what < 30) do_send(end, (int)pick(6), n, out);
  else if (what < 60) do_receive(end, (int)pick(6), n, out);
  else if (what < 80) do_ready(end, (int)pick(4), out);
  else if (what < 88) do_option(end, (int)pick(3), out);
  else if (what < 93) do_number(end, (int)pick(3), out);
  else if (what < 95) do_fork(end, out);
  else if (what < 98) {
    // Only this way: what is sent to an end that reads no more resets the connection at a time of its own.
    int how = SHUT_WR, r = shutdown(s[end], how);
    if (r == 0) ended[end] = 1;
    SAY("%d shutdown %d = %d %s", end, how, r, error(r));
  } else SAY("nothing");
}

static void sequence(uint64_t seed, const char *keep) {
  state = seed * 0x9e3779b97f4a7c15u + 0x1234567;
  for (int i = 0; i < 8; i++) pick(2);
  pair();
  int calls = 3 + (int)pick(MOST - 2);
  for (int i = 0; i < calls; i++) {
    uint64_t mine = seed * 1000 + (uint64_t)i + 1;
    char out[200] = "";
    // Each call has random numbers of its own, so that one may be left out and the others stay as they are.
    state = mine * 0x9e3779b97f4a7c15u;
    for (int k = 0; k < 8; k++) pick(2);
    if (keep && (size_t)i < strlen(keep) && keep[i] == '0') continue;
    settle();
    step(out);
    printf("%llu %d %s\n", (unsigned long long)seed, i, out);
  }
  for (int end = 0; end < 2; end++) close(s[end]);
  close(set);
  printf("%llu end\n", (unsigned long long)seed);
  fflush(stdout);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  uint64_t first = strtoull(argv[2], NULL, 10), count = 1;
  const char *keep = NULL;
  int i = 3;
  if (!strcmp(argv[1], "run") && argc > i) count = strtoull(argv[i++], NULL, 10);
  for (; i < argc; i++) {
    if (!strcmp(argv[i], "-6")) six = 1;
    else keep = argv[i];
  }
  signal(SIGPIPE, SIG_IGN);
  for (uint64_t k = 0; k < count; k++) sequence(first + k, keep);
  return 0;
}
