// What upstream's library does wrong with fork, row by row of section 7 of the list of its gaps
// (gap_7_N).
#include "ask.h"

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

// 7.5: the client that connects first is taken for the peer. Here several connect at a time, and
// each has its own connection.
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

const test_case CASES[] = {
    {"gap_7_1_a_child_uses_the_connection", child_server, child_client, 0},
    {"gap_7_2_workers_accept_and_connect", prefork_server, prefork_client, RAW},
    {"gap_7_3_who_speaks_first", first_server, first_client, 0},
    {"gap_7_4_killed_in_the_wrong_moment", killed_server, killed_client, RAW},
    {"gap_7_5_whoever_connects_first", strangers_server, strangers_client, RAW},
    {"gap_7_6_made_with_flags", flags_server, flags_client, RAW},
    {"gap_7_7_across_exec", exec_server, exec_client, 0},
    {"gap_7_8_shared_pages", echo_role, pages_client, 0},
    {0},
};
