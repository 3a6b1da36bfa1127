// One end asks, the other sends back what it gets.
#ifndef ASK_H
#define ASK_H
#include "sem.h"

enum { MIB = 1 << 20 };

static inline void echo_n(int fd, uint64_t n) {
  static __thread char b[50000];
  for (uint64_t at = 0; at < n;) {
    ssize_t k = recv(fd, b, n - at < sizeof b ? n - at : sizeof b, 0);
    CHECK(k > 0);
    put(fd, b, k);
    at += k;
  }
}
static inline void echo_all(int fd) {
  static __thread char b[50000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
static inline void echo_role(int fd) { echo_all(fd); }
static inline void ask(int fd, uint64_t seed, uint64_t n, size_t piece) {
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
static inline void finish(int fd) {
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}
#endif
