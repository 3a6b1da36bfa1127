// Descriptors that go to another process in a message (SCM_RIGHTS): connections and listening
// sockets. The receiver uses them, both do, or neither does; with the library and without it.
#include "sem.h"

#include <sys/un.h>

enum { MIB = 1 << 20, WAITING = 60000 };

static void echo_n(int fd, uint64_t n) {
  static char b[60000];
  for (uint64_t at = 0; at < n;) {
    ssize_t k = recv(fd, b, n - at < sizeof b ? n - at : sizeof b, 0);
    CHECK(k > 0);
    put(fd, b, k);
    at += k;
  }
}
static void echo_all(int fd) {
  static char b[60000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
static void ask(int fd, uint64_t n) {
  static uint64_t seed;
  static char b[9000];
  seed++;
  for (uint64_t at = 0; at < n;) {
    size_t k = n - at < sizeof b ? n - at : sizeof b;
    fill(b, k, seed, at);
    put(fd, b, k);
    get(fd, b, k);
    verify(b, k, seed, at);
    at += k;
  }
}
static void finish(int fd) {
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}

// -- messages
typedef struct {
  struct msghdr m;
  struct iovec v;
  char c;
  union {
    char b[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
  } u;
} letter;
static struct msghdr *letter_with(letter *l, int n, int a, int b) {
  memset(l, 0, sizeof *l);
  l->c = 'p';
  l->v = (struct iovec){&l->c, 1};
  l->m = (struct msghdr){.msg_iov = &l->v, .msg_iovlen = 1, .msg_control = l->u.b, .msg_controllen = CMSG_SPACE(n * sizeof(int))};
  struct cmsghdr *h = CMSG_FIRSTHDR(&l->m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(n * sizeof(int));
  memcpy(CMSG_DATA(h), (int[]){a, b}, n * sizeof(int));
  return &l->m;
}
static struct msghdr *empty_letter(letter *l) {
  memset(l, 0, sizeof *l);
  l->v = (struct iovec){&l->c, 1};
  l->m = (struct msghdr){.msg_iov = &l->v, .msg_iovlen = 1, .msg_control = l->u.b, .msg_controllen = sizeof l->u.b};
  return &l->m;
}
static int inside(const letter *l, int i) {
  int fd;
  struct cmsghdr *h = CMSG_FIRSTHDR(&l->m);
  CHECK(h && h->cmsg_type == SCM_RIGHTS && h->cmsg_len >= CMSG_LEN((i + 1) * sizeof(int)));
  memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
  CHECK(fd >= 0);
  return fd;
}
static void pass(int via, int fd) {
  letter l;
  EQ(sendmsg(via, letter_with(&l, 1, fd, -1), 0), 1);
}
static int take(int via) {
  letter l;
  EQ(recvmsg(via, empty_letter(&l), MSG_CMSG_CLOEXEC), 1);
  return inside(&l, 0);
}

// -- the other programs: descriptor 0 brings the message
// Whether all of a stream that began at `arg` comes, or an error; but never an end before its time.
static int whole(int fd, uint64_t at) {
  static char b[9000];
  for (;;) {
    ssize_t k = recv(fd, b, sizeof b, 0);
    if (k < 0) return errno == ECONNRESET || errno == ENOTCONN ? 0 : 3;
    if (k == 0) return at == 2 * MIB + WAITING ? 0 : 4;
    verify(b, k, 1, at);
    at += k;
  }
}
// As much as the sender says comes in the end, or an error; but never an end before its time.
static int late(int fd) {
  static char b[9000];
  uint64_t all;
  EQ(read(0, &all, sizeof all), sizeof all);
  nap(2500);
  for (uint64_t at = 0;;) {
    ssize_t k = recv(fd, b, sizeof b, 0);
    if (k < 0) return errno == ECONNRESET || errno == ENOTCONN ? 0 : 3;
    if (k == 0) return at == all ? 0 : 4;
    verify(b, k, 1, at);
    at += k;
  }
}
// A program that has no socket yet, and its child, have a copy each; the child closes its copy
// first.
static int two_of_one_program(void) {
  int here[2], go[2];
  char c;
  CHECK(!pipe(here) && !pipe(go));
  pid_t kid = fork();
  if (!kid) {
    int fd = take(0);
    EQ(write(here[1], "h", 1), 1);
    EQ(read(go[0], &c, 1), 1);
    echo_n(fd, MIB);
    close(fd);
    _exit(0);
  }
  int fd = take(0);
  EQ(read(here[0], &c, 1), 1);
  EQ(read(0, &c, 1), 1);  // the sender has closed its own
  EQ(write(go[1], "g", 1), 1);
  EQ(exit_status(kid), 0);
  echo_n(fd, MIB);
  return 0;
}
static int role(const char *r, const char *arg) {
  if (!strcmp(r, "two")) return two_of_one_program();
  if (!strcmp(r, "another")) {
    char fam[8], port[16];
    snprintf(fam, sizeof fam, "%d", ctx.family);
    snprintf(port, sizeof port, "%d", ctx.port);
    execl("/proc/self/exe", ctx.self, "@extra", "echo", fam, port, arg, NULL);
    return 9;
  }
  int fd = take(0);
  if (!strcmp(r, "echo")) {
    echo_n(fd, atol(arg));
    return 0;
  }
  if (!strcmp(r, "accept")) {
    for (int n = atoi(arg); n > 0; n--) {
      int c = accept(fd, NULL, NULL);
      CHECK(c >= 0);
      echo_all(c);
      close(c);
    }
    return 0;
  }
  if (!strcmp(r, "late")) return late(fd);
  if (!strcmp(r, "answer")) {
    int e = 1;
    socklen_t len = sizeof e;
    put_stream(fd, 2, 0, 50000, 5000);
    nap(patience(100));
    // The peer has closed by now, and nothing was lost.
    CHECK(!getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len));
    EQ(e, 0);
    return 0;
  }
  return whole(fd, atol(arg));
}
__attribute__((constructor)) static void set_role(void) { extra_role = role; }

// A program that waits for a message; it has nothing of ours but that.
static pid_t program(int preloaded, const char *what, const char *arg, int *via) {
  int s[2];
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
  pid_t p = spawn_self(preloaded, what, s[1], arg);
  close(s[1]);
  *via = s[0];
  return p;
}

static int accepted(int lfd) {
  int fd = accept4(lfd, NULL, NULL, SOCK_CLOEXEC);
  CHECK(fd >= 0);
  return fd;
}
// Right after accept, as servers with workers do.
static void at_once(int lfd, int preloaded) {
  int via, fd = accepted(lfd);
  pid_t p = program(preloaded, "echo", "3000000", &via);
  pass(via, fd);
  close(fd);
  EQ(exit_status(p), 0);
}
static void at_once_pre(int lfd) { at_once(lfd, 1); }
static void at_once_plain(int lfd) { at_once(lfd, 0); }
static void asking(int fd) {
  fd = dial();
  ask(fd, 3000000);
  get_eof(fd);
}
// To a program that was started by another one, which had no connection.
static void next_server(int fd) {
  int via;
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pid_t p = program(1, "another", "2097152", &via);
  echo_n(fd, MIB);
  pass(via, fd);
  close(fd);
  EQ(exit_status(p), 0);
}
static void next_client(int fd) {
  ask(fd, MIB);
  ask(fd, 2 * MIB);
  get_eof(fd);
}
static void two_server(int fd) {
  int via;
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pid_t p = program(1, "two", NULL, &via);
  pass(via, fd);
  pass(via, fd);
  close(fd);
  EQ(write(via, "c", 1), 1);
  EQ(exit_status(p), 0);
}
static void two_client(int fd) {
  for (int i = 0; i < 2; i++) ask(fd, MIB);
  get_eof(fd);
}
// The connecting end goes to a child.
static void dialled_client(int fd) {
  int s[2];
  // Processes that part before they have a TCP socket are no relatives.
  close(socket(ctx.family, SOCK_STREAM, 0));
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
  pid_t p = fork();
  if (!p) {
    fd = take(s[1]);
    ask(fd, 2 * MIB);
    _exit(0);
  }
  fd = dial();
  pass(s[0], fd);
  EQ(exit_status(p), 0);
  ask(fd, 2 * MIB);  // and this process still has it
  finish(fd);
}
static void echo_accepted(int lfd) { echo_all(accepted(lfd)); }

// Sender and receiver use it in turns; a child of the receiver too.
static void turns_server(int fd) {
  int s[2];
  char c;
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
  pid_t p = fork();
  if (!p) {
    int mine = take(s[1]);
    close(fd);
    for (int i = 0; i < 5; i++) {
      EQ(read(s[1], &c, 1), 1);
      pid_t kid = i % 2 ? fork() : 0;
      if (!kid) echo_n(mine, 200000);
      if (i % 2 && !kid) _exit(0);
      if (kid) EQ(exit_status(kid), 0);
      EQ(write(s[1], "x", 1), 1);
    }
    _exit(0);
  }
  pass(s[0], fd);
  for (int i = 0; i < 5; i++) {
    echo_n(fd, 200000);
    EQ(write(s[0], "x", 1), 1);
    EQ(read(s[0], &c, 1), 1);
  }
  EQ(exit_status(p), 0);
  echo_all(fd);
}
static void turns_client(int fd) {
  ask(fd, 2000000);
  finish(fd);
}

// One message twice: looked at, then received; and the same descriptor twice in one.
static void twice_server(int fd) {
  int s[2];
  letter l;
  CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
  EQ(sendmsg(s[0], letter_with(&l, 2, fd, fd), 0), 1);
  EQ(recvmsg(s[1], empty_letter(&l), MSG_PEEK), 1);
  int one = inside(&l, 0), two = inside(&l, 1);
  EQ(recvmsg(s[1], empty_letter(&l), 0), 1);
  int three = inside(&l, 0), four = inside(&l, 1);
  CHECK(one != two && two != three && three != four);
  close(fd);
  echo_n(one, MIB);
  close(one), close(two), close(three);
  echo_all(four);
}
static void twice_client(int fd) {
  ask(fd, 2 * MIB);
  finish(fd);
}

// Several messages in one call.
static void many_server(int fd) {
  int s[2];
  letter out[3], in[3];
  struct mmsghdr m[3] = {0};
  CHECK(!socketpair(AF_UNIX, SOCK_DGRAM, 0, s));
  for (int i = 0; i < 3; i++) m[i].msg_hdr = *letter_with(&out[i], 1, fd, -1);
  EQ(sendmmsg(s[0], m, 3, 0), 3);
  for (int i = 0; i < 3; i++) m[i].msg_hdr = *empty_letter(&in[i]);
  EQ(recvmmsg(s[1], m, 3, 0, NULL), 3);
  for (int i = 0; i < 3; i++) in[i].m = m[i].msg_hdr;
  close(fd);
  for (int i = 0; i < 3; i++) {
    fd = inside(&in[i], 0);
    if (i < 2) echo_n(fd, MIB);
    else echo_all(fd);
    close(fd);
  }
}

// A message that cannot be sent takes nothing away; one that no process receives ends with the
// socket that it lies in.
static void lost_server(int fd) {
  int s[2], full = 0;
  letter l;
  FAILS(sendmsg(-1, letter_with(&l, 1, fd, -1), 0), EBADF);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
  while (send(s[0], "xxxxxxxx", 8, MSG_DONTWAIT) > 0) full++;
  CHECK(full > 0);
  FAILS(sendmsg(s[0], letter_with(&l, 1, fd, -1), MSG_DONTWAIT), EAGAIN);
  close(s[1]);
  FAILS(sendmsg(s[0], letter_with(&l, 1, fd, -1), MSG_NOSIGNAL), EPIPE);
  close(s[0]);
  echo_n(fd, MIB);
}
static void lost_client(int fd) {
  ask(fd, MIB);
  get_eof(fd);
}
static void unreceived_server(int lfd) {
  int s[2], fd = accepted(lfd);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
  pass(s[0], fd);
  close(fd);
  tell('p');
  hear('k');
  close(s[0]), close(s[1]);
}
static void unreceived_client(int fd) {
  fd = dial();
  hear('p');
  EQ(ready(fd, POLLIN, 50), 0);
  tell('k');
  char c;
  ssize_t n = recv(fd, &c, 1, 0);
  CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
}

// The listening socket goes to other programs, which accept.
static void listener_server(int lfd, int preloaded) {
  int via[2];
  pid_t p[2];
  for (int i = 0; i < 2; i++) {
    p[i] = program(preloaded, "accept", "3", &via[i]);
    pass(via[i], lfd);
  }
  for (int i = 0; i < 2; i++) EQ(exit_status(p[i]), 0);
}
static void listener_pre(int lfd) { listener_server(lfd, 1); }
static void listener_plain(int lfd) { listener_server(lfd, 0); }
static void listener_client(int fd) {
  for (int i = 0; i < 6; i++) {
    fd = dial();
    ask(fd, 300000);
    finish(fd);
    close(fd);
  }
}

// The peer has sent, and ended, when the descriptor goes to a program without the library, with
// bytes unread. On TCP it gets them all. (What cannot be had is said: an error, never an end that
// comes too early.)
static void unread_server(int fd) {
  int via;
  pid_t p = program(0, "whole", "2097152", &via);
  static char b[60000];
  for (uint64_t at = 0; at < 2 * MIB;) {
    size_t n = 2 * MIB - at < sizeof b ? 2 * MIB - at : sizeof b;
    get(fd, b, n);
    verify(b, n, 1, at);
    at += n;
  }
  hear('e');
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pass(via, fd);
  close(fd);
  EQ(exit_status(p), 0);
}
static void unread_client(int fd, int how) {
  put_stream(fd, 1, 0, 2 * MIB + WAITING, 20000);
  switch (how) {
    case 0: break;
    case 1: CHECK(!shutdown(fd, SHUT_WR)); break;
    case 2: close(fd); break;
    default: {  // the last that has it is killed
      int p[2];
      CHECK(!pipe(p));
      pid_t kid = fork();
      if (!kid) pause();
      close(fd);
      kill(kid, SIGKILL);
      EQ(exit_status(kid), 128 + SIGKILL);
    }
  }
  tell('e');
  if (how == 0) {
    nap(20);
    CHECK(!shutdown(fd, SHUT_WR));
  }
  if (how < 2) {
    char c;
    ssize_t n = recv(fd, &c, 1, 0);
    CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
  }
}
static void unread_open(int fd) { unread_client(fd, 0); }
static void unread_shut(int fd) { unread_client(fd, 1); }
static void unread_closed(int fd) { unread_client(fd, 2); }
static void unread_killed(int fd) { unread_client(fd, 3); }

// There is more unread than TCP takes, and the program that has it now does not read for a while.
static void late_server(int fd) {
  int via, little = 4096;
  pid_t p = program(0, "late", "", &via);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &little, sizeof little));
  tell('r');
  uint64_t all = hear_int();
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pass(via, fd);
  close(fd);
  EQ(write(via, &all, sizeof all), sizeof all);
  tell('p');
  EQ(exit_status(p), 0);
}
static void late_client(int fd) {
  static char b[20000];
  int little = 4096;
  uint64_t all = 0;
  ssize_t k;
  hear('r');
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &little, sizeof little));
  nonblock(fd, 1);
  do {
    fill(b, sizeof b, 1, all);
    k = send(fd, b, sizeof b, 0);
    if (k > 0) all += k;
  } while (k > 0);
  CHECK(errno == EAGAIN);
  tell_int(all);
  hear('p');
  if (!shutdown(fd, SHUT_WR)) ready(fd, POLLIN, 10000);
}

// Both ends go at one time to programs without the library, with bytes unread on both sides.
static void both(int fd) {
  int via;
  pid_t p = program(0, "whole", "2097152", &via);
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pump(fd, 1, 1, 2 * MIB, 20000);
  put_stream(fd, 1, 2 * MIB, 2 * MIB + WAITING, 20000);
  tell('r');
  hear('r');
  pass(via, fd);
  tell('p');
  hear('p');
  shutdown(fd, SHUT_WR);  // both have it elsewhere by now
  close(fd);
  EQ(exit_status(p), 0);
}

// The sender passes its end on with nothing read of what it sent; more follows, and both shut down
// before the first byte is read. What TCP brought before the connection left it comes first, then
// what was sent meanwhile, then TCP's again.
enum { ROUNDS = 600, EACH = 100, MORE = 30000 };
static void slow_reader(int fd) {
  static char b[EACH];
  for (int i = 0; i < ROUNDS; i++) {
    put(fd, b, EACH);
    if (i % 20 == 0) nap(1);  // the connection leaves TCP in the midst of this, if it does at all
  }
  hear('p');
  CHECK(!shutdown(fd, SHUT_WR));
  hear('e');
  for (double end = now() + 10; !(ready(fd, POLLIN, 1) & POLLHUP);) CHECK(now() < end);
  get_stream(fd, 1, 0, ROUNDS * EACH + MORE, 700);
  get_eof(fd);
}
static void passing_writer(int fd) {
  static char b[EACH];
  int s[2];
  for (int i = 0; i < ROUNDS; i++) {
    get(fd, b, EACH);
    put_stream(fd, 1, i * EACH, (i + 1) * EACH, EACH);
  }
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
  pass(s[0], fd);
  put_stream(fd, 1, ROUNDS * EACH, ROUNDS * EACH + MORE, 700);
  CHECK(!shutdown(fd, SHUT_WR));
  tell('p');
  get_eof(fd);
  tell('e');
  hear('o');
}
static void slow_reader_done(int fd) {
  slow_reader(fd);
  tell('o');
}

// The peer has shut down, and all of it was read to the end, when the descriptor goes to a program
// without the library. There is nothing to be sent again, and nothing to wait for, when the peer
// closes.
static void end_read_server(int fd) {
  int via;
  pid_t p = program(0, "answer", "", &via);
  get_stream(fd, 1, 0, 50000, 5000);
  get_eof(fd);
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pass(via, fd);
  close(fd);
  tell('p');
  EQ(exit_status(p), 0);
}
static void end_read_client(int fd) {
  put_stream(fd, 1, 0, 50000, 5000);
  CHECK(!shutdown(fd, SHUT_WR));
  hear('p');
  get_stream(fd, 2, 0, 50000, 5000);
  double before = now();
  close(fd);
  CHECK(now() - before < most_at_once());
}

const test_case CASES[] = {
    {"at_once", at_once_pre, asking, RAW},
    {"at_once_to_one_without", at_once_plain, asking, RAW | NOSHM},
    {"to_the_program_after_next", next_server, next_client, 0},
    {"to_a_program_and_its_child", two_server, two_client, 0},
    {"the_connecting_end", echo_accepted, dialled_client, RAW},
    {"in_turns", turns_server, turns_client, 0},
    {"twice", twice_server, twice_client, 0},
    {"several_in_a_call", many_server, twice_client, 0},
    {"not_sent", lost_server, lost_client, 0},
    {"not_received", unreceived_server, unreceived_client, RAW},
    {"listener", listener_pre, listener_client, RAW},
    {"listener_to_one_without", listener_plain, listener_client, RAW | NOSHM},
    {"unread", unread_server, unread_open, NOSHM},
    {"unread_and_shut_down", unread_server, unread_shut, NOSHM},
    {"unread_and_closed", unread_server, unread_closed, NOSHM},
    {"unread_and_killed", unread_server, unread_killed, NOSHM},
    {"unread_and_shut_down_before_it_is_read", late_server, late_client, NOSHM},
    {"after_its_end_was_read", end_read_server, end_read_client, NOSHM},
    {"both_ends_at_a_time", both, both, NOSHM},
    {"shut_down_and_read_from_the_start", slow_reader_done, passing_writer, NOSHM | COLD},
    {0},
};
