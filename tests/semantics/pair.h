// Both ends of one connection in one process, for cases that need no second one (SOLO).
#ifndef PAIR_H
#define PAIR_H
#include "sem.h"

// s[0] dialled, s[1] was accepted; so much has gone to and fro that the connection has had reason
// to leave TCP, if it is to.
static inline void two(int lfd, int s[2]) {
  static char b[4096], c[4096];
  s[0] = dial();
  s[1] = accept(lfd, NULL, NULL);
  CHECK(s[0] >= 0 && s[1] >= 0);
  settle(s[0], s[1]);
  for (int i = 0; ctx.warm && i < 60; i++) {
    fill(b, sizeof b, 9, i * sizeof b);
    put(s[i & 1], b, sizeof b);
    get(s[~i & 1], c, sizeof c);
    verify(c, sizeof c, 9, i * sizeof c);
  }
}
// The peer's end is seen a moment after it was made.
static inline void until(int fd, short events, short wanted) {
  double end = now() + 10;
  struct pollfd p = {fd, events, 0};
  do {
    // A signal that the case provokes may come right here.
    int n = poll(&p, 1, 100);
    CHECK(n >= 0 || errno == EINTR);
    if (n >= 0 && p.revents == wanted) return;
    nap(1);
  } while (now() < end);
  FAIL("revents are %#x, not %#x", p.revents, wanted);
}
#endif
