// Datagrams between two hosts, for datagrams.sh: a server that sends everything back, and a client
// that asks.
//
//   datagrams serve ADDRESS PORT
//       until an empty datagram comes
//   datagrams rsocket|plain ADDRESS PORT
//       asks by an rsocket, or by a socket of the kernel's; prints what was seen
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#define CHECK(e) \
  do { \
    if (!(e)) printf("line %d: %s: %s\n", __LINE__, #e, strerror(errno)), exit(1); \
  } while (0)

enum { MOST = 2032, TRIES = 30 };
static unsigned char out[8192], in[8192];
static struct sockaddr_in to;

static void fill(int n, int seed) {
  for (int i = 0; i < n; i++) out[i] = (unsigned char)(i * 7 + seed);
}

static void serve(void) {
  int fd = rsocket(AF_INET, SOCK_DGRAM, 0);
  CHECK(fd >= 0 && rbind(fd, (struct sockaddr *)&to, sizeof to) == 0);
  for (;;) {
    struct sockaddr_in from;
    socklen_t len = sizeof from;
    ssize_t n = rrecvfrom(fd, in, sizeof in, 0, (struct sockaddr *)&from, &len);
    CHECK(n >= 0 && len == sizeof from);
    CHECK(rsendto(fd, in, n, 0, (struct sockaddr *)&from, len) == n);
    if (n == 0) return;
  }
}

// What comes back: datagrams may get lost, and what was asked again may be answered twice. The
// first byte is the question's.
static ssize_t ask(int fd, int n, int seed, void *into, size_t room, int flags) {
  for (int i = 0; i < TRIES; i++) {
    fill(n, seed);
    CHECK(rsend(fd, out, n, 0) == n);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    while (rpoll(&p, 1, 2000) == 1) {
      unsigned char first;
      CHECK(rrecv(fd, &first, 1, MSG_PEEK) == 1);
      if (first == out[0]) return rrecv(fd, into, room, flags);
      CHECK(rrecv(fd, in, sizeof in, 0) > 0);
    }
  }
  CHECK(!"an answer");
  return -1;
}

static void by_rsocket(void) {
  int fd = rsocket(AF_INET, SOCK_DGRAM, 0), set = repoll_create(0);
  CHECK(fd >= 0 && set >= 0 && rconnect(fd, (struct sockaddr *)&to, sizeof to) == 0);
  const int sizes[] = {1, 16, 500, 1000, 1016, 1017, 1500, MOST - 1, MOST};
  int seed = 0;
  for (int round = 0; round < 10; round++)
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
      CHECK(ask(fd, sizes[i], ++seed, in, sizeof in, 0) == sizes[i]);
      CHECK(memcmp(in, out, sizes[i]) == 0);
    }
  printf("sizes\n");
  for (int n = MOST + 1; n < (int)sizeof out; n += 997) {
    CHECK(rsend(fd, out, n, 0) == -1 && errno == EMSGSIZE);
    CHECK(rsendto(fd, out, n, 0, (struct sockaddr *)&to, sizeof to) == -1 && errno == EMSGSIZE);
  }
  printf("too long\n");
  for (int i = 0; i < 10; i++) {
    int n = i % 2 ? 900 : 1900;
    memset(in, 0, sizeof in);
    CHECK(ask(fd, n, ++seed, in, 100, i < 5 ? MSG_TRUNC : 0) == (i < 5 ? n : 100));
    CHECK(memcmp(in, out, 100) == 0 && in[100] == 0);
  }
  printf("cut\n");
  struct epoll_event e = {.events = EPOLLIN, .data.fd = fd}, got;
  CHECK(repoll_ctl(set, EPOLL_CTL_ADD, fd, &e) == 0);
  for (int i = 0; i < 10; i++) {
    struct sockaddr_in from = {0};
    socklen_t len = sizeof from;
    // What is late is not for this round.
    while (rrecv(fd, in, sizeof in, MSG_DONTWAIT) >= 0) {}
    int tries = 0;
    do {
      CHECK(++tries < TRIES && rsend(fd, "wake me", 7, 0) == 7);
    } while (repoll_wait(set, &got, 1, 2000) != 1);
    CHECK(got.data.fd == fd && got.events == EPOLLIN);
    CHECK(rrecvfrom(fd, in, sizeof in, 0, (struct sockaddr *)&from, &len) > 0);
    CHECK(from.sin_port == to.sin_port && from.sin_addr.s_addr == to.sin_addr.s_addr);
  }
  printf("repoll\n");
  CHECK(rclose(fd) == 0);
}

// The answer to what has no header has none; and the server goes on with rsockets beside.
static void plain(void) {
  int fd = socket(AF_INET, SOCK_DGRAM, 0), last = getenv("LAST") != NULL;
  struct timeval limit = {2, 0};
  CHECK(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof to) == 0);
  CHECK(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) == 0);
  for (int i = 1; i <= 20; i++) {
    ssize_t n = -1;
    fill(i * 90, i);
    for (int k = 0; k < TRIES && n != i * 90; k++) {
      CHECK(send(fd, out, i * 90, 0) == i * 90);
      n = recv(fd, in, sizeof in, 0);
    }
    CHECK(n == i * 90 && memcmp(in, out, n) == 0);
  }
  for (int k = 0; last && k < TRIES && recv(fd, in, sizeof in, MSG_DONTWAIT) != 0; k++) {
    CHECK(send(fd, "", 0, 0) == 0 || errno == ECONNREFUSED);
    struct pollfd p = {.fd = fd, .events = POLLIN};
    poll(&p, 1, 1000);
  }
  printf("plain\n");
}

int main(int argc, char **argv) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  CHECK(argc == 4);
  to.sin_family = AF_INET;
  to.sin_port = htons(atoi(argv[3]));
  CHECK(inet_pton(AF_INET, argv[2], &to.sin_addr) == 1);
  if (strcmp(argv[1], "serve") == 0) serve();
  else if (strcmp(argv[1], "rsocket") == 0) by_rsocket();
  else plain();
  return 0;
}
