// What upstream's library does wrong with fork, row by row of section 7 of the list of its gaps
// (gap_7_N), and the other ways by which a program starts another.
#include "sem.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { MIB = 1 << 20 };

static void echo_n(int fd, uint64_t n) {
  static __thread char b[50000];
  for (uint64_t at = 0; at < n;) {
    ssize_t k = recv(fd, b, n - at < sizeof b ? n - at : sizeof b, 0);
    CHECK(k > 0);
    put(fd, b, k);
    at += k;
  }
}
static void echo_all(int fd) {
  static __thread char b[50000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
static void echo_role(int fd) { echo_all(fd); }
static void ask(int fd, uint64_t seed, uint64_t n, size_t piece) {
  static __thread char b[16384];
  for (uint64_t at = 0; at < n;) {
    size_t k = n - at < piece ? n - at : piece;
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

// 7.1: a connection cannot be used in a child. Here by parent, child and grandchild, at both ends.
static void child_server(int fd) {
  pid_t kid = fork();
  if (!kid) {
    echo_n(fd, MIB);
    pid_t grandchild = fork();
    if (!grandchild) {
      echo_n(fd, MIB);
      _exit(0);
    }
    EQ(exit_status(grandchild), 0);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  echo_all(fd);
}
static void child_client(int fd) {
  for (int i = 0; i < 3; i++) {
    pid_t kid = fork();
    if (!kid) {
      ask(fd, i, MIB, 9000);
      _exit(0);
    }
    EQ(exit_status(kid), 0);
  }
  finish(fd);
}

// 7.2: what a child asks of the library reaches its parent's threads. Here workers accept, and
// connect to each other.
static void prefork_server(int lfd) {
  pid_t kid[4];
  for (int i = 0; i < 4; i++)
    if (!(kid[i] = fork())) {
      int fd = accept(lfd, NULL, NULL);
      CHECK(fd >= 0);
      echo_all(fd);
      close(fd);
      _exit(0);
    }
  for (int i = 0; i < 4; i++) EQ(exit_status(kid[i]), 0);
}
static void prefork_client(int fd) {
  (void)fd;
  pid_t kid[4];
  for (int i = 0; i < 4; i++)
    if (!(kid[i] = fork())) {
      int mine = dial();
      ask(mine, i, MIB, 16000);
      finish(mine);
      _exit(0);
    }
  for (int i = 0; i < 4; i++) EQ(exit_status(kid[i]), 0);
}

// 7.3: a server that polls before it reads waits for ever, and stray zero bytes arrive. Here
// nothing arrives before it was sent, and zero bytes that are sent are the program's.
static void first_server(int fd) {
  pid_t kid = fork();
  if (!kid) {
    CHECK(ready(fd, POLLIN, 20000) & POLLIN);
    char b[8];
    get(fd, b, 8);
    CHECK(!memcmp(b, "\0\0\0\0abcd", 8));
    put(fd, b, 8);
    echo_all(fd);
    _exit(0);
  }
  close(fd);
  EQ(exit_status(kid), 0);
}
static void first_client(int fd) {
  char b[8];
  EQ(ready(fd, POLLIN, 100), 0);
  FAILS(recv(fd, b, sizeof b, MSG_DONTWAIT), EAGAIN);
  put(fd, "\0\0\0\0abcd", 8);
  get(fd, b, 8);
  CHECK(!memcmp(b, "\0\0\0\0abcd", 8));
  ask(fd, 1, MIB, 9000);
  finish(fd);
}

// 7.4: a process that dies in the wrong moment blocks all others. Here children of both sides are
// killed while they send and receive on connections of their own, and while others attach.
static void killed_server(int lfd) {
  for (int i = 0; i < 12; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    pid_t kid = fork();
    if (!kid) {
      if (i % 2) echo_all(fd);
      static char b[50000];
      ssize_t k;
      while (i % 2 == 0 && (k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
      _exit(0);
    }
    close(fd);
    if (i % 2 == 0) {
      nap(10 + 7 * i);
      kill(kid, SIGKILL);
      EQ(exit_status(kid), 128 + SIGKILL);
    } else
      EQ(exit_status(kid), 0);
  }
}
static void killed_client(int fd) {
  (void)fd;
  static char b[30000];
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < 12; i++) {
    int mine = dial();
    if (i % 2) {
      ask(mine, i, MIB, 16000);
      finish(mine);
    } else  // until the other end is gone
      while (send(mine, b, sizeof b, 0) > 0 && recv(mine, b, sizeof b, 0) > 0) {}
    close(mine);
  }
}

// 7.5: whoever connects first is taken for the peer. Here several connect at a time, and each has
// its own connection.
static void strangers_server(int lfd) {
  int fd[4];
  for (int i = 0; i < 4; i++) CHECK((fd[i] = accept(lfd, NULL, NULL)) >= 0);
  for (int i = 0; i < 4; i++) {
    pid_t kid = fork();
    if (!kid) {
      echo_all(fd[i]);
      _exit(0);
    }
  }
  for (int i = 0; i < 4; i++) close(fd[i]);
  for (int i = 0; i < 4; i++) {
    int status;
    CHECK(wait(&status) > 0 && status == 0);
  }
}
static void *stranger(void *p) {
  int fd = dial();
  ask(fd, (intptr_t)p, MIB, 5000);
  finish(fd);
  close(fd);
  return NULL;
}
static void strangers_client(int fd) {
  (void)fd;
  pthread_t t[4];
  for (intptr_t i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, stranger, (void *)(i + 1)));
  for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

// 7.6: sockets that were made with flags are not covered.
static void flags_server(int lfd) {
  int fd = accept4(lfd, NULL, NULL, SOCK_CLOEXEC);
  CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC);
  pid_t kid = fork();
  if (!kid) {
    echo_all(fd);
    _exit(0);
  }
  close(fd);
  EQ(exit_status(kid), 0);
}
static void flags_client(int fd) {
  struct sockaddr_storage a;
  fd = socket(ctx.family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  CHECK(fd >= 0 && fcntl(fd, F_GETFD) == FD_CLOEXEC && fcntl(fd, F_GETFL) & O_NONBLOCK);
  socklen_t n = address(&a, ctx.port);
  CHECK(!connect(fd, (struct sockaddr *)&a, n) || errno == EINPROGRESS);
  CHECK(ready(fd, POLLOUT, 20000) & POLLOUT);
  nonblock(fd, 0);
  pid_t kid = fork();
  if (!kid) {
    ask(fd, 1, 2 * MIB, 16000);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  finish(fd);
}

// 7.7: nothing works across exec. Here a program tries names that do not exist, becomes another
// one, and that one starts a third; each has the connection.
static void exec_server(int fd) {
  echo_n(fd, MIB);
  pid_t kid = fork();
  if (!kid) {
    CHECK(dup2(fd, 0) == 0 && dup2(fd, 1) == 1);
    close(fd);
    // (A shell makes its children by vfork, and what one of those executes goes on by TCP alone.)
    char *args[] = {"sh", "-c", no_tcp() ? "exec cat" : "cat", NULL};
    FAILS(execv("/no/such/directory/sh", args), ENOENT);
    FAILS(execv("/etc/passwd", args), EACCES);
    echo_n(0, MIB);
    execvp("sh", args);
    _exit(9);
  }
  close(fd);
  EQ(exit_status(kid), 0);
}
static void exec_client(int fd) {
  ask(fd, 1, MIB, 9000);
  ask(fd, 2, MIB, 9000);
  ask(fd, 3, 2 * MIB, 9000);
  finish(fd);
}

// 7.8: parent and child share pages that the device reads. Here the child overwrites its copy of
// what the parent sends.
static void pages_client(int fd) {
  size_t n = 200000;
  char *b = malloc(n), *back = malloc(n);
  for (int i = 0; i < 20; i++) {
    fill(b, n, 1, i * n);
    pid_t kid = fork();
    if (!kid) {
      memset(b, 'x', n);
      memset(back, 'x', n);
      _exit(0);
    }
    for (size_t at = 0; at < n; at += 10000) {
      put(fd, b + at, 10000);
      get(fd, back + at, 10000);
    }
    verify(back, n, 1, i * n);
    EQ(exit_status(kid), 0);
  }
  finish(fd);
}

// -- other ways to start a program
static void daemon_server(int fd) {
  int p[2];
  char c;
  CHECK(!pipe(p));
  pid_t kid = fork();
  if (!kid) {
    CHECK(!daemon(1, 1));
    echo_all(fd);
    CHECK(write(p[1], "x", 1) == 1);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  close(fd);
  EQ(read(p[0], &c, 1), 1);
}
static void asking_client(int fd) {
  ask(fd, 1, 2 * MIB, 9000);
  finish(fd);
}
// daemon(3) puts the null device where the connection was: it is not the connection any more.
static void daemon_null_server(int fd) {
  int p[2];
  char c;
  CHECK(!pipe(p));
  echo_n(fd, MIB);
  pid_t kid = fork();
  if (!kid) {
    CHECK(dup2(fd, 0) == 0);
    close(fd);
    if (daemon(1, 0)) _exit(1);
    c = read(0, &c, 1) == 0 ? 'y' : 'n';
    CHECK(write(p[1], &c, 1) == 1);
    _exit(0);
  }
  close(fd);
  EQ(exit_status(kid), 0);
  EQ(read(p[0], &c, 1), 1);
  EQ(c, 'y');
}
static void daemon_null_client(int fd) {
  ask(fd, 1, MIB, 9000);
  get_eof(fd);
}

extern char **environ;
static void spawn_server(int fd) {
  echo_n(fd, MIB);
  posix_spawn_file_actions_t a;
  char *args[] = {"cat", NULL};
  pid_t kid;
  CHECK(!posix_spawn_file_actions_init(&a) && !posix_spawn_file_actions_adddup2(&a, fd, 0) &&
        !posix_spawn_file_actions_adddup2(&a, fd, 1) && !posix_spawn_file_actions_addclose(&a, fd));
  EQ(posix_spawnp(&kid, "cat", &a, NULL, args, environ), 0);
  close(fd);
  EQ(exit_status(kid), 0);
}
static void vfork_server(int fd) {
  echo_n(fd, MIB);
  char *args[] = {"cat", NULL};
  pid_t kid = vfork();
  if (!kid) {
    if (dup2(fd, 0) != 0 || dup2(fd, 1) != 1) _exit(8);
    close(fd);
    execvp("cat", args);
    _exit(9);
  }
  close(fd);
  EQ(exit_status(kid), 0);
}
static void two_parts_client(int fd) {
  ask(fd, 1, MIB, 9000);
  ask(fd, 2, 2 * MIB, 9000);
  finish(fd);
}
// A program whose standard output is the connection runs others.
static void system_server(int fd) {
  echo_n(fd, MIB);
  int out = dup(1);
  CHECK(out >= 0 && dup2(fd, 1) == 1);
  EQ(system("printf hello"), 0);
  FILE *f = popen("cat", "w");
  CHECK(f && fputs("world", f) > 0 && pclose(f) == 0);
  CHECK(dup2(out, 1) == 1);
  echo_all(fd);
}
static void system_client(int fd) {
  ask(fd, 1, MIB, 9000);
  char b[10];
  get(fd, b, 10);
  CHECK(!memcmp(b, "helloworld", 10));
  ask(fd, 2, MIB, 9000);
  finish(fd);
}

// A process lives as long as any of its threads, also where the one that it began with has left.
static void *remaining(void *p) {
  int fd = (int)(intptr_t)p;
  echo_all(fd);
  close(fd);
  return NULL;
}
static void first_thread_server(int fd) {
  echo_n(fd, MIB);
  pid_t kid = fork();
  if (!kid) {
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, remaining, (void *)(intptr_t)fd));
    pthread_exit(NULL);
  }
  nap(100);
  close(fd);
  tell('c');
  EQ(exit_status(kid), 0);
}
static void first_thread_client(int fd) {
  ask(fd, 1, MIB, 9000);
  hear('c');
  ask(fd, 2, 2 * MIB, 9000);
  finish(fd);
}

// More processes than anybody keeps a list of; the last two share the connection, and one of them
// closes it first.
static void hundreds_server(int fd) {
  enum { HUNDREDS = 300 };
  static pid_t kid[HUNDREDS];
  int alive[2], closed[2];
  char c;
  CHECK(!pipe(alive) && !pipe(closed));
  for (int i = 0; i < HUNDREDS; i++) {
    CHECK((kid[i] = fork()) >= 0);
    if (!kid[i]) {
      close(alive[1]);
      close(fd);
      EQ(read(alive[0], &c, 1), 0);
      _exit(0);
    }
  }
  echo_n(fd, MIB);
  pid_t last = fork();
  if (!last) {
    pid_t sharing = fork();
    if (!sharing) {
      EQ(read(closed[0], &c, 1), 1);
      echo_all(fd);
      close(fd);
      _exit(0);
    }
    echo_n(fd, MIB);
    close(fd);
    EQ(write(closed[1], "c", 1), 1);
    EQ(exit_status(sharing), 0);
    _exit(0);
  }
  close(fd);
  EQ(exit_status(last), 0);
  close(alive[1]);
  for (int i = 0; i < HUNDREDS; i++) EQ(exit_status(kid[i]), 0);
}
static void hundreds_client(int fd) {
  for (int i = 0; i < 3; i++) ask(fd, i, MIB, 9000);
  finish(fd);
}

static _Atomic int stop;
static void *forker(void *p) {
  (void)p;
  while (!stop) {
    pid_t kid = fork();
    CHECK(kid >= 0);
    if (!kid) _exit(0);
    EQ(exit_status(kid), 0);
  }
  return NULL;
}
// Threads that fork all the while do not disturb one that transfers.
static void threads_client(int fd) {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) CHECK(!pthread_create(&t[i], NULL, forker, NULL));
  ask(fd, 1, 2 * MIB, 16000);
  stop = 1;
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  finish(fd);
}

// -- a child's copy of its parent's epoll sets
static int set_of(int fd, uint32_t events) {
  struct epoll_event e = {.events = events, .data.u64 = 7};
  int ep = epoll_create1(0);
  CHECK(ep >= 0 && !epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  return ep;
}
static void only_7(int ep, int ms, uint32_t want) {
  struct epoll_event e;
  EQ(epoll_wait(ep, &e, 1, ms), 1);
  EQ(e.data.u64, 7);
  EQ(e.events & want, want);
}
// What the parent sleeps on is left alone by a child that closes all it has: event loops do so
// after a fork.
static void closes_server(int fd) {
  struct epoll_event e;
  int ep = set_of(fd, EPOLLIN);
  EQ(epoll_wait(ep, &e, 1, 50), 0);
  pid_t kid = fork();
  if (!kid) {
    close(fd);
    close(ep);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  tell('c');
  only_7(ep, patience(1000), EPOLLIN);
  echo_all(fd);
}
static void closes_client(int fd) {
  hear('c');
  nap(300);
  ask(fd, 1, 1, 1);
  finish(fd);
}
// The same before a sandbox, and what the parent's set gets afterwards.
static void sandboxed_server(int lfd) {
  struct epoll_event e = {.events = EPOLLIN, .data.u64 = 7};
  int first = accept(lfd, NULL, NULL);
  CHECK(first >= 0);
  echo_n(first, MIB);
  int ep = set_of(first, EPOLLIN);
  EQ(epoll_wait(ep, &e, 1, 50), 0);
  pid_t kid = fork();
  if (!kid) {
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog p = {1, &all};
    close(first);
    CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p));
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  int second = accept(lfd, NULL, NULL);
  CHECK(second >= 0);
  echo_n(second, MIB);
  e = (struct epoll_event){.events = EPOLLIN, .data.u64 = 7};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, second, &e));
  for (int i = 0; i < 2; i++) {
    tell('c');
    only_7(ep, patience(1000), EPOLLIN);
    echo_n(i ? first : second, 1);
  }
  echo_all(first);
  close(first);
  echo_all(second);
}
static void sandboxed_client(int fd) {
  (void)fd;
  int first = dial();
  ask(first, 1, MIB, 9000);
  int second = dial();
  ask(second, 2, MIB, 9000);
  for (int i = 0; i < 2; i++) {
    hear('c');
    nap(300);
    ask(i ? first : second, 1, 1, 1);
  }
  finish(first);
  finish(second);
}
// A child uses a connection that its parent sleeps on, for its end alone: the set stays as the
// parent made it.
static void child_uses_server(int fd) {
  int ep = set_of(fd, EPOLLRDHUP);
  pid_t kid = fork();
  if (!kid) {
    echo_all(fd);
    _exit(0);
  }
  only_7(ep, 20000, EPOLLRDHUP);
  EQ(exit_status(kid), 0);
}
static void child_uses_client(int fd) {
  nap(100);
  ask(fd, 1, 4 * MIB, 9000);
  finish(fd);
}
// A child goes on with the set where its parent was, as daemons do.
static void takes_over_server(int fd) {
  struct epoll_event e;
  int ep = set_of(fd, EPOLLIN);
  EQ(epoll_wait(ep, &e, 1, 50), 0);
  pid_t kid = fork();
  if (!kid) {
    for (;;) {
      char b[9000];
      only_7(ep, 20000, EPOLLIN);
      ssize_t k = recv(fd, b, sizeof b, 0);
      CHECK(k >= 0);
      if (!k) break;
      put(fd, b, k);
    }
    _exit(0);
  }
  close(fd);
  close(ep);
  tell('c');
  EQ(exit_status(kid), 0);
}
static void takes_over_client(int fd) {
  hear('c');
  for (int i = 0; i < 20; i++) {
    nap(10);
    ask(fd, i, 9000, 9000);
  }
  ask(fd, 1, 2 * MIB, 9000);
  for (int i = 0; i < 20; i++) {
    nap(10);
    ask(fd, i, 9000, 9000);
  }
  finish(fd);
}
// Parent and child each have an event loop; the child's has nothing to do with what the parent's
// sleeps on, though it has inherited it.
static void own_loop(int ep, int fd) {
  for (;;) {
    char c;
    only_7(ep, 20000, EPOLLIN);
    ssize_t k = recv(fd, &c, 1, 0);
    CHECK(k >= 0);
    if (!k) return;
    put(fd, &c, 1);
  }
}
static void two_loops_server(int lfd) {
  int first = accept(lfd, NULL, NULL);
  CHECK(first >= 0);
  echo_n(first, MIB);
  int ep = set_of(first, EPOLLIN);
  pid_t kid = fork();
  if (!kid) {
    int second = accept(lfd, NULL, NULL);
    CHECK(second >= 0);
    echo_n(second, MIB);
    own_loop(set_of(second, EPOLLIN), second);
    _exit(0);
  }
  own_loop(ep, first);
  EQ(exit_status(kid), 0);
}
static _Atomic int rounds_done;
static void *busy(void *p) {
  (void)p;
  int fd = dial();
  ask(fd, 2, MIB, 9000);
  while (!rounds_done) ask(fd, 2, 100, 1);
  finish(fd);
  return NULL;
}
static void two_loops_client(int fd) {
  pthread_t t;
  uint64_t seed = 5;
  fd = dial();
  ask(fd, 1, MIB, 9000);
  CHECK(!pthread_create(&t, NULL, busy, NULL));
  for (int i = 0; i < often(3000); i++) {
    char c = (char)i;
    usleep(rnd(&seed) % 400);
    put(fd, &c, 1);
    if (!ready(fd, POLLIN, 1000)) FAIL("no answer in round %d", i);
    get(fd, &c, 1);
    EQ(c, (char)i);
  }
  rounds_done = 1;
  pthread_join(t, NULL);
  finish(fd);
}

// Parent and child each have a set of their own with the same connection: both hear of what comes,
// whoever is first.
static void both_hear_server(int fd) {
  int up[2], down[2];
  char c;
  CHECK(!pipe(up) && !pipe(down));
  pid_t kid = fork();
  int ep = set_of(fd, EPOLLIN);
  if (!kid) {
    for (int i = 0; i < 10; i++) {
      only_7(ep, patience(2000), EPOLLIN);
      EQ(write(up[1], "h", 1), 1);
      EQ(read(down[0], &c, 1), 1);
    }
    _exit(0);
  }
  close(up[1]);
  for (int i = 0; i < 10; i++) {
    only_7(ep, patience(2000), EPOLLIN);
    EQ(read(up[0], &c, 1), 1);
    get(fd, &c, 1);
    EQ(write(down[1], "r", 1), 1);
    put(fd, &c, 1);
  }
  EQ(exit_status(kid), 0);
  echo_all(fd);
}
// The same, half an exchange later: the connection leaves TCP while one of them has nothing to do
// with that.
static void both_hear_later_server(int fd) {
  char c;
  get(fd, &c, 1);
  both_hear_server(fd);
}
static void both_hear_client(int fd) {
  for (int i = 0; i < 10; i++) {
    nap(100);
    ask(fd, i, 1, 1);
  }
  finish(fd);
}

static void both_hear_later_client(int fd) {
  put(fd, "o", 1);
  both_hear_client(fd);
}

// A child that was made past libc (as vsftpd makes its sessions) closes the connection; what has
// its number then is what it is.
static void past_libc_server(int fd) {
  int spare = open("/dev/null", O_RDONLY);
  while (spare >= 0 && spare < fd) spare = open("/dev/null", O_RDONLY);
  pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  CHECK(child >= 0);
  if (child == 0) {
    char b[16] = "zeros expected";
    close(fd);
    EQ(open("/dev/zero", O_RDONLY), fd);
    EQ(read(fd, b, sizeof b), sizeof b);
    for (unsigned i = 0; i < sizeof b; i++) EQ(b[i], 0);
    close(fd);
    EQ(socket(AF_INET, SOCK_DGRAM, 0), fd);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    socklen_t n = sizeof at;
    CHECK(!bind(fd, (struct sockaddr *)&at, n) && !getsockname(fd, (struct sockaddr *)&at, &n));
    EQ(sendto(fd, "x", 1, 0, (struct sockaddr *)&at, sizeof at), 1);
    n = sizeof from;
    EQ(recvfrom(fd, b, sizeof b, 0, (struct sockaddr *)&from, &n), 1);
    EQ(n, sizeof from);
    EQ(from.sin_port, at.sin_port);
    _exit(0);
  }
  int status = -1;
  EQ(waitpid(child, &status, 0), child);
  EQ(status, 0);
  echo_all(fd);
}
static void past_libc_client(int fd) {
  ask(fd, 3, 200000, 5000);
  finish(fd);
}
const test_case CASES[] = {
    {"gap_7_1_a_child_uses_the_connection", child_server, child_client, 0},
    {"gap_7_2_workers_accept_and_connect", prefork_server, prefork_client, RAW},
    {"gap_7_3_who_speaks_first", first_server, first_client, 0},
    {"gap_7_4_killed_in_the_wrong_moment", killed_server, killed_client, RAW},
    {"gap_7_5_whoever_connects_first", strangers_server, strangers_client, RAW},
    {"gap_7_6_made_with_flags", flags_server, flags_client, RAW},
    {"gap_7_7_across_exec", exec_server, exec_client, 0},
    {"gap_7_8_shared_pages", echo_role, pages_client, 0},
    {"daemon", daemon_server, asking_client, 0},
    {"daemon_and_the_null_device", daemon_null_server, daemon_null_client, 0},
    {"posix_spawn", spawn_server, two_parts_client, NOSHM},
    {"vfork", vfork_server, two_parts_client, NOSHM},
    {"system_and_popen", system_server, system_client, NOSHM},
    {"the_first_thread_leaves", first_thread_server, first_thread_client, 0},
    {"hundreds_of_processes", hundreds_server, hundreds_client, 0},
    {"a_child_made_past_libc", past_libc_server, past_libc_client, 0},
    {"threads_that_fork", echo_role, threads_client, 0},
    {"a_child_closes_its_parents_set", closes_server, closes_client, 0},
    {"a_sandboxed_child_and_its_parents_set", sandboxed_server, sandboxed_client, RAW},
    {"a_child_uses_what_its_parent_sleeps_on", child_uses_server, child_uses_client, 0},
    {"a_child_takes_over_a_set", takes_over_server, takes_over_client, 0},
    {"parent_and_child_have_loops", two_loops_server, two_loops_client, RAW},
    {"parent_and_child_hear_of_one", both_hear_server, both_hear_client, 0},
    {"parent_and_child_hear_of_one_later", both_hear_later_server, both_hear_later_client, 0},
    {0},
};
