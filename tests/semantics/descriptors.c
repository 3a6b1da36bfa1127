// Many names for one socket: every spelling of dup, what each name has to itself (FD_CLOEXEC) and
// what all share (the status flags). Also what a number stands for after another was put on it, and
// when the connection ends for the peer. It ends with the last of its names, in whichever process,
// by whatever closes it.
#include "sem.h"

#include <sys/syscall.h>

enum { PIECE = 30000 };

// Echoes n bytes.
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
// Enough to leave TCP, or to see that it goes on.
static void ask(int fd) {
  static uint64_t seed;
  static char b[3000];
  seed++;
  for (uint64_t at = 0; at < PIECE; at += sizeof b) {
    fill(b, sizeof b, seed, at);
    put(fd, b, sizeof b);
    get(fd, b, sizeof b);
    verify(b, sizeof b, seed, at);
  }
}
// The peer has seen nothing of an end so far.
static void still_open(int fd) {
  EQ(ready(fd, POLLIN, 50), 0);
}

// -- the spellings
enum { SPELLINGS = 6 };
static int another(int fd, int how) {
  switch (how) {
    case 0: return dup(fd);
    case 1: return dup2(fd, 150);
    case 2: return dup3(fd, 151, 0);
    case 3: return dup3(fd, 152, O_CLOEXEC);
    case 4: return fcntl(fd, F_DUPFD, 160);
    default: return fcntl(fd, F_DUPFD_CLOEXEC, 170);
  }
}
static void spelling_server(int fd) {
  for (int i = 0; i < 2 * SPELLINGS; i++) {
    echo_n(fd, 2 * PIECE);
    hear('n');
    still_open(fd);
    tell('k');
  }
  hear('c');
  get_eof(fd);
}
// The old name goes, or the new one; the other goes on. FD_CLOEXEC is each name's own.
static void spelling_client(int fd) {
  for (int i = 0; i < 2 * SPELLINGS; i++) {
    int how = i / 2, on = how == 3 || how == 5;
    CHECK(!fcntl(fd, F_SETFD, on ? 0 : FD_CLOEXEC));
    int name = another(fd, how);
    CHECK(name >= 0 && name != fd);
    EQ(fcntl(name, F_GETFD), on ? FD_CLOEXEC : 0);
    EQ(fcntl(fd, F_GETFD), on ? 0 : FD_CLOEXEC);
    ask(name);
    int gone = i % 2 ? name : fd, left = i % 2 ? fd : name;
    close(gone);
    FAILS(fcntl(gone, F_GETFD), EBADF);
    ask(left);
    // Back to the number that it had, so that every spelling finds its own free.
    if (left != fd) {
      EQ(dup2(left, fd), fd);
      close(left);
    }
    tell('n');
    hear('k');
  }
  close(fd);
  tell('c');
}

// -- dup2 onto what
static void itself_server(int fd) { echo_all(fd); }
static void itself_client(int fd) {
  struct rlimit most;
  CHECK(!getrlimit(RLIMIT_NOFILE, &most));
  ask(fd);
  for (int on = 0; on < 2; on++) {
    CHECK(!fcntl(fd, F_SETFD, on ? FD_CLOEXEC : 0));
    EQ(dup2(fd, fd), fd);
    EQ(fcntl(fd, F_GETFD), on ? FD_CLOEXEC : 0);
  }
  FAILS(dup3(fd, fd, 0), EINVAL);
  FAILS(dup3(fd, fd, O_CLOEXEC), EINVAL);
  FAILS(dup3(fd, 150, O_NONBLOCK), EINVAL);
  FAILS(dup2(-1, fd), EBADF);
  FAILS(dup2(149, fd), EBADF);
  FAILS(dup3(149, fd, 0), EBADF);
  FAILS(dup2(fd, -1), EBADF);
  FAILS(dup2(fd, most.rlim_cur), EBADF);
  FAILS(fcntl(fd, F_DUPFD, -1), EINVAL);
  FAILS(fcntl(fd, F_DUPFD, (long)most.rlim_cur), EINVAL);
  FAILS(fcntl(149, F_DUPFD, 0), EBADF);
  ask(fd);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
static void replaced_server(int lfd) {
  int fd[3];
  for (int i = 0; i < 3; i++) CHECK((fd[i] = accept(lfd, NULL, NULL)) >= 0);
  for (int i = 0; i < 3; i++) echo_n(fd[i], PIECE);
  get_eof(fd[1]);
  tell('e');
  echo_n(fd[0], PIECE);
  // The other name of this one is closed first, then the number is taken: only then it ends.
  hear('d');
  still_open(fd[2]);
  tell('o');
  get_eof(fd[2]);
  tell('e');
  echo_all(fd[0]);
}
// Onto a connection: that one ends, if it was its last name, and the number is the other's.
static void replaced_client(int fd) {
  int c[3];
  (void)fd;
  for (int i = 0; i < 3; i++) c[i] = dial();
  for (int i = 0; i < 3; i++) ask(c[i]);
  EQ(dup2(c[0], c[1]), c[1]);
  hear('e');
  ask(c[1]);
  int name = dup(c[2]);
  CHECK(name >= 0);
  EQ(dup3(c[0], c[2], O_CLOEXEC), c[2]);
  tell('d');
  hear('o');
  EQ(dup2(c[0], name), name);
  hear('e');
  close(c[0]), close(c[1]), close(name);
  ask(c[2]);
  CHECK(!shutdown(c[2], SHUT_WR));
  get_eof(c[2]);
}
// Onto a listener, and a listener onto a connection.
static void listeners_server(int lfd) {
  int first = accept(lfd, NULL, NULL), port;
  CHECK(first >= 0);
  echo_n(first, PIECE);
  int other = listener(&port);
  tell_int(port);
  int fd = accept(other, NULL, NULL);
  CHECK(fd >= 0);
  echo_n(fd, PIECE);
  EQ(dup2(fd, other), other);  // no socket listens there any more
  close(fd);
  tell('c');
  echo_n(other, PIECE);
  EQ(dup2(lfd, other), other);  // the connection is over, and its number listens
  close(lfd);
  fd = accept(other, NULL, NULL);
  CHECK(fd >= 0);
  echo_n(fd, PIECE);
  close(other);
  echo_n(fd, PIECE);
  close(fd);
  echo_all(first);
}
static void listeners_client(int fd) {
  (void)fd;
  int first = dial();
  ask(first);
  int port = hear_int(), second = dial_port(port);
  ask(second);
  hear('c');
  struct sockaddr_storage a;
  int none = socket(ctx.family, SOCK_STREAM, 0);
  socklen_t n = address(&a, port);
  FAILS(connect(none, (struct sockaddr *)&a, n), ECONNREFUSED);
  close(none);
  ask(second);
  get_eof(second);
  int third = dial();
  ask(third);
  ask(third);
  get_eof(third);
  ask(first);
  CHECK(!shutdown(first, SHUT_WR));
  get_eof(first);
}

// -- epoll goes by what is open, not by the number
static int events(int set, struct epoll_event *e, int ms) { return epoll_wait(set, e, 4, ms); }
static void member(int set, int op, int fd, uint64_t data) {
  struct epoll_event e = {.events = EPOLLIN, .data.u64 = data};
  EQ(epoll_ctl(set, op, fd, &e), 0);
}
static void members_server(int lfd) {
  int fd[2];
  for (int i = 0; i < 2; i++) CHECK((fd[i] = accept(lfd, NULL, NULL)) >= 0);
  for (int i = 0; i < 2; i++) echo_n(fd[i], PIECE);
  echo_n(fd[0], 1);
  get_eof(fd[1]);
  hear('x');
  put(fd[0], "x", 1);
  echo_all(fd[0]);
}
static void members_client(int fd) {
  struct epoll_event e[4];
  int c[2], set = epoll_create1(0);
  char b;
  (void)fd;
  for (int i = 0; i < 2; i++) c[i] = dial();
  for (int i = 0; i < 2; i++) ask(c[i]);
  for (int i = 0; i < 2; i++) member(set, EPOLL_CTL_ADD, c[i], i);
  EQ(events(set, e, 20), 0);
  put(c[0], "y", 1);
  EQ(events(set, e, 5000), 1);
  EQ(e[0].data.u64, 0);
  get(c[0], &b, 1);
  // The second member is over with its only number; the number is the first connection's, and no
  // member.
  EQ(dup2(c[0], c[1]), c[1]);
  EQ(events(set, e, 20), 0);
  struct epoll_event none = {0};
  FAILS(epoll_ctl(set, EPOLL_CTL_MOD, c[1], &none), ENOENT);
  member(set, EPOLL_CTL_ADD, c[1], 7);
  tell('x');
  int seen = 0;
  for (int i = 0; i < 50 && seen != 3; i++) {
    int n = events(set, e, 1000);
    for (int k = 0; k < n; k++) seen |= e[k].data.u64 == 7 ? 2 : e[k].data.u64 == 0 ? 1 : 4;
  }
  EQ(seen, 3);
  get(c[0], &b, 1);
  EQ(events(set, e, 20), 0);
  close(set);
  ask(c[1]);
  CHECK(!shutdown(c[0], SHUT_WR));
  get_eof(c[1]);
}

// -- ranges
static void ranges_server(int lfd) {
  int fd = accept(lfd, NULL, NULL), low = accept(lfd, NULL, NULL);
  CHECK(fd >= 0 && low >= 0);
  echo_n(fd, PIECE);
  echo_n(low, PIECE);
  echo_n(fd, PIECE);
  hear('n');
  still_open(fd);
  tell('k');
  get_eof(fd);
  tell('e');
  echo_all(low);
}
// CLOSE_RANGE_CLOEXEC marks and closes nothing; CLOSE_RANGE_UNSHARE closes, closefrom too; what is
// below goes on.
static void ranges(int fd, int from) {
  (void)fd;
  int top = dial(), low = dial();
  EQ(dup2(top, 180), 180);
  close(top);
  ask(180);
  ask(low);
  CHECK(low < 100);
  EQ(dup2(180, 185), 185);
  EQ(close_range(180, 189, CLOSE_RANGE_CLOEXEC), 0);
  EQ(fcntl(180, F_GETFD), FD_CLOEXEC);
  EQ(fcntl(185, F_GETFD), FD_CLOEXEC);
  EQ(fcntl(low, F_GETFD), 0);
  FAILS(close_range(189, 180, 0), EINVAL);
  FAILS(close_range(180, 189, 1 << 10), EINVAL);
  ask(185);
  if (from) {
    EQ(close_range(185, 185, CLOSE_RANGE_UNSHARE), 0);
    int p[2];
    char c;
    CHECK(!pipe(p));
    pid_t kid = fork();  // the harness has its pipes up there: only a child may close everything
    if (!kid) {
      if (read(p[0], &c, 1) != 1) _exit(9);
      closefrom(100);
      pause();
    }
    close(180);
    tell('n');
    hear('k');
    CHECK(write(p[1], "x", 1) == 1);
    hear('e');
    kill(kid, SIGKILL);
    EQ(exit_status(kid), 128 + SIGKILL);
  } else {
    EQ(close_range(180, 180, 0), 0);
    tell('n');
    hear('k');
    EQ(close_range(100, 189, CLOSE_RANGE_UNSHARE), 0);
    hear('e');
  }
  FAILS(fcntl(180, F_GETFD), EBADF);
  FAILS(fcntl(185, F_GETFD), EBADF);
  ask(low);
  CHECK(!shutdown(low, SHUT_WR));
  get_eof(low);
}
static void range_client(int fd) { ranges(fd, 0); }
static void from_client(int fd) { ranges(fd, 1); }
// A thread that takes a table of its own closes nothing of its siblings'.
static void *own_table(void *p) {
  (void)p;
  EQ(close_range(3, 189, CLOSE_RANGE_UNSHARE), 0);
  int zero = open("/dev/zero", O_RDONLY);  // mostly the number that the connection has elsewhere
  char c = 1;
  CHECK(zero >= 0 && read(zero, &c, 1) == 1 && c == 0);
  close(zero);
  return NULL;
}
static void own_table_client(int fd) {
  pthread_t t;
  ask(fd);
  CHECK(!pthread_create(&t, NULL, own_table, NULL));
  pthread_join(t, NULL);
  EQ(fcntl(fd, F_GETFD), 0);
  ask(fd);
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}

// -- closed by the number of the system call, as libuv closes everything
enum { WAYS = 2 };
static long close_by_number(int fd, int how) {
  return how ? syscall(SYS_close_range, fd, fd, 0) : syscall(SYS_close, fd);
}
static void by_number_server(int lfd) {
  for (int how = 0; how < WAYS; how++) {
    int fd = accept(lfd, NULL, NULL);
    char c;
    CHECK(fd >= 0);
    echo_n(fd, PIECE);
    put(fd, "stale", 5);
    tell('p');
    hear('c');
    // It had unread bytes.
    FAILS(recv(fd, &c, 1, 0), ECONNRESET);
    close(fd);
  }
}
// The number is a file's next, of which every byte is its own.
static void by_number_client(int fd) {
  char name[] = "/tmp/by_number.XXXXXX", b[9] = "";
  int file = mkstemp(name);
  CHECK(file >= 0 && write(file, "contents", 8) == 8);
  close(file);
  for (int how = 0; how < WAYS; how++) {
    fd = dial();
    ask(fd);
    hear('p');
    CHECK(ready(fd, POLLIN, 5000));
    EQ(close_by_number(fd, how), 0);
    FAILS(write(fd, "x", 1), EBADF);
    EQ(open(name, O_RDWR), fd);
    EQ(read(fd, b, 8), 8);
    CHECK(!strcmp(b, "contents"));
    EQ(lseek(fd, 0, SEEK_SET), 0);
    EQ(write(fd, "CONTENTS", 8), 8);
    EQ(pread(fd, b, 8, 0), 8);
    CHECK(!strcmp(b, "CONTENTS"));
    EQ(pwrite(fd, "contents", 8, 0), 8);
    EQ(close_by_number(fd, how), 0);
    tell('c');
  }
  FAILS(syscall(SYS_close, fd), EBADF);
  FAILS(syscall(SYS_close_range, 5, 4, 0), EINVAL);
  unlink(name);
}

// -- status flags belong to all names, in all processes
static void flags_server(int fd) {
  echo_n(fd, PIECE);
  for (int i = 0; i < 3; i++) {
    hear('s');
    nap(30);
    put(fd, "x", 1);
  }
  echo_all(fd);
}
static void blocks_until_told(int fd) {
  char c;
  tell('s');
  EQ(recv(fd, &c, 1, 0), 1);
}
static void flags_client(int fd) {
  char c;
  ask(fd);
  int name = dup(fd), other = fcntl(fd, F_DUPFD_CLOEXEC, 100), on = 1;
  CHECK(name >= 0 && other >= 100);
  nonblock(name, 1);
  CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK && fcntl(other, F_GETFL) & O_NONBLOCK);
  FAILS(recv(fd, &c, 1, 0), EAGAIN);
  FAILS(read(other, &c, 1), EAGAIN);
  nonblock(fd, 0);
  CHECK(!(fcntl(name, F_GETFL) & O_NONBLOCK));
  blocks_until_told(other);
  // A child sets it, and takes it back; its parent finds it so.
  for (int i = 0; i < 2; i++) {
    pid_t kid = fork();
    if (!kid) {
      nonblock(name, !i);
      _exit(0);
    }
    EQ(exit_status(kid), 0);
    EQ(!!(fcntl(fd, F_GETFL) & O_NONBLOCK), !i);
    if (!i) FAILS(recv(fd, &c, 1, 0), EAGAIN);
    else blocks_until_told(fd);
  }
  EQ(ioctl(other, FIONBIO, &on), 0);
  pid_t kid = fork();
  if (!kid) {
    FAILS(recv(fd, &c, 1, 0), EAGAIN);
    on = 0;
    EQ(ioctl(fd, FIONBIO, &on), 0);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  close(fd), close(other);
  blocks_until_told(name);
  ask(name);
  CHECK(!shutdown(name, SHUT_WR));
  get_eof(name);
}

// -- the last name may be in another program
// In another program: waits for a byte on descriptor 0, having whatever it was left.
static int role(const char *r, const char *arg) {
  char c;
  (void)r, (void)arg;
  CHECK(write(1, "r", 1) == 1);  // it runs
  return read(0, &c, 1) == 1 ? 0 : 1;
}
__attribute__((constructor)) static void set_role(void) { extra_role = role; }

static void held_server(int fd) {
  echo_n(fd, PIECE);
  hear('n');
  still_open(fd);
  tell('k');
  get_eof(fd);
  tell('e');
}
// Of two names the child's exec closes one; the other stays open in the new program, until that
// ends.
static void held_client(int fd, int preloaded, int keep) {
  int s[2];
  char c;
  ask(fd);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
  int name = dup(fd);
  CHECK(name >= 0 && !fcntl(fd, F_SETFD, FD_CLOEXEC) && (keep || !fcntl(name, F_SETFD, FD_CLOEXEC)));
  pid_t kid = spawn_self(preloaded, "wait", s[1], NULL);
  close(s[1]);
  if (!keep) {
    // The new program has none: it is over with ours.
    CHECK(read(s[0], &c, 1) == 1);
    tell('n');
    hear('k');
    close(name), close(fd);
    hear('e');
  } else {
    close(name), close(fd);
    CHECK(read(s[0], &c, 1) == 1);
    tell('n');
    hear('k');
  }
  CHECK(write(s[0], "x", 1) == 1);
  EQ(exit_status(kid), 0);
  if (keep) hear('e');
}
static void held_pre(int fd) { held_client(fd, 1, 1); }
static void held_plain(int fd) { held_client(fd, 0, 1); }
static void marked_pre(int fd) { held_client(fd, 1, 0); }
static void marked_plain(int fd) { held_client(fd, 0, 0); }
// The last names go by an exec, in another process, which lives on as another program.
static void last_client(int fd, int preloaded) {
  int s[2], go[2];
  char c;
  ask(fd);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s) && !pipe(go));
  int name = fcntl(fd, F_DUPFD_CLOEXEC, 100);
  CHECK(name >= 100 && !fcntl(fd, F_SETFD, FD_CLOEXEC));
  pid_t kid = fork();
  if (!kid) {
    if (read(go[0], &c, 1) != 1) _exit(9);
    if (!preloaded) unsetenv("LD_PRELOAD");
    dup2(s[1], 0), dup2(s[1], 1);
    execl("/bin/sh", "sh", "-c", "echo; read x", (char *)0);
    _exit(8);
  }
  close(s[1]), close(name), close(fd);
  tell('n');
  hear('k');
  CHECK(write(go[1], "x", 1) == 1);
  hear('e');
  CHECK(read(s[0], &c, 1) == 1);
  CHECK(write(s[0], "\n", 1) == 1);
  EQ(exit_status(kid), 0);
}
static void last_pre(int fd) { last_client(fd, 1); }
static void last_plain(int fd) { last_client(fd, 0); }

const test_case CASES[] = {
    {"every_spelling", spelling_server, spelling_client, 0},
    {"onto_itself", itself_server, itself_client, 0},
    {"onto_a_connection", replaced_server, replaced_client, RAW},
    {"onto_a_listener", listeners_server, listeners_client, RAW},
    {"onto_a_member", members_server, members_client, RAW},
    {"close_range", ranges_server, range_client, RAW},
    {"closefrom", ranges_server, from_client, RAW},
    {"closed_by_number", by_number_server, by_number_client, RAW},
    {"a_table_of_its_own", itself_server, own_table_client, NOSHM},
    {"status_flags", flags_server, flags_client, 0},
    {"held_by_a_program", held_server, held_pre, 0},
    {"held_by_a_program_without", held_server, held_plain, NOSHM},
    {"marked_for_exec", held_server, marked_pre, 0},
    {"marked_for_exec_without", held_server, marked_plain, 0},
    {"last_close_by_exec", held_server, last_pre, 0},
    {"last_close_by_exec_without", held_server, last_plain, 0},
    {0},
};
