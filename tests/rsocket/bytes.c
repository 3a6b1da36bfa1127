// Moving bytes: whole streams, vectors, flags, half-closed and broken connections.
#include "rs.h"

static const size_t SIZES[] = {1, 63, 64, 4096, 4097, 65536, 1000003};

static void echo_server(int fd) {
  for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
    get_stream(fd, i, 3000000, SIZES[i] < 64 ? 8191 : SIZES[i]);
    put_stream(fd, i + 100, 3000000, SIZES[i] < 63 ? 5000 : SIZES[i]);
  }
  get_eof(fd);
}
static void echo_client(int fd) {
  for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) {
    put_stream(fd, i, 3000000, SIZES[6 - i] < 63 ? 777 : SIZES[6 - i]);
    get_stream(fd, i + 100, 3000000, SIZES[6 - i] < 63 ? 999 : SIZES[6 - i]);
  }
}

// Both directions at once on a socket that does not block.
static void pump(int fd, uint64_t out, uint64_t in) {
  enum { N = 4 << 20, CHUNK = 50000 };
  static char buf[CHUNK];
  nonblock(fd, 1);
  for (uint64_t sent = 0, got = 0; sent < N || got < N;) {
    struct pollfd p = {.fd = fd, .events = (sent < N ? POLLOUT : 0) | (got < N ? POLLIN : 0)};
    EQ(rpoll(&p, 1, 10000), 1);
    if (p.revents & POLLOUT && sent < N) {
      size_t len = N - sent < CHUNK ? N - sent : CHUNK;
      fill(buf, len, out, sent);
      ssize_t n = rsend(fd, buf, len, 0);
      CHECK(n > 0 || (n < 0 && errno == EAGAIN));
      if (n > 0) sent += n;
    }
    if (p.revents & POLLIN && got < N) {
      ssize_t n = rrecv(fd, buf, sizeof buf, 0);
      CHECK(n > 0 || (n < 0 && errno == EAGAIN));
      if (n > 0) verify(buf, n, in, got), got += n;
    }
  }
  nonblock(fd, 0);
}
static void pump_server(int fd) {
  pump(fd, 1, 2);
  get_eof(fd);
}
static void pump_client(int fd) { pump(fd, 2, 1); }

static void *send_much(void *arg) {
  put_stream(*(int *)arg, 5, 16 << 20, 100000);
  return NULL;
}
static void threads(int fd) {
  pthread_t t;
  EQ(pthread_create(&t, NULL, send_much, &fd), 0);
  get_stream(fd, 5, 16 << 20, 70000);
  EQ(pthread_join(t, NULL), 0);
}

static void vectors_server(int fd) {
  char buf[1000], none;
  struct sockaddr_storage name;
  struct iovec v[5] = {{&none, 0}, {buf, 1}, {buf + 1, 299}, {&none, 0}, {buf + 300, 700}};
  char control[64];
  hear('s');
  struct msghdr m = {.msg_name = &name, .msg_namelen = sizeof name, .msg_iov = v, .msg_iovlen = 5,
                     .msg_control = control, .msg_controllen = sizeof control, .msg_flags = -1};
  EQ(rrecvmsg(fd, &m, MSG_PEEK), 1000);
  verify(buf, 1000, 1, 0);
  memset(buf, 0, sizeof buf);
  m.msg_controllen = sizeof control;
  EQ(rrecvmsg(fd, &m, 0), 1000);
  verify(buf, 1000, 1, 0);
  EQ(m.msg_flags, 0);
  EQ(m.msg_controllen, 0);
  EQ(name.ss_family, family);
  tell('r');
  hear('s');
  memset(buf, 0, sizeof buf);
  EQ(rreadv(fd, v, 5), 1000);
  verify(buf, 1000, 1, 0);
  struct sockaddr_storage from;
  socklen_t len = sizeof from;
  tell('r');
  hear('s');
  EQ(rrecvfrom(fd, buf, sizeof buf, 0, (struct sockaddr *)&from, &len), 1000);
  verify(buf, 1000, 1, 0);
  EQ(memcmp(&from, &name, len), 0);
  m.msg_namelen = 0;
  m.msg_name = NULL;
  m.msg_controllen = 0;
  FAILS(rrecvmsg(fd, &m, MSG_DONTWAIT), EAGAIN);
  tell('r');
  get_eof(fd);
}
static void vectors_client(int fd) {
  char buf[1000], control[CMSG_SPACE(sizeof(int))] = {0};
  fill(buf, sizeof buf, 1, 0);
  struct iovec v[4] = {{buf, 333}, {NULL, 0}, {buf + 333, 600}, {buf + 933, 67}};
  EQ(rwritev(fd, v, 4), 1000);
  tell('s');
  hear('r');
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 4};
  EQ(rsendmsg(fd, &m, 0), 1000);
  tell('s');
  hear('r');
  // The address is ignored on a connected stream, as Linux does.
  struct sockaddr_storage a;
  socklen_t len = address(&a, 9);
  EQ(rsendto(fd, buf, 1000, 0, (struct sockaddr *)&a, len), 1000);
  tell('s');
  m.msg_control = control;
  m.msg_controllen = sizeof control;
  FAILS(rsendmsg(fd, &m, 0), ENOTSUP);
  FAILS(rsend(fd, buf, 1, MSG_OOB), ENOTSUP);
  FAILS(rwritev(fd, v, -1), EINVAL);
  FAILS(rreadv(fd, v, 1025), EINVAL);
  FAILS(rreadv(fd, NULL, 1), EFAULT);
  FAILS(rrecvmsg(fd, NULL, 0), EFAULT);
  m.msg_controllen = 0;
  m.msg_iovlen = 1025;
  FAILS(rsendmsg(fd, &m, 0), EMSGSIZE);
  v[0].iov_len = (size_t)-1;
  FAILS(rwritev(fd, v, 4), EINVAL);
  EQ(rwritev(fd, v, 0), 0);
  EQ(rsend(fd, buf, 0, 0), 0);
  EQ(rread(fd, buf, 0), 0);
  hear('r');
}

static void flags_server(int fd) {
  char buf[64];
  FAILS(rrecv(fd, buf, sizeof buf, MSG_DONTWAIT), EAGAIN);
  tell('e');
  hear('s');
  EQ(rrecv(fd, buf, 3, MSG_PEEK), 3);
  EQ(memcmp(buf, "abc", 3), 0);
  EQ(rrecv(fd, buf, sizeof buf, MSG_PEEK), 6);
  EQ(rrecv(fd, buf, 2, 0), 2);
  EQ(rrecv(fd, buf, 2, 0), 2);
  EQ(memcmp(buf, "cd", 2), 0);
  tell('w');
  EQ(rrecv(fd, buf, 12, MSG_WAITALL), 12);
  EQ(memcmp(buf, "efghijklmnop", 12), 0);
  // The end of the stream ends MSG_WAITALL too.
  EQ(rrecv(fd, buf, 12, MSG_WAITALL), 1);
  EQ(rrecv(fd, buf, 12, MSG_WAITALL), 0);
}
static void flags_client(int fd) {
  hear('e');
  put(fd, "abcdef", 6);
  tell('s');
  hear('w');
  nap(50);
  put(fd, "ghij", 4);
  nap(50);
  put(fd, "klmnop", 6);
  nap(50);
  put(fd, "q", 1);
}

static void halves_server(int fd) {
  get_stream(fd, 1, 500000, 4000);
  get_eof(fd);
  get_eof(fd);
  put_stream(fd, 2, 3000000, 100000);
  EQ(rshutdown(fd, SHUT_RDWR), 0);
  EQ(rclose(fd), 0);
}
static void halves_client(int fd) {
  put_stream(fd, 1, 500000, 9000);
  EQ(rshutdown(fd, SHUT_WR), 0);
  FAILS(rsend(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  get_stream(fd, 2, 3000000, 33333);
  get_eof(fd);
}

// The same, but nothing is ever sent one way.
static void early_half_server(int fd) {
  get_eof(fd);
  put_stream(fd, 2, 1000000, 100000);
}
static void early_half_client(int fd) {
  EQ(rshutdown(fd, SHUT_WR), 0);
  get_stream(fd, 2, 1000000, 33333);
  get_eof(fd);
}

static int pipes_broken;
static void on_pipe(int sig) {
  (void)sig;
  pipes_broken++;
}
static void gone_server(int fd) {
  char c;
  get(fd, &c, 1);
  EQ(rclose(fd), 0);
  tell('c');
}
static void gone_client(int fd) {
  signal(SIGPIPE, on_pipe);
  put(fd, "x", 1);
  hear('c');
  CHECK(ready(fd, POLLIN, 20000) & POLLIN);
  get_eof(fd);
  FAILS(rsend(fd, "x", 1, MSG_NOSIGNAL), EPIPE);
  EQ(pipes_broken, 0);
  FAILS(rwrite(fd, "x", 1), EPIPE);
  EQ(pipes_broken, 1);
  get_eof(fd);
}

// A writer to a peer that has shut both directions is told, though the peer never closes and reads
// nothing; asleep or not.
static void deaf_server(int fd) {
  char c;
  get(fd, &c, 1);
  nap(200);
  EQ(rshutdown(fd, SHUT_RDWR), 0);
  hear('e');
}
static void deaf_in_turn_server(int fd) {
  char c;
  get(fd, &c, 1);
  nap(200);
  EQ(rshutdown(fd, SHUT_WR), 0);
  nap(50);
  EQ(rshutdown(fd, SHUT_RD), 0);
  hear('e');
}
static void deaf_at_once_server(int l) {
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  EQ(rshutdown(fd, SHUT_RDWR), 0);
  hear('e');
}
static void to_deaf_client(int fd) {
  static char much[100000];
  double t = now();
  ssize_t n;
  while ((n = rsend(fd, much, sizeof much, MSG_NOSIGNAL)) > 0)
    ;
  CHECK(n < 0 && (errno == EPIPE || errno == ECONNRESET));
  took(t, 0, 5);
  get_eof(fd);
  tell('e');
}
static void to_deaf_at_once_client(int fd) {
  fd = dial();
  to_deaf_client(fd);
}

// A peer that closes with bytes unread resets, as TCP does.
static void unread_server(int fd) {
  CHECK(ready(fd, POLLIN, 20000) & POLLIN);
  EQ(rclose(fd), 0);
  tell('c');
}
static void unread_client(int fd) {
  char c;
  put(fd, "hello", 5);
  hear('c');
  FAILS(rrecv(fd, &c, 1, 0), ECONNRESET);
}

// A reader whose peer is killed wakes.
static void killed_server(int fd) {
  char c;
  get(fd, &c, 1);
  double t = now();
  ssize_t n = rrecv(fd, &c, 1, 0);
  CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
  took(t, 0.05, 1);
}
static void killed_client(int fd) {
  pid_t child = fork();
  if (child == 0) {
    put(fd, "x", 1);
    pause();
  }
  EQ(rclose(fd), 0);
  nap(200);
  EQ(kill(child, SIGKILL), 0);
  int status;
  EQ(waitpid(child, &status, 0), child);
}

// Before a byte was sent: the peer has closed, and a sender must not wait for it.
static void never_server(int l) {
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  EQ(rclose(fd), 0);
  tell('c');
}
static void never_client(int fd) {
  fd = dial();
  hear('c');
  double t = now();
  ssize_t n;
  while ((n = rsend(fd, "x", 1, MSG_NOSIGNAL)) > 0) nap(1);
  CHECK(errno == EPIPE || errno == ECONNRESET);
  took(t, 0, 1);
}

const rs_case CASES[] = {
    {"echo", echo_server, echo_client, 0},
    {"pump", pump_server, pump_client, 0},
    {"threads", threads, threads, 0},
    {"vectors", vectors_server, vectors_client, 0},
    {"flags", flags_server, flags_client, 0},
    {"halves", halves_server, halves_client, 0},
    {"early_half", early_half_server, early_half_client, 0},
    {"peer_gone", gone_server, gone_client, 0},
    {"shut_both", deaf_server, to_deaf_client, 0},
    {"shut_in_turn", deaf_in_turn_server, to_deaf_client, 0},
    {"shut_at_once", deaf_at_once_server, to_deaf_at_once_client, RAW},
    {"unread", unread_server, unread_client, 0},
    {"peer_killed", killed_server, killed_client, 0},
    {"never_used", never_server, never_client, RAW},
    {0},
};
