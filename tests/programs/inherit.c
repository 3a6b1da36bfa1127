// A server that gives each connection to a child; it listens at $ADDRESS, else on the loopback.
// `inherit PORT echo` echoes there itself. `inherit PORT exec PROGRAM ARG...` makes the connection
// the program's standard input and output, as inetd does. Before that it has read one byte N and,
// when N is not 0, echoed 64 KiB N times. So the connection is wherever such connections go. It
// prints its port when it listens, and ends when it is told to (SIGTERM).
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void put(int fd, const char *b, ssize_t n) {
  while (n > 0) {
    ssize_t k = write(fd, b, n);
    if (k < 0 && errno == EINTR) continue;
    if (k <= 0) die("write");
    b += k, n -= k;
  }
}

static void echo(int fd, long most) {
  static char b[65536];
  while (most) {
    ssize_t n = read(fd, b, most > 0 && most < (long)sizeof b ? (size_t)most : sizeof b);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) die("read");
    if (n == 0) break;
    put(fd, b, n);
    if (most > 0) most -= n;
  }
}

static void end(int sig) {
  (void)sig;
  exit(0);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  if (getenv("ADDRESS") && inet_pton(AF_INET, getenv("ADDRESS"), &a.sin_addr) != 1) return 2;
  int on = 1, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (l < 0 || setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) || bind(l, (struct sockaddr *)&a, sizeof a) ||
      listen(l, 64))
    die("listen");
  signal(SIGCHLD, SIG_IGN);
  signal(SIGTERM, end);
  for (;;) {
    int fd = accept(l, NULL, NULL);
    if (fd < 0) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      die("accept");
    }
    pid_t p = fork();
    if (p < 0) die("fork");
    if (p) {
      close(fd);
      continue;
    }
    signal(SIGCHLD, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (!strcmp(argv[2], "echo")) {
      close(l);
      echo(fd, -1);
      exit(0);  // not _exit: the statistics are written
    }
    unsigned char n;
    if (read(fd, &n, 1) != 1) exit(1);
    echo(fd, 65536L * n);
    dup2(fd, 0);
    dup2(fd, 1);
    close(fd);
    execvp(argv[3], argv + 3);
    die(argv[3]);
  }
}
