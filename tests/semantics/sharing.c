// One connection, several holders: descriptors, threads, forked children, other programs.
#include "sem.h"

#include <sys/un.h>

enum { MIB = 1 << 20 };

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
// To and fro, checked: [from, to) of the stream of that seed in pieces.
static void ask(int fd, uint64_t seed, uint64_t from, uint64_t to, size_t piece) {
  static __thread char b[16384];
  while (from < to) {
    size_t n = to - from < piece ? to - from : piece;
    fill(b, n, seed, from);
    put(fd, b, n);
    get(fd, b, n);
    verify(b, n, seed, from);
    from += n;
  }
}

// -- descriptors
static void dup_server(int fd) {
  echo_n(fd, 3 * 50000);
  hear('h');
  EQ(ready(fd, POLLIN, 100), 0);  // another name still holds it
  tell('k');
  get_eof(fd);
}
static void dup_client(int fd) {
  ask(fd, 1, 0, 50000, 3000);
  int d = dup(fd), e = dup2(fd, 150), f = fcntl(fd, F_DUPFD, 160);
  CHECK(d >= 0 && e == 150 && f >= 160);
  EQ(dup3(fd, 151, O_CLOEXEC), 151);
  EQ(dup2(fd, fd), fd);
  close(fd);
  ask(d, 1, 50000, 100000, 3000);
  close(d);
  ask(e, 1, 100000, 150000, 3000);
  close(e);
  close(151);
  tell('h');
  hear('k');
  close(f);  // the last
}
// dup2 onto a connection closes it.
static void dup2_onto_server(int fd) {
  echo_n(fd, 30000);
  get_eof(fd);
  tell('e');
}
static void dup2_onto_client(int fd) {
  ask(fd, 1, 0, 30000, 3000);
  int p[2];
  CHECK(!pipe(p));
  EQ(dup2(p[1], fd), fd);
  hear('e');
  CHECK(write(fd, "pipe", 4) == 4);  // the number is the pipe's now
  char b[4];
  EQ(read(p[0], b, 4), 4);
  // And a fresh connection under an old number is a fresh connection.
  close(fd);
  int s[2];
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, s));
  CHECK(write(s[0], "unix", 4) == 4 && read(s[1], b, 4) == 4);
}
static void numbers_server(int lfd) {
  for (int i = 0; i < 30; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    echo_all(fd);
    close(fd);
  }
}
// The same number, again and again, for another connection.
static void numbers_client(int fd) {
  int first = -1;
  for (int i = 0; i < 30; i++) {
    fd = dial();
    if (first < 0) first = fd;
    EQ(fd, first);
    ask(fd, i, 0, 100000, 16000);
    close(fd);
  }
}
// closefrom and close_range as daemons use them.
static void close_range_server(int fd) {
  echo_n(fd, 100000);
  get_eof(fd);
}
static void close_range_client(int fd) {
  ask(fd, 1, 0, 100000, 9000);
  int top = fcntl(fd, F_DUPFD, 100);
  CHECK(top >= 100 && top < 190);
  EQ(close_range(fd, 190, 0), 0);
  FAILS(fcntl(top, F_GETFD), EBADF);
  int again = dial();
  CHECK(again == fd);
}
static void close_range_raw_server(int lfd) {
  int fd = accept(lfd, NULL, NULL);
  close_range_server(fd);
  fd = accept(lfd, NULL, NULL);
  CHECK(fd >= 0);
}
static void close_range_raw_client(int fd) {
  fd = dial();
  close_range_client(fd);
}

// -- fork
static void forking_server(int lfd) {
  pid_t kid[8];
  for (int i = 0; i < 8; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    kid[i] = fork();
    CHECK(kid[i] >= 0);
    if (!kid[i]) {
      close(lfd);
      echo_all(fd);
      _exit(0);
    }
    close(fd);
  }
  for (int i = 0; i < 8; i++) EQ(exit_status(kid[i]), 0);
}
static void *forking_one(void *p) {
  int fd = dial();
  ask(fd, (intptr_t)p, 0, 2 * MIB, 16000);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
  close(fd);
  return NULL;
}
static void forking_client(int fd) {
  pthread_t t[8];
  (void)fd;
  for (intptr_t i = 0; i < 8; i++) CHECK(!pthread_create(&t[i], NULL, forking_one, (void *)i));
  for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
}
// The child moves enough to change the transport while the parent still holds the connection; then
// the parent goes on.
static void child_then_parent_server(int fd) {
  pid_t p = fork();
  CHECK(p >= 0);
  if (!p) {
    echo_n(fd, 4 * MIB);
    _exit(0);
  }
  EQ(exit_status(p), 0);
  echo_n(fd, 4 * MIB);
  p = fork();
  if (!p) {
    echo_n(fd, MIB);
    _exit(0);
  }
  EQ(exit_status(p), 0);
  echo_all(fd);
}
static void child_then_parent_client(int fd) {
  ask(fd, 1, 0, 10 * MIB, 16000);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
// Turn by turn, parent and child, on both sides.
static void turns_server(int fd) {
  int p[2], q[2];
  char c;
  CHECK(!pipe(p) && !pipe(q));
  pid_t kid = fork();
  CHECK(kid >= 0);
  for (int i = 0; i < 20; i++) {
    if (!kid) {
      CHECK(read(p[0], &c, 1) == 1);
      echo_n(fd, 100000);
      CHECK(write(q[1], "x", 1) == 1);
    } else {
      echo_n(fd, 100000);
      CHECK(write(p[1], "x", 1) == 1);
      CHECK(read(q[0], &c, 1) == 1);
    }
  }
  if (!kid) _exit(0);
  EQ(exit_status(kid), 0);
  echo_all(fd);
}
static void turns_client(int fd) {
  for (int i = 0; i < 8; i++) {
    pid_t kid = fork();
    if (!kid) {
      ask(fd, 1, i * 500000, (i + 1) * 500000, 10000);
      _exit(0);
    }
    EQ(exit_status(kid), 0);
  }
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
// One process reads, its child writes.
static void split_client(int fd) {
  pid_t kid = fork();
  CHECK(kid >= 0);
  if (!kid) {
    put_stream(fd, 1, 0, 8 * MIB, 40000);
    CHECK(!shutdown(fd, SHUT_WR));
    _exit(0);
  }
  get_stream(fd, 1, 0, 8 * MIB, 40000);
  get_eof(fd);
  EQ(exit_status(kid), 0);
}
// The child's exit does not end the parent's connection, nor the parent's close the child's.
static void parent_closes_server(int fd) {
  pid_t kid = fork();
  CHECK(kid >= 0);
  if (!kid) {
    nap(100);
    echo_all(fd);
    _exit(0);
  }
  close(fd);
  EQ(exit_status(kid), 0);
}
static void parent_closes_client(int fd) {
  pid_t kid = fork();
  if (!kid) _exit(0);
  EQ(exit_status(kid), 0);
  ask(fd, 1, 0, 2 * MIB, 16000);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
static void prefork_server(int lfd) {
  pid_t kid[3];
  for (int i = 0; i < 3; i++)
    if (!(kid[i] = fork())) {
      for (;;) {
        int fd = accept(lfd, NULL, NULL);
        CHECK(fd >= 0);
        char c;
        get(fd, &c, 1);
        if (c == 'q') _exit(0);
        put(fd, &c, 1);
        echo_all(fd);
        close(fd);
      }
    }
  for (int i = 0; i < 3; i++) EQ(exit_status(kid[i]), 0);
}
static void prefork_client(int fd) {
  for (int i = 0; i < 24; i++) {
    char c = 'e';
    fd = dial();
    put(fd, &c, 1);
    get(fd, &c, 1);
    ask(fd, i, 0, 200000, 9000);
    close(fd);
  }
  for (int i = 0; i < 3; i++) {
    fd = dial();
    put(fd, "q", 1);
    char c;
    EQ(recv(fd, &c, 1, 0), 0);
    close(fd);
  }
}

// -- threads
static void echo_role(int fd) { echo_all(fd); }
static void *blocked_reader(void *p) {
  get_stream(*(int *)p, 1, 0, 4 * MIB, 30000);
  return NULL;
}
// One thread sits in recv (since before there was anything) while the other writes.
static void reader_writer(int fd) {
  pthread_t t;
  CHECK(!pthread_create(&t, NULL, blocked_reader, &fd));
  nap(50);
  put_stream(fd, 1, 0, 1000, 10);
  nap(20);
  put_stream(fd, 1, 1000, 4 * MIB, 20000);
  pthread_join(t, NULL);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
static void *serve_thread(void *p) {
  int fd = (intptr_t)p;
  static __thread char b[20000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  CHECK(k == 0);
  close(fd);
  return NULL;
}
static void threads_server(int lfd) {
  pthread_t t[16];
  for (int i = 0; i < 16; i++) {
    intptr_t fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    CHECK(!pthread_create(&t[i], NULL, serve_thread, (void *)fd));
  }
  for (int i = 0; i < 16; i++) pthread_join(t[i], NULL);
}
static void *ask_thread(void *p) {
  int fd = dial();
  uint64_t seed = (intptr_t)p;
  for (int i = 1; i < 300; i++) ask(fd, seed, i * 100, i * 100 + 1 + i * 37 % 9000, 16384);
  ask(fd, seed, 0, MIB, 16384);
  close(fd);
  return NULL;
}
static void threads_client(int fd) {
  pthread_t t[16];
  (void)fd;
  for (intptr_t i = 0; i < 16; i++) CHECK(!pthread_create(&t[i], NULL, ask_thread, (void *)i));
  for (int i = 0; i < 16; i++) pthread_join(t[i], NULL);
}
// Two threads write to one connection: pieces up to a size do not have to stay whole on TCP, but no
// byte is lost.
static void *half_writer(void *p) {
  char b[1000];
  memset(b, p ? 'a' : 'b', sizeof b);
  extern int two_fd;
  for (int i = 0; i < 1000; i++) put(two_fd, b, sizeof b);
  return NULL;
}
int two_fd;
static void two_writers(int fd) {
  pthread_t t[2];
  two_fd = fd;
  for (intptr_t i = 0; i < 2; i++) CHECK(!pthread_create(&t[i], NULL, half_writer, (void *)i));
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  close(fd);
}
static void two_counts(int fd) {
  long n[2] = {0, 0};
  static char b[30000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0)
    for (ssize_t i = 0; i < k; i++) {
      CHECK(b[i] == 'a' || b[i] == 'b');
      n[b[i] == 'b']++;
    }
  EQ(k, 0);
  EQ(n[0], 1000000);
  EQ(n[1], 1000000);
}
// A thread that is cancelled in a blocked recv leaves the connection usable.
static void *cancelled(void *p) {
  char c;
  recv(*(int *)p, &c, 1, 0);
  return NULL;
}
static void cancel(int fd) {
  pthread_t t;
  void *r;
  CHECK(!pthread_create(&t, NULL, cancelled, &fd));
  nap(50);
  CHECK(!pthread_cancel(t));
  CHECK(!pthread_join(t, &r));
  CHECK(r == PTHREAD_CANCELED);
  ask(fd, 1, 0, 300000, 9000);
  close(fd);
}

// -- other programs
// In the other process: upper-cases what comes on its standard input, with read and write.
static int filter(const char *arg) {
  long limit = atol(arg), n = 0;
  char b[8192];
  ssize_t k = 0;
  while (n < limit && (k = read(0, b, limit - n < (long)sizeof b ? limit - n : (long)sizeof b)) > 0) {
    n += k;
    for (ssize_t i = 0; i < k; i++)
      if (b[i] >= 'a' && b[i] <= 'z') b[i] -= 32;
    for (ssize_t o = 0; o < k;) {
      ssize_t m = write(1, b + o, k - o);
      if (m <= 0) return 3;
      o += m;
    }
  }
  return k < 0 ? 4 : n == limit ? 0 : 5;
}
static int receiver(const char *arg) {
  // Gets a connection over a UNIX socket on descriptor 0 and serves it.
  char c, ctl[CMSG_SPACE(sizeof(int))];
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = ctl, .msg_controllen = sizeof ctl};
  CHECK(recvmsg(0, &m, 0) == 1);
  int fd;
  CHECK(CMSG_FIRSTHDR(&m));
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  echo_n(fd, atol(arg));
  return 0;
}
// Serves the connection that it finds on the number of its argument.
static int echoer(const char *arg) {
  echo_all(atoi(arg));
  return 0;
}
static int role(const char *r, const char *arg) {
  return !strcmp(r, "filter") ? filter(arg) : !strcmp(r, "echoer") ? echoer(arg) : receiver(arg);
}
__attribute__((constructor)) static void set_role(void) { extra_role = role; }

static void upper_ask(int fd, long n) {
  char b[3000], c[3000];
  for (long at = 0; at < n;) {
    size_t m = n - at < (long)sizeof b ? n - at : (long)sizeof b;
    for (size_t i = 0; i < m; i++) b[i] = 'a' + (at + i) % 26;
    put(fd, b, m);
    get(fd, c, m);
    for (size_t i = 0; i < m; i++) CHECK(c[i] == 'A' + (int)((at + i) % 26));
    at += m;
  }
}
// inetd: the connection becomes the other program's standard input and output, in the middle of the
// stream.
static void exec_server(int fd, int preloaded) {
  echo_n(fd, 2 * MIB);
  pid_t p = spawn_self(preloaded, "filter", fd, "1500000");
  close(fd);
  EQ(exit_status(p), 0);
}
static void exec_pre(int fd) { exec_server(fd, 1); }
static void exec_plain(int fd) { exec_server(fd, 0); }
static void exec_client(int fd) {
  ask(fd, 1, 0, 2 * MIB, 16000);
  upper_ask(fd, 1500000);
  get_eof(fd);
}
// The same, with bytes already under way that the old program has not read.
static void exec_unread_server(int fd) {
  echo_n(fd, 2 * MIB);
  CHECK(ready(fd, POLLIN, 5000));
  hear('s');
  exec_server(fd, 0);
}
static void exec_unread_client(int fd) {
  ask(fd, 1, 0, 2 * MIB, 16000);
  put_stream(fd, 1, 0, 30000, 5000);
  tell('s');
  get_stream(fd, 1, 0, 30000, 9000);
  ask(fd, 1, 30000, 2 * MIB, 16000);
  upper_ask(fd, 1500000);
  get_eof(fd);
}
// The parent goes on with the connection when the other program has ended.
static void exec_back_server(int fd, int preloaded) {
  echo_n(fd, 2 * MIB);
  pid_t p = spawn_self(preloaded, "filter", fd, "1500000");
  EQ(exit_status(p), 0);
  echo_all(fd);
}
static void exec_back_pre(int fd) { exec_back_server(fd, 1); }
static void exec_back_plain(int fd) { exec_back_server(fd, 0); }
static void exec_back_client(int fd) {
  ask(fd, 1, 0, 2 * MIB, 16000);
  upper_ask(fd, 1500000);
  ask(fd, 2, 0, MIB, 16000);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
// The child of a vfork lets the program have the connection under the number that it has, or under
// another above 2. Python's subprocess does the former.
enum { BY_IOCTL, BY_FCNTL, BY_DUP2 };
static void vfork_number(int fd, int how) {
  char number[16];
  echo_n(fd, 2 * MIB);
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  snprintf(number, sizeof number, "%d", how == BY_DUP2 ? 100 : fd);
  pid_t kid = vfork();
  if (!kid) {
    if (how == BY_IOCTL && ioctl(fd, FIONCLEX)) _exit(8);
    if (how == BY_FCNTL && fcntl(fd, F_SETFD, 0)) _exit(8);
    if (how == BY_DUP2 && dup2(fd, 100) != 100) _exit(8);
    execl(ctx.self, ctx.self, "@extra", "echoer", "0", "0", number, (char *)0);
    _exit(9);
  }
  CHECK(kid > 0);
  close(fd);
  EQ(exit_status(kid), 0);
}
static void vfork_ioctl_server(int fd) { vfork_number(fd, BY_IOCTL); }
static void vfork_fcntl_server(int fd) { vfork_number(fd, BY_FCNTL); }
static void vfork_dup2_server(int fd) { vfork_number(fd, BY_DUP2); }
static void vfork_number_client(int fd) {
  ask(fd, 1, 0, 2 * MIB, 16000);
  ask(fd, 2, 0, 2 * MIB, 16000);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
static void pass(int via, int fd) {
  char c = 'p';
  union {
    char b[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } u;
  memset(&u, 0, sizeof u);
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.b, .msg_controllen = sizeof u.b};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET;
  h->cmsg_type = SCM_RIGHTS;
  h->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  EQ(sendmsg(via, &m, 0), 1);
}
static void scm_server(int fd, int preloaded) {
  int s[2];
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
  // The receiving program starts first, so that it inherits nothing of the connection but by the
  // message.
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pid_t p = spawn_self(preloaded, "receiver", s[1], "3000000");
  close(s[1]);
  echo_n(fd, 2 * MIB);
  pass(s[0], fd);
  close(fd);
  EQ(exit_status(p), 0);
}
static void scm_pre(int fd) { scm_server(fd, 1); }
static void scm_plain(int fd) { scm_server(fd, 0); }
static void scm_client(int fd) {
  ask(fd, 1, 0, 2 * MIB, 16000);
  ask(fd, 2, 0, 3000000, 15000);
  get_eof(fd);
}
static void cloexec_server(int fd) {
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  int s[2];
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
  echo_n(fd, MIB);
  pid_t p = spawn_self(1, "filter", s[1], "10");  // waits, holding nothing of ours
  close(s[1]);
  echo_n(fd, MIB);
  close(fd);
  hear('e');
  CHECK(write(s[0], "0123456789", 10) == 10);
  EQ(exit_status(p), 0);
}
// A program that was started beside the connection does not keep it open.
static void cloexec_client(int fd) {
  ask(fd, 1, 0, 2 * MIB, 16000);
  get_eof(fd);
  tell('e');
}
const test_case CASES[] = {
    {"dup_and_last_close", dup_server, dup_client, 0},
    {"dup2_onto_it", dup2_onto_server, dup2_onto_client, 0},
    {"same_number_again", numbers_server, numbers_client, RAW},
    {"close_range", close_range_raw_server, close_range_raw_client, RAW},
    {"fork_per_connection", forking_server, forking_client, RAW},
    {"child_then_parent", child_then_parent_server, child_then_parent_client, 0},
    {"parent_and_child_in_turns", turns_server, turns_client, 0},
    {"parent_reads_child_writes", echo_role, split_client, 0},
    {"parent_closes_child_serves", parent_closes_server, parent_closes_client, 0},
    {"prefork_accept", prefork_server, prefork_client, RAW},
    {"blocked_reader_and_writer", echo_role, reader_writer, 0},
    {"thread_per_connection", threads_server, threads_client, RAW},
    {"two_writers", two_counts, two_writers, 0},
    {"cancel_in_recv", echo_role, cancel, 0},
    {"exec_preloaded", exec_pre, exec_client, 0},
    {"exec_not_preloaded", exec_plain, exec_client, NOSHM},
    {"exec_with_unread_data", exec_unread_server, exec_unread_client, NOSHM},
    {"exec_and_back_preloaded", exec_back_pre, exec_back_client, 0},
    {"exec_and_back_not_preloaded", exec_back_plain, exec_back_client, NOSHM},
    {"vfork_passes_a_number", vfork_ioctl_server, vfork_number_client, NOSHM},
    {"vfork_passes_a_number_by_fcntl", vfork_fcntl_server, vfork_number_client, NOSHM},
    {"vfork_passes_a_number_by_dup2", vfork_dup2_server, vfork_number_client, NOSHM},
    {"passed_to_preloaded", scm_pre, scm_client, 0},
    {"passed_to_not_preloaded", scm_plain, scm_client, NOSHM},
    {"cloexec", cloexec_server, cloexec_client, 0},
    {0},
};
