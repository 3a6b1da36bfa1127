// What the clients of other programs' servers share: connections, whole sends, and how long answers
// took.
#ifndef ASKS_H
#define ASKS_H
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

// A connection, what of its answer has come, and when it asked.
typedef struct {
  int fd;
  size_t got;
  uint64_t began;
} asking;

static inline int to_port(int port) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port)};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || connect(fd, (const void *)&a, sizeof a)) return -1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  return fd;
}
static inline int all_sent(int fd, const char *b, size_t n) {
  for (size_t done = 0; done < n;) {
    ssize_t k = send(fd, b + done, n - done, MSG_NOSIGNAL);
    if (k <= 0) return 0;
    done += k;
  }
  return 1;
}
// All times, in nanoseconds.
typedef struct {
  uint32_t *ns;
  size_t number, room;
} times;
static inline void took(times *t, uint64_t ns) {
  if (t->number == t->room) {
    t->room = t->room ? t->room * 2 : 1 << 16;
    t->ns = realloc(t->ns, t->room * sizeof *t->ns);
    if (!t->ns) abort();
  }
  t->ns[t->number++] = ns < UINT32_MAX ? ns : UINT32_MAX;
}
static inline int by_time(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
// So many things in so many nanoseconds, and the percentiles.
static inline void told(times *t, uint64_t things, uint64_t in) {
  qsort(t->ns, t->number, sizeof *t->ns, by_time);
  uint32_t p50 = t->ns[t->number / 2], p99 = t->ns[t->number * 99 / 100];
  printf("rate %.1f p50 %u p99 %u\n", things * 1e9 / in, p50, p99);
}
#endif
