// What a program asks for that only the kernel can do, in the middle of a connection's life.
// Nothing that had arrived is lost by it, whatever becomes of the peer. What the other direction
// carries is not touched.
#include "sem.h"

enum { UNREAD = 2048 };

// get() and put() are for sockets.
static void out_of(int pipe, void *b, size_t n) {
  for (size_t k = 0; k < n;) {
    ssize_t m = read(pipe, (char *)b + k, n - k);
    CHECK(m > 0);
    k += m;
  }
}

// -- what the peer does after it has sent what the program has not read yet
static void sent_and(char how, int fd) {
  char b[UNREAD];
  fill(b, sizeof b, 5, 0);
  put(fd, b, sizeof b);
  if (how == 'f') CHECK(!shutdown(fd, SHUT_WR));
  if (how == 'e') {
    tell('s');
    _exit(0);
  }
  if (how == 'c') close(fd);
  tell('s');
  hear('d');  // busy elsewhere: no call on the connection until the other side is through
  if (how != 'c') close(fd);
}
static void fin_client(int fd) { sent_and('f', fd); }
static void exit_client(int fd) { sent_and('e', fd); }
static void close_client(int fd) { sent_and('c', fd); }
static void busy_client(int fd) { sent_and('b', fd); }

// -- what the program does about it
static void told(void) {
  hear('s');
  nap(patience(50));
}
static void rest(int fd, size_t from, char how) {
  char b[UNREAD];
  get(fd, b, UNREAD - from);
  verify(b, UNREAD - from, 5, from);
  if (how != 'b') get_eof(fd);
  if (how != 'b') get_eof(fd);
}
static void done(char how) {
  if (how != 'e') tell('d');
}
// For each thing one server for each peer.
#define EACH(name, ...) \
  static void name(int fd, char how) { \
    told(); \
    size_t taken = 0; \
    __VA_ARGS__; \
    rest(fd, taken, how); \
    done(how); \
  } \
  static void name##_f(int fd) { name(fd, 'f'); } \
  static void name##_e(int fd) { name(fd, 'e'); } \
  static void name##_c(int fd) { name(fd, 'c'); } \
  static void name##_b(int fd) { name(fd, 'b'); }
#define FOUR(label, name, flags) \
  {label "_after_fin", name##_f, fin_client, flags}, \
      {label "_peer_calls__exit", name##_e, exit_client, flags}, \
      {label "_peer_closes", name##_c, close_client, flags}, \
      {label "_peer_is_busy", name##_b, busy_client, flags}

EACH(by_dprintf, {
  signal(SIGPIPE, SIG_IGN);
  if (how != 'e' && how != 'c') EQ(dprintf(fd, "bye\n"), 4);
})
EACH(by_option, {
  int n = 5;
  FAILS(setsockopt(fd, SOL_SOCKET, SO_SNDLOWAT, &n, sizeof n), ENOPROTOOPT);
})
EACH(by_stamping, {
  int n = 8 | 16;  // SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &n, sizeof n));
})
EACH(by_fioasync, {
  int one = 1;
  signal(SIGIO, SIG_IGN);
  CHECK(!ioctl(fd, FIOASYNC, &one));
})
EACH(by_o_async, {
  signal(SIGIO, SIG_IGN);
  CHECK(!fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_ASYNC));
})
EACH(by_zerocopy, {
  signal(SIGPIPE, SIG_IGN);
  if (how != 'e' && how != 'c') EQ(send(fd, "q", 1, MSG_ZEROCOPY), 1);
})
EACH(by_urgent, {
  if (how != 'e' && how != 'c') EQ(send(fd, "q", 1, MSG_OOB), 1);
})
EACH(by_flag, {
  char b[100];
  EQ(recv(fd, b, sizeof b, MSG_CTRUNC), sizeof b);
  verify(b, sizeof b, 5, 0);
  taken = sizeof b;
})
EACH(by_splice, {
  int p[2];
  char b[1000];
  CHECK(!pipe(p));
  EQ(splice(fd, NULL, p[1], NULL, sizeof b, 0), sizeof b);
  out_of(p[0], b, sizeof b);
  verify(b, sizeof b, 5, 0);
  taken = sizeof b;
})
EACH(by_splice_in, {
  int p[2];
  CHECK(!pipe(p));
  EQ(write(p[1], "abc", 3), 3);
  if (how != 'e' && how != 'c') EQ(splice(p[0], NULL, fd, NULL, 3, 0), 3);
})

EACH(by_zerocopy_receive, {
  struct {
    uint64_t address;
    uint32_t length, recv_skip_hint;
  } z = {.length = 4096};
  socklen_t n = sizeof z;
  CHECK(!getsockopt(fd, IPPROTO_TCP, 35, &z, &n));  // TCP_ZEROCOPY_RECEIVE
  EQ(z.length, 0);
  EQ(z.recv_skip_hint, UNREAD);
})

// A stream over the descriptor finds what had arrived, then a clean end.
static void stream(int fd, char how) {
  char b[UNREAD + 100];
  told();
  FILE *f = fdopen(fd, "r");
  CHECK(f);
  EQ(fileno(f), fd);
  EQ(fread(b, 1, how == 'b' ? UNREAD : sizeof b, f), UNREAD);
  verify(b, UNREAD, 5, 0);
  if (how != 'b') CHECK(feof(f) && !ferror(f));
  FAILS(fseek(f, 10, SEEK_SET), ESPIPE);
  done(how);
  CHECK(!fclose(f));
  FAILS(fcntl(fd, F_GETFD), EBADF);
}
static void stream_f(int fd) { stream(fd, 'f'); }
static void stream_e(int fd) { stream(fd, 'e'); }
static void stream_c(int fd) { stream(fd, 'c'); }
static void stream_b(int fd) { stream(fd, 'b'); }

// A program that knows nothing of the library inherits what is unread; the peer is busy until then,
// and ends by _exit.
static int role(const char *what, const char *arg) {
  (void)what, (void)arg;
  rest(0, 0, 'e');
  return 0;
}
__attribute__((constructor)) static void set_role(void) { extra_role = role; }
static void inherited_server(int fd) {
  told();
  pid_t p = spawn_self(0, "rest", fd, NULL);
  nap(patience(300));
  tell('x');
  EQ(exit_status(p), 0);
}
static void inherited_client(int fd) {
  char b[UNREAD];
  fill(b, sizeof b, 5, 0);
  put(fd, b, sizeof b);
  tell('s');
  hear('x');
  _exit(0);
}

// Lines to and fro by two streams over duplicates, as programs do that speak a protocol of lines.
static void lines_server(int fd) {
  char b[200];
  FILE *in = fdopen(fd, "r"), *out = fdopen(dup(fd), "w");
  CHECK(in && out);
  CHECK(!setvbuf(out, NULL, _IOLBF, 0));
  for (int i = 0; i < 500; i++) {
    CHECK(fgets(b, sizeof b, in));
    EQ(atoi(b), i);
    CHECK(fprintf(out, "%d is what you said\n", i) > 0);
  }
  EQ(getc_unlocked(in), EOF);
  CHECK(feof(in) && !ferror(in));
  CHECK(!fclose(out));
  CHECK(!fclose(in));
}
static void lines_client(int fd) {
  char b[200];
  FILE *f = fdopen(fd, "r+");
  CHECK(f);
  CHECK(!setvbuf(f, NULL, _IONBF, 0));
  for (int i = 0; i < 500; i++) {
    CHECK(fprintf(f, "%d\n", i) > 0);
    CHECK(fgets(b, sizeof b, f));
    EQ(atoi(b), i);
  }
  CHECK(!shutdown(fileno(f), SHUT_WR));
  EQ(fgetc(f), EOF);
  CHECK(!fclose(f));
}

// What follows a way back comes behind what was there before it.
static void goes_on_server(int fd) {
  int n = 8 | 16;
  told();
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &n, sizeof n));
  tell('g');
  hear('h');
  for (int i = 0; i < 3; i++) {
    int k = 0;
    EQ(ready(fd, POLLIN, 2000), POLLIN);
    CHECK(!ioctl(fd, FIONREAD, &k) && k > 0);
    char b[UNREAD / 2];
    get(fd, b, sizeof b);
    verify(b, sizeof b, 5, i * sizeof b);
  }
  get_stream(fd, 5, 3 * UNREAD / 2, 3 << 20, 70000);
  put_stream(fd, 6, 0, 1 << 20, 30000);
}
static void goes_on_client(int fd) {
  char b[UNREAD];
  fill(b, sizeof b, 5, 0);
  put(fd, b, sizeof b);
  tell('s');
  hear('g');
  put_stream(fd, 5, UNREAD, 2 * UNREAD, 100);
  tell('h');
  put_stream(fd, 5, 2 * UNREAD, 3 << 20, 50000);
  get_stream(fd, 6, 0, 1 << 20, 30000);
}

// Bytes that were sent before the way back and bytes that were sent after it are one stream for
// every call. They are `part` and as many more.
enum { PART = 1000 };
static void both_sides(int fd, int waits) {
  int n = 8 | 16, k = 0;
  told();
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &n, sizeof n));
  tell('g');
  if (!waits) {
    hear('h');
    nap(patience(50));
  }
  char b[2 * PART + 100];
  // Waits for what has not been sent yet.
  EQ(recv(fd, b, 2 * PART, MSG_PEEK | MSG_WAITALL), 2 * PART);
  verify(b, 2 * PART, 5, 0);
  EQ(recv(fd, b, sizeof b, MSG_PEEK), 2 * PART);
  verify(b, 2 * PART, 5, 0);
  EQ(recv(fd, b, PART + 1, MSG_PEEK | MSG_DONTWAIT), PART + 1);
  CHECK(!ioctl(fd, FIONREAD, &k));
  EQ(k, 2 * PART);
  n = PART + 1;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  EQ(ready(fd, POLLIN, 2000), POLLIN);
  n = 1;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  EQ(recv(fd, b, PART / 2, 0), PART / 2);
  verify(b, PART / 2, 5, 0);
  EQ(recv(fd, b, sizeof b, 0), 2 * PART - PART / 2);
  verify(b, 2 * PART - PART / 2, 5, PART / 2);
  FAILS(recv(fd, b, sizeof b, MSG_DONTWAIT), EAGAIN);
  tell('d');
  // And so with the low-water mark, of which the first half is there before.
  n = 2 * PART;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  EQ(recv(fd, b, sizeof b, 0), 2 * PART);
  get_eof(fd);
}
static void both_sides_server(int fd) { both_sides(fd, 0); }
static void both_sides_wait_server(int fd) { both_sides(fd, 1); }
static void both_sides_of(int fd, int late) {
  char b[2 * PART];
  fill(b, sizeof b, 5, 0);
  put(fd, b, PART);
  tell('s');
  hear('g');
  if (late) nap(patience(100));
  put(fd, b + PART, PART);
  if (!late) tell('h');
  hear('d');
  put(fd, b, PART);
  nap(patience(100));
  put(fd, b, PART);
}
static void both_sides_client(int fd) { both_sides_of(fd, 0); }
static void both_sides_late_client(int fd) { both_sides_of(fd, 1); }

// An edge is reported once, whichever way its bytes went, and a way back is none.
static int edge(int ep, int ms) {
  struct epoll_event e = {0};
  return epoll_wait(ep, &e, 1, ms) == 1 ? (int)e.events : 0;
}
static void edges_server(int fd) {
  char b[4 * PART];
  int n = 8 | 16, ep = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  EQ(edge(ep, 2000), EPOLLOUT);
  EQ(edge(ep, 0), 0);
  tell('1');
  hear('s');
  EQ(edge(ep, 2000), EPOLLIN | EPOLLOUT);
  EQ(edge(ep, 0), 0);
  EQ(dprintf(fd, "0123456789"), 10);  // sends by TCP from here on
  hear('2');
  nap(patience(50));
  EQ(edge(ep, 0), 0);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &n, sizeof n));
  nap(patience(50));
  EQ(edge(ep, 0), 0);
  tell('3');
  hear('s');
  EQ(edge(ep, 2000), EPOLLIN | EPOLLOUT);
  nap(patience(50));
  EQ(edge(ep, 0), 0);
  get(fd, b, PART / 2);
  EQ(edge(ep, 0), 0);
  get(fd, b, PART / 2 + PART);
  EQ(edge(ep, 0), 0);
  EQ(edge(ep, 0), 0);
  tell('4');
  EQ(edge(ep, 2000), EPOLLIN | EPOLLOUT);
  EQ(edge(ep, 0), 0);
  get(fd, b, PART);
  EQ(edge(ep, 0), 0);
  tell('5');
  hear('6');
  nap(patience(50));
  EQ(edge(ep, 2000), EPOLLIN | EPOLLOUT | EPOLLRDHUP);
  EQ(edge(ep, 0), 0);
  get_eof(fd);
  EQ(edge(ep, 0), 0);
}
static void edges_client(int fd) {
  char b[PART];
  fill(b, sizeof b, 5, 0);
  hear('1');
  put(fd, b, PART);
  tell('s');
  get(fd, b, 10);
  tell('2');
  hear('3');
  put(fd, b, PART);
  tell('s');
  hear('4');
  put(fd, b, PART);
  hear('5');
  CHECK(!shutdown(fd, SHUT_WR));
  tell('6');
  get_eof(fd);
}

// -- splice as splice(2) says
static int pipe_of(int p[2], int flags) {
  CHECK(!pipe2(p, flags));
  return fcntl(p[1], F_GETPIPE_SZ);
}
static void out_edges_server(int fd) {
  int p[2], q[2];
  char b[UNREAD];
  pipe_of(p, 0);
  nonblock(fd, 1);
  FAILS(splice(fd, NULL, p[1], NULL, 100, 0), EAGAIN);
  FAILS(splice(fd, NULL, p[1], NULL, 100, SPLICE_F_NONBLOCK), EAGAIN);
  tell('1');
  told();
  loff_t at = 0;
  FAILS(splice(fd, NULL, p[1], &at, 100, 0), ESPIPE);
  FAILS(splice(fd, NULL, p[1], NULL, 100, 64), EINVAL);
  FAILS(splice(fd, NULL, p[0], NULL, 100, 0), EBADF);
  FAILS(tee(fd, p[1], 100, 0), EINVAL);
  int null = open("/dev/null", O_WRONLY);
  FAILS(splice(fd, NULL, null, NULL, 100, 0), EINVAL);
  EQ(splice(fd, NULL, p[1], NULL, 0, 0), 0);
  // Full, and then not.
  int size = pipe_of(q, O_NONBLOCK);
  char *fillup = calloc(1, size);
  EQ(write(q[1], fillup, size), size);
  FAILS(splice(fd, NULL, q[1], NULL, 100, 0), EAGAIN);
  FAILS(splice(fd, NULL, q[1], NULL, 100, SPLICE_F_NONBLOCK), EAGAIN);
  CHECK(read(q[0], fillup, size) == size);
  EQ(splice(fd, NULL, q[1], NULL, 100, 0), 100);
  out_of(q[0], b, 100);
  verify(b, 100, 5, 0);
  // No process reads it.
  close(q[0]);
  signal(SIGPIPE, SIG_IGN);
  FAILS(splice(fd, NULL, q[1], NULL, 100, 0), EPIPE);
  for (size_t n = 100; n < UNREAD;) {
    ssize_t k = splice(fd, NULL, p[1], NULL, 1 << 20, SPLICE_F_MOVE);
    CHECK(k > 0);
    out_of(p[0], b, k);
    verify(b, k, 5, n);
    n += k;
  }
  EQ(splice(fd, NULL, p[1], NULL, 100, 0), 0);
  EQ(splice(fd, NULL, p[1], NULL, 100, 0), 0);
  done('f');
  free(fillup);
}
static void out_edges_client(int fd) {
  hear('1');
  fin_client(fd);
}
// Into a socket that no process reads, until it takes no more: what the pipe gave was sent, the
// rest is still there.
static void in_full_server(int fd) {
  int p[2];
  char *b = malloc(1 << 16);
  pipe_of(p, O_NONBLOCK);
  nonblock(fd, 1);
  FAILS(splice(p[0], NULL, fd, NULL, 100, 0), EAGAIN);
  uint64_t in = 0, out = 0;
  ssize_t k;
  do {
    size_t n = 30000 - (in - out);
    fill(b, n, 7, in);
    EQ(write(p[1], b, n), n);
    in += n;
    k = splice(p[0], NULL, fd, NULL, 60000, SPLICE_F_MORE);
    if (k > 0) out += k;
  } while (k > 0);
  CHECK(errno == EAGAIN);
  int left = 0;
  CHECK(!ioctl(p[0], FIONREAD, &left));
  EQ(left, in - out);
  tell('f');
  nonblock(fd, 0);
  while (out < in) {
    k = splice(p[0], NULL, fd, NULL, 1000, 0);
    CHECK(k > 0);
    out += k;
  }
  close(p[1]);
  EQ(splice(p[0], NULL, fd, NULL, 100, 0), 0);
  tell_int(in);
  free(b);
}
static void in_full_client(int fd) {
  hear('f');
  uint64_t n = 0;
  char *b = malloc(1 << 16);
  ssize_t k;
  while ((k = read(fd, b, 1 << 16)) > 0) {
    verify(b, k, 7, n);
    n += k;
  }
  EQ(k, 0);
  EQ(n, hear_int());
  free(b);
}
// Through a pipe from one end of the connection back into it: an echo that copies nothing itself.
static void echo_server(int fd) {
  int p[2];
  pipe_of(p, 0);
  uint64_t seed = 3;
  ssize_t k;
  while ((k = splice(fd, NULL, p[1], NULL, 1 + rnd(&seed) % 100000, SPLICE_F_MOVE)) > 0) {
    while (k > 0) {
      ssize_t n = splice(p[0], NULL, fd, NULL, k, SPLICE_F_MOVE);
      CHECK(n > 0);
      k -= n;
    }
  }
  EQ(k, 0);
}
static void echo_client(int fd) {
  nonblock(fd, 1);
  pump(fd, 9, 9, 8 << 20, 100000);
}

// A thread that sleeps until something new comes hears of it by whatever way. So it does also when
// another thread has read up to the end of the channel meanwhile.
static volatile int heard, polled;
static int watched, watcher;
static void *sleeps_on_set(void *unused) {
  struct epoll_event e;
  while (epoll_wait(watcher, &e, 1, -1) == 1) heard++;
  return unused;
}
static void *sleeps_in_poll(void *unused) {
  struct pollfd p = {watched, POLLIN, 0};
  while (poll(&p, 1, -1) == 1) polled++, nap(2);
  return unused;
}
static void sleepers_server(int fd) {
  char b[PART];
  pthread_t t[2];
  struct epoll_event e = {.events = EPOLLIN | EPOLLET};
  watched = fd, watcher = epoll_create1(0);
  CHECK(!epoll_ctl(watcher, EPOLL_CTL_ADD, fd, &e));
  CHECK(!pthread_create(&t[0], NULL, sleeps_on_set, NULL) && !pthread_create(&t[1], NULL, sleeps_in_poll, NULL));
  for (int i = 0; i < 4; i++) {
    tell('g');
    hear('s');
    for (double end = now() + patience(10); !(heard && polled) && now() < end;) nap(1);
    CHECK(heard && polled);
    nap(patience(20));
    get(fd, b, PART);
    verify(b, PART, 5, 0);
    FAILS(recv(fd, b, 1, MSG_DONTWAIT), EAGAIN);
    nap(patience(20));
    heard = polled = 0;
    tell('m');
    for (double end = now() + patience(10); !(heard && polled) && now() < end;) nap(1);
    CHECK(heard && polled);
    get(fd, b, 1);
    heard = polled = 0;
  }
  tell('d');
}
static void sleepers_client(int fd) {
  char b[PART];
  fill(b, sizeof b, 5, 0);
  for (int i = 0; i < 4; i++) {
    hear('g');
    put(fd, b, PART - 1);
    EQ(dprintf(fd, "%c", b[PART - 1]), 1);
    tell('s');
    hear('m');
    put(fd, "z", 1);
  }
  hear('d');
}

const test_case CASES[] = {
    FOUR("dprintf", by_dprintf, 0),
    FOUR("refused_option", by_option, 0),
    FOUR("timestamping", by_stamping, 0),
    FOUR("fioasync", by_fioasync, 0),
    FOUR("o_async", by_o_async, 0),
    FOUR("zerocopy", by_zerocopy, NOSHM),
    FOUR("urgent", by_urgent, NOSHM),
    FOUR("odd_flag", by_flag, 0),
    FOUR("splice_out", by_splice, 0),
    FOUR("splice_in", by_splice_in, 0),
    FOUR("zerocopy_receive", by_zerocopy_receive, 0),
    FOUR("fdopen", stream, 0),
    {"inherited_peer_calls__exit", inherited_server, inherited_client, 0},
    {"lines_by_streams", lines_server, lines_client, 0},
    {"what_follows", goes_on_server, goes_on_client, 0},
    {"one_stream", both_sides_server, both_sides_client, 0},
    {"one_stream_late", both_sides_wait_server, both_sides_late_client, 0},
    {"edges", edges_server, edges_client, 0},
    {"sleepers", sleepers_server, sleepers_client, 0},
    {"splice_out_edges", out_edges_server, out_edges_client, 0},
    {"splice_into_full", in_full_server, in_full_client, 0},
    {"splice_echo", echo_server, echo_client, 0},
    {0},
};
