// What upstream's library gets wrong about streams: one case for a row of the list of its gaps,
// sections 2, 3 and 9. Left out are rows that another test is about (tests/upstream-gaps.md has
// them all).
#include "rs.h"

static char buf[1 << 16];

// A peer in a process of its own, which is killed when it has said one byte, or at once ends by
// `way`.
static pid_t peer(void (*way)(int fd)) {
  pid_t pid = fork();
  CHECK(pid >= 0);
  if (pid == 0) {
    int fd = dial();
    put(fd, "p", 1);
    way(fd);
    _exit(0);
  }
  return pid;
}
static int meet_peer(int l) {
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get(fd, buf, 1);
  return fd;
}
static void wait_to_be_killed(int fd) {
  (void)fd;
  pause();
}
static void reap(pid_t pid) {
  int status;
  EQ(waitpid(pid, &status, 0), pid);
}

// 2.1 Sends after the end say that all went well.
static int piped;
static void on_pipe(int sig) { (void)sig, piped++; }
static void gap_2_01_sends_after_the_end(int l) {
  int s[2];
  signal(SIGPIPE, on_pipe);
  pair(l, s);
  put(s[0], "x", 1), get(s[1], buf, 1);
  EQ(rshutdown(s[0], SHUT_WR), 0);
  FAILS(rsend(s[0], "x", 1, 0), EPIPE);
  EQ(piped, 1);
  FAILS(rsend(s[0], "x", 1, MSG_NOSIGNAL), EPIPE);
  EQ(piped, 1);
  get_eof(s[1]);
  put(s[1], "y", 1), get(s[0], buf, 1);
  // The other has gone altogether.
  pair(l, s);
  put(s[0], "x", 1), get(s[1], buf, 1);
  EQ(rclose(s[1]), 0);
  get_eof(s[0]);
  double end = now() + 10;
  while (rsend(s[0], "x", 1, MSG_NOSIGNAL) == 1) CHECK(now() < end);
  CHECK(errno == EPIPE || errno == ECONNRESET);
}

// 2.2 A socket that was never connected crashes.
static void gap_2_02_never_connected(int l) {
  int fd = rsocket(family, SOCK_STREAM, 0), udp = rsocket(family, SOCK_DGRAM, 0);
  (void)l;
  FAILS(rsend(fd, "x", 1, 0), ENOTCONN);
  FAILS(rrecv(fd, buf, 1, 0), ENOTCONN);
  FAILS(rsend(udp, "x", 1, 0), EDESTADDRREQ);
  FAILS(riowrite(fd, "x", 1, 0, 0), ENOTCONN);
}

// 2.3 Numbers that are no descriptor crash.
static void gap_2_03_no_descriptor(int l) {
  (void)l;
  const int wrong[] = {-1, 1023, 1 << 20, 2147483647};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    FAILS(rsend(wrong[i], "x", 1, 0), EBADF);
    FAILS(rrecv(wrong[i], buf, 1, 0), EBADF);
    FAILS(riowrite(wrong[i], "x", 1, 0, 0), EBADF);
    FAILS(riomap(wrong[i], buf, 100, 2, 0, 0), EBADF);
    FAILS(rclose(wrong[i]), EBADF);
  }
}

// 2.4 A reader is not woken when its peer dies.
static void *kill_later(void *arg) {
  nap(200);
  kill(*(pid_t *)arg, SIGKILL);
  return NULL;
}
static void gap_2_04_peer_crash_wakes_blocked_reader(int l) {
  for (int i = 0; i < 3; i++) {
    pid_t pid = peer(wait_to_be_killed);
    pthread_t t;
    int fd = meet_peer(l);
    EQ(pthread_create(&t, NULL, kill_later, &pid), 0);
    ssize_t n = rrecv(fd, buf, 1, 0);
    CHECK(n == 0 || (n == -1 && errno == ECONNRESET));
    EQ(pthread_join(t, NULL), 0);
    reap(pid);
    CHECK(ready(fd, POLLIN, 1000) & POLLIN);
    EQ(rclose(fd), 0);
  }
}

// 2.5 After an error a read says that the stream has ended. (Here: the other end left bytes
// unread.)
static void gap_2_05_errors_are_no_ends(int l) {
  int s[2];
  pair(l, s);
  put(s[0], "x", 1), get(s[1], buf, 1);
  put(s[0], "unread", 6);
  CHECK(ready(s[1], POLLIN, 5000) & POLLIN);
  EQ(rclose(s[1]), 0);
  FAILS(rrecv(s[0], buf, 1, 0), ECONNRESET);
}

// 2.7 A peer that computes stalls an end that sends to it, or closes.
static void gap_2_07_a_computing_peer(int l) {
  int s[2];
  pair(l, s);
  put(s[0], "x", 1), get(s[1], buf, 1);
  double t = now();
  put_stream(s[0], 7, 15000, 500);
  EQ(rclose(s[0]), 0);
  took(t, 0, 10);
  get_stream(s[1], 7, 15000, 1000);
  get_eof(s[1]);
}

// 2.10, 2.13 Odd receive buffers overrun; with small send buffers nothing can be sent.
static void gap_2_10_odd_buffers_server(int l) {
  set_option(l, SOL_SOCKET, SO_RCVBUF, 100001);
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get_stream(fd, 1, 2000000, 7777);
  put_stream(fd, 2, 20000, 1);
}
static void gap_2_10_odd_and_2_13_small_buffers(int fd) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  fd = rsocket(family, SOCK_STREAM, 0);
  set_option(fd, SOL_SOCKET, SO_SNDBUF, 1);
  set_option(fd, SOL_SOCKET, SO_RCVBUF, 33333);
  EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
  put_stream(fd, 1, 1000, 1);
  char *rest = malloc(2000000 - 1000);
  fill(rest, 2000000 - 1000, 1, 1000);
  put(fd, rest, 2000000 - 1000);
  get_stream(fd, 2, 20000, 9999);
}

// 2.15 rclose and rshutdown wait for a peer that does not read.
static void gap_2_15_close_does_not_wait(int l) {
  int s[2];
  pair(l, s);
  put(s[0], "x", 1), get(s[1], buf, 1);
  nonblock(s[0], 1);
  double end = now() + 20;
  while (rsend(s[0], buf, sizeof buf, 0) > 0) CHECK(now() < end);
  CHECK(errno == EAGAIN);
  double t = now();
  EQ(rshutdown(s[0], SHUT_WR), 0);
  EQ(rclose(s[0]), 0);
  took(t, 0, 10);
}

// 2.18 rrecvmsg takes no notice of its flags. 2.19 Only the first vector is filled.
static void gap_2_18_flags_and_2_19_vectors(int l) {
  int s[2];
  char a[4], b[10], c[5];
  struct sockaddr_storage name;
  struct iovec list[] = {{a, 0}, {a, 4}, {b, 10}, {b, 0}, {c, 5}};
  struct msghdr m = {.msg_iov = list, .msg_iovlen = 5, .msg_name = &name, .msg_namelen = sizeof name, .msg_flags = 99};
  pair(l, s);
  put(s[0], "x", 1), get(s[1], buf, 1);
  FAILS(rrecvmsg(s[1], &m, MSG_DONTWAIT), EAGAIN);
  put(s[0], "aaaabbbbbbbbbbccccc", 19);
  EQ(rrecvmsg(s[1], &m, MSG_WAITALL | MSG_PEEK), 19);
  EQ(rrecvmsg(s[1], &m, MSG_WAITALL), 19);
  CHECK(memcmp(a, "aaaa", 4) == 0 && memcmp(b, "bbbbbbbbbb", 10) == 0 && memcmp(c, "ccccc", 5) == 0);
  EQ(m.msg_flags, 0);
  CHECK(name.ss_family == family);  // the peer's, as rrecvfrom's
  EQ(m.msg_namelen, family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
  EQ(m.msg_controllen, 0);
}

// 2.20 No vectors at all are read. 2.21 An address beside a connected stream is refused.
static void gap_2_20_no_vectors_and_2_21_addresses(int l) {
  int s[2];
  struct sockaddr_storage name;
  socklen_t len = address(&name, 9);
  struct iovec one = {"z", 1};
  struct msghdr none = {.msg_iov = NULL, .msg_iovlen = 0};
  struct msghdr named = {.msg_iov = &one, .msg_iovlen = 1, .msg_name = &name, .msg_namelen = len};
  pair(l, s);
  EQ(rsendmsg(s[0], &none, 0), 0);
  EQ(rwritev(s[0], NULL, 0), 0);
  EQ(rsendmsg(s[0], &named, 0), 1);
  EQ(rsendto(s[0], "x", 1, 0, (struct sockaddr *)&name, len), 1);
  get(s[1], buf, 2);
  CHECK(memcmp(buf, "zx", 2) == 0);
}

// 2.23 Each connection costs two or three descriptors. 2.24 Those above 65535 cannot be used.
static int descriptors(void) {
  int open = 0;
  for (int n = 0; n < 4096; n++) open += fcntl(n, F_GETFD) >= 0;
  return open;
}
static void gap_2_23_descriptors_and_2_24_high_ones(int l) {
  enum { N = 40 };
  int s[N][2];
  for (int i = 0; i < N; i++) {
    pair(l, s[i]);
    put(s[i][0], "x", 1), get(s[i][1], buf, 1);
  }
  // The two ends of each, over a device two more for each end; and what a process has once, or for
  // a pair of processes.
  int each = getenv("RS_ADDRESS") ? 3 : 1, open = descriptors();
  if (open >= 2 * N * each + 60) FAIL("%d descriptors for %d connections with both ends", open, N);
  struct rlimit most;
  CHECK(getrlimit(RLIMIT_NOFILE, &most) == 0);
  most.rlim_cur = most.rlim_max;
  CHECK(setrlimit(RLIMIT_NOFILE, &most) == 0);
  int high = rfcntl(s[0][0], F_DUPFD, most.rlim_max > 70000 ? 66000 : (int)most.rlim_max - 10);
  CHECK(high > 1000);
  EQ(rclose(s[0][0]), 0);
  put(high, "high", 4), get(s[0][1], buf, 4);
  put(s[0][1], "low", 3), get(high, buf, 3);
  EQ(rclose(high), 0);
  get_eof(s[0][1]);
}

// 3.1 A client that connects and then says nothing keeps all listeners of the process from
// accepting.
static void gap_3_01_a_silent_client_stalls_nobody(int l) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  int to, other = listener(&to), s[2], silent = socket(family, SOCK_STREAM, 0);
  EQ(rgetsockname(l, (struct sockaddr *)&a, &len), 0);
  // Over RDMA no socket listens there by TCP.
  if (connect(silent, (struct sockaddr *)&a, len) != 0) CHECK(getenv("RS_ADDRESS") != NULL);
  for (int i = 0; i < 5; i++) {
    double t = now();
    pair(other, s);
    put(s[0], "x", 1), get(s[1], buf, 1);
    took(t, 0, 10);
    EQ(rclose(s[0]), 0);
    EQ(rclose(s[1]), 0);
  }
  close(silent);
}

// 3.3, 3.9 A second connect frees what is in use, and says that all is well.
static void gap_3_03_connecting_twice(int l) {
  int s[2];
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  int fresh = rsocket(family, SOCK_STREAM, 0);
  pair(l, s);
  for (int i = 0; i < 5; i++) {
    FAILS(rconnect(s[0], (struct sockaddr *)&a, len), EISCONN);
    FAILS(rconnect(s[1], (struct sockaddr *)&a, len), EISCONN);
    put(s[0], "x", 1), get(s[1], buf, 1);
  }
  len = sizeof a;
  FAILS(rgetpeername(fresh, (struct sockaddr *)&a, &len), ENOTCONN);
}

// 3.4 Connections that no process took are never closed when the listener is.
static void gap_3_04_a_closed_listener(int l) {
  int to, base = 0;
  struct sockaddr_storage a;
  for (int i = 0; i < 25; i++) {
    int other = listener(&to), fd = rsocket(family, SOCK_STREAM, 0);
    socklen_t len = address(&a, to);
    EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
    EQ(rclose(other), 0);
    ssize_t n = rrecv(fd, buf, 1, 0);
    CHECK(n == 0 || (n == -1 && (errno == ECONNRESET || errno == ECONNREFUSED)));
    EQ(rclose(fd), 0);
    if (i == 10) base = descriptors();
    if (i > 10) CHECK(descriptors() <= base + 4);
  }
  (void)l;
}

// 3.6 SOCK_NONBLOCK does not make connecting non-blocking. 3.7 What is accepted inherits
// O_NONBLOCK.
static void gap_3_06_and_3_07_non_blocking(int l) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  nonblock(l, 1);
  int fd = rsocket(family, SOCK_STREAM | SOCK_NONBLOCK, 0);
  CHECK(rfcntl(fd, F_GETFL) & O_NONBLOCK);
  int rc = rconnect(fd, (struct sockaddr *)&a, len);
  CHECK(rc == 0 || errno == EINPROGRESS);
  CHECK(ready(l, POLLIN, 10000) & POLLIN);
  int other = raccept(l, NULL, NULL);
  CHECK(other >= 0);
  EQ(rfcntl(other, F_GETFL) & O_NONBLOCK, 0);
  CHECK(ready(fd, POLLOUT, 10000) & POLLOUT);
  EQ(option(fd, SOL_SOCKET, SO_ERROR), 0);
  FAILS(rrecv(fd, buf, 1, 0), EAGAIN);
  // Until it was asked how it went it said that; from now on, that there is room.
  CHECK(ready(fd, POLLOUT, 10000) & POLLOUT);
  put(fd, "x", 1), get(other, buf, 1);
}

// 3.10 A failing rclose returns a positive number.
static void gap_3_10_closing_twice(int l) {
  (void)l;
  int fd = rsocket(family, SOCK_STREAM, 0);
  EQ(rclose(fd), 0);
  FAILS(rclose(fd), EBADF);
  FAILS(rclose(-1), EBADF);
}

// 9.1 Without inline data, connections over iWARP cannot be made.
static void gap_9_01_server(int l) {
  set_option(l, SOL_RDMA, RDMA_INLINE, 0);
  for (int i = 0; i < 2; i++) {
    int fd = raccept(l, NULL, NULL);
    CHECK(fd >= 0);
    get_stream(fd, 1, 300000, 7000);
    put_stream(fd, 2, 100000, 333);
    get_stream(fd, 3, 100000, 3000);
    rclose(fd);
  }
}
static void gap_9_01_no_inline(int fd) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  for (int i = 0; i < 2; i++) {
    fd = rsocket(family, SOCK_STREAM, 0);
    set_option(fd, SOL_RDMA, RDMA_INLINE, 0);
    if (i == 1) set_option(fd, SOL_SOCKET, SO_SNDBUF, 2048);
    EQ(rconnect(fd, (struct sockaddr *)&a, len), 0);
    // More than there is memory to send from, by one call.
    put_stream(fd, 1, 300000, 300000);
    get_stream(fd, 2, 100000, 5000);
    put_stream(fd, 3, 100000, 999);
    rclose(fd);
  }
}

const rs_case CASES[] = {
    {"gap_2_01_sends_after_the_end", gap_2_01_sends_after_the_end, NULL, SOLO},
    {"gap_2_02_never_connected", gap_2_02_never_connected, NULL, SOLO},
    {"gap_2_03_no_descriptor", gap_2_03_no_descriptor, NULL, SOLO},
    {"gap_2_04_peer_crash_wakes_blocked_reader", gap_2_04_peer_crash_wakes_blocked_reader, NULL, SOLO},
    {"gap_2_05_errors_are_no_ends", gap_2_05_errors_are_no_ends, NULL, SOLO},
    {"gap_2_07_a_computing_peer", gap_2_07_a_computing_peer, NULL, SOLO},
    {"gap_2_10_odd_and_2_13_small_buffers", gap_2_10_odd_buffers_server, gap_2_10_odd_and_2_13_small_buffers, RAW},
    {"gap_2_15_close_does_not_wait", gap_2_15_close_does_not_wait, NULL, SOLO},
    {"gap_2_18_flags_and_2_19_vectors", gap_2_18_flags_and_2_19_vectors, NULL, SOLO},
    {"gap_2_20_no_vectors_and_2_21_addresses", gap_2_20_no_vectors_and_2_21_addresses, NULL, SOLO},
    {"gap_2_23_descriptors_and_2_24_high_ones", gap_2_23_descriptors_and_2_24_high_ones, NULL, SOLO},
    {"gap_3_01_a_silent_client_stalls_nobody", gap_3_01_a_silent_client_stalls_nobody, NULL, SOLO},
    {"gap_3_03_connecting_twice", gap_3_03_connecting_twice, NULL, SOLO},
    {"gap_3_04_a_closed_listener", gap_3_04_a_closed_listener, NULL, SOLO},
    {"gap_3_06_and_3_07_non_blocking", gap_3_06_and_3_07_non_blocking, NULL, SOLO},
    {"gap_3_10_closing_twice", gap_3_10_closing_twice, NULL, SOLO},
    {"gap_9_01_no_inline", gap_9_01_server, gap_9_01_no_inline, RAW},
    {0},
};
