// An rsocket whose peer's host is about to lose power: a caller that waits on it, in whatever way,
// must hear of it in time.
//
//   keepalive serve ADDRESS PORT
//   keepalive HOW ADDRESS PORT IDLE INTERVAL COUNT [USER_TIMEOUT]
//
// HOW is read, write, poll, set, accepted. Says "warm" when the connection stands, and when it has
// ended "ERRNO-NAME SECONDS", the seconds since the machine was started. `accepted` serves one
// connection of a `call` on the other host, so that its own end is one that was accepted.
#define _GNU_SOURCE
#include <rdma/rsocket.h>

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void need(int ok, const char *what) {
  if (ok) return;
  printf("%s: %s\n", what, strerror(errno));
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_BOOTTIME, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

static void set(int fd, int level, int name, int value) {
  need(rsetsockopt(fd, level, name, &value, sizeof value) == 0, "rsetsockopt");
}

static int listen_at(struct sockaddr_in *a) {
  int l = rsocket(AF_INET, SOCK_STREAM, 0);
  need(l >= 0 && rbind(l, (struct sockaddr *)a, sizeof *a) == 0 && rlisten(l, 20) == 0, "listening");
  return l;
}

// Answers the first byte, then reads until there is no more; a writer's bytes are left alone, so
// that it blocks.
static void *serve_one(void *arg) {
  int fd = (int)(long)arg;
  char c;
  if (rread(fd, &c, 1) != 1) return NULL;
  rwrite(fd, &c, 1);
  if (c == 'w') pause();
  while (rread(fd, &c, 1) > 0) {
  }
  rclose(fd);
  return NULL;
}

int main(int argc, char **argv) {
  struct sockaddr_in a;
  char c = 'x', buf[65536];
  pthread_t thread;
  int fd;

  if (argc < 4) return 2;
  setvbuf(stdout, NULL, _IOLBF, 0);
  memset(&a, 0, sizeof a);
  memset(buf, 'w', sizeof buf);
  a.sin_family = AF_INET;
  inet_pton(AF_INET, argv[2], &a.sin_addr);
  a.sin_port = htons(atoi(argv[3]));
  const char *how = argv[1];
  if (strcmp(how, "serve") == 0) {
    int l = listen_at(&a);
    for (;;) {
      fd = raccept(l, NULL, NULL);
      need(fd >= 0, "raccept");
      pthread_create(&thread, NULL, serve_one, (void *)(long)fd);
    }
  }
  if (strcmp(how, "call") == 0) {
    fd = rsocket(AF_INET, SOCK_STREAM, 0);
    need(rconnect(fd, (struct sockaddr *)&a, sizeof a) == 0, "rconnect");
    need(rwrite(fd, &c, 1) == 1, "rwrite");
    pause();
  }
  if (argc < 7) return 2;
  int accepts = strcmp(how, "accepted") == 0, writes = strcmp(how, "write") == 0;
  fd = accepts ? listen_at(&a) : rsocket(AF_INET, SOCK_STREAM, 0);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, atoi(argv[4]));
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, atoi(argv[5]));
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, atoi(argv[6]));
  if (argc > 7) set(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, atoi(argv[7]));
  if (accepts) {
    // The listener's options are the connection's.
    printf("listens\n");
    int l = fd;
    fd = raccept(l, NULL, NULL);
    need(fd >= 0, "raccept");
  } else {
    need(rconnect(fd, (struct sockaddr *)&a, sizeof a) == 0, "rconnect");
    c = writes ? 'w' : 'r';
    need(rwrite(fd, &c, 1) == 1, "rwrite");
  }
  need(rread(fd, &c, 1) == 1, "rread");
  printf("warm\n");

  ssize_t n = 0;
  if (writes) {
    while ((n = rsend(fd, buf, sizeof buf, MSG_NOSIGNAL)) > 0) {
    }
  } else if (strcmp(how, "poll") == 0) {
    struct pollfd p = {fd, POLLIN, 0};
    n = rpoll(&p, 1, -1);
    need(n == 1 && p.revents & (POLLERR | POLLHUP), "rpoll");
  } else if (strcmp(how, "set") == 0) {
    int s = repoll_create(0);
    struct epoll_event e = {.events = EPOLLIN | EPOLLET};
    need(repoll_ctl(s, EPOLL_CTL_ADD, fd, &e) == 0, "repoll_ctl");
    n = repoll_wait(s, &e, 1, -1);
    need(n == 1 && e.events & (EPOLLERR | EPOLLHUP), "repoll_wait");
  } else {
    n = rread(fd, &c, 1);
  }
  int e = errno;
  double at = now();
  if (n >= 0) {
    // Woken: now the error, which is said once.
    socklen_t len = sizeof e;
    need(rgetsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) == 0, "SO_ERROR");
  }
  // The next caller finds that there is no more.
  need(rread(fd, &c, 1) <= 0, "rread afterwards");
  printf("%s %.1f\n", e == ETIMEDOUT ? "ETIMEDOUT" : strerror(e), at);
  return 0;
}
