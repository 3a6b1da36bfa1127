// A server that gives its work away in messages. `mail PORT connections PROGRAM` accepts, and
// passes each connection to one of three workers (`PROGRAM worker connections`) over a UNIX socket,
// in turns. With MAIL_BLOCKS in its environment it does so after it has read one byte N and echoed
// 64 KiB N times, as inherit.c does. `mail PORT listener PROGRAM` passes the listening socket to
// them, and they accept. A worker serves each connection in a child of its own, which echoes. Ends
// when it is told to (SIGTERM).
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WORKERS = 3 };

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void echo(int fd, long most) {
  static char b[65536];
  while (most) {
    ssize_t n = read(fd, b, most > 0 && most < (long)sizeof b ? (size_t)most : sizeof b);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) die("read");
    if (n == 0) break;
    if (most > 0) most -= n;
    for (ssize_t at = 0; at < n;) {
      ssize_t k = write(fd, b + at, n - at);
      if (k <= 0) die("write");
      at += k;
    }
  }
}

static void end(int sig) {
  (void)sig;
  exit(0);
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
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  if (sendmsg(via, &m, 0) != 1) die("sendmsg");
}

// -1 at the end.
static int taken(int via) {
  char c;
  union {
    char b[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } u;
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.b, .msg_controllen = sizeof u.b};
  ssize_t n = recvmsg(via, &m, MSG_CMSG_CLOEXEC);
  if (n == 0) return -1;
  int fd;
  if (n != 1 || !CMSG_FIRSTHDR(&m)) die("recvmsg");
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  return fd;
}

static void serve(int fd) {
  pid_t p = fork();
  if (p < 0) die("fork");
  if (!p) {
    echo(fd, -1);
    exit(0);  // not _exit: the statistics are written
  }
  close(fd);
}

// On descriptor 0 come the messages.
static int worker(int listening) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  signal(SIGCHLD, SIG_IGN);
  int fd = taken(0);
  for (; fd >= 0; fd = listening ? fd : taken(0)) {
    if (!listening) serve(fd);
    else {
      int c = accept(fd, NULL, NULL);
      if (c >= 0) serve(c);
      else if (errno != EINTR && errno != ECONNABORTED) die("accept");
    }
  }
  // The parent's death says so by a signal as well, whose exit() would wait for this one.
  signal(SIGTERM, SIG_IGN);
  return 0;
}

int main(int argc, char **argv) {
  signal(SIGTERM, end);
  if (argc == 3 && !strcmp(argv[1], "worker")) return worker(!strcmp(argv[2], "listener"));
  if (argc != 4) return 2;
  int listening = !strcmp(argv[2], "listener");
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int on = 1, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), via[WORKERS];
  if (l < 0 || setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(l, (struct sockaddr *)&a, sizeof a)) die("bind");
  for (int i = 0; i < WORKERS; i++) {
    int s[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s)) die("socketpair");
    pid_t p = fork();
    if (p < 0) die("fork");
    if (!p) {
      dup2(s[1], 0);
      execl(argv[3], argv[3], "worker", argv[2], (char *)0);
      die(argv[3]);
    }
    close(s[1]);
    via[i] = s[0];
  }
  if (listen(l, 64)) die("listen");
  if (listening) {
    for (int i = 0; i < WORKERS; i++) pass(via[i], l);
    close(l);
    for (;;) pause();
  }
  signal(SIGCHLD, SIG_IGN);
  for (int turn = 0;; turn++) {
    int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      die("accept");
    }
    // A connection that talks first must not hold up the others.
    pid_t p = getenv("MAIL_BLOCKS") ? fork() : -1;
    if (p > 0) close(fd);
    if (p > 0) continue;
    if (p == 0) {
      unsigned char n;
      if (read(fd, &n, 1) != 1) exit(1);
      echo(fd, 65536L * n);
    }
    pass(via[turn % WORKERS], fd);
    close(fd);
    if (p == 0) exit(0);
  }
}
