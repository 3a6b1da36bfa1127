// TCP_SAVE_SYN and TCP_SAVED_SYN: the library uses them too, where connections of several network
// namespaces may meet. A program sees of that nothing, and of its own use all.
#include "pair.h"

#ifndef TCP_SAVE_SYN
#define TCP_SAVE_SYN 27
#define TCP_SAVED_SYN 28
#endif

static int number(int fd, int name) {
  int v = 77;
  socklen_t l = sizeof v;
  CHECK(!getsockopt(fd, IPPROTO_TCP, name, &v, &l));
  EQ(l, sizeof v);
  return v;
}
static void save(int fd, int v) { CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_SAVE_SYN, &v, sizeof v)); }
// Bytes of the SYN that was kept.
static int kept(int fd) {
  char b[256];
  socklen_t l = sizeof b;
  memset(b, 0, sizeof b);
  CHECK(!getsockopt(fd, IPPROTO_TCP, TCP_SAVED_SYN, b, &l));
  CHECK(l == 0 || b[0] >> 4 == 4 || (b[0] >> 4 & 15) == 6);
  return (int)l;
}

static int bound(void) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, 0);
  int fd = socket(ctx.family, SOCK_STREAM, 0);
  CHECK(fd >= 0 && !bind(fd, (void *)&a, n));
  return fd;
}
// s[0] dials, s[1] is accepted.
static void meet(int l, int s[2]) {
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  CHECK(!getsockname(l, (void *)&a, &n));
  s[0] = socket(ctx.family, SOCK_STREAM, 0);
  CHECK(!connect(s[0], (void *)&a, n));
  s[1] = accept(l, NULL, NULL);
  CHECK(s[1] >= 0);
}
static void part(int s[2]) { close(s[0]), close(s[1]); }
static void speak(int s[2]) {
  static char b[65536];
  for (int i = 0; i < 8; i++) put(s[i & 1], b, sizeof b), get(s[~i & 1], b, sizeof b);
}

// A listener that never asked for SYNs has none.
static void unasked(int lfd) {
  int s[2], l = bound();
  (void)lfd;
  EQ(number(l, TCP_SAVE_SYN), 0);
  CHECK(!listen(l, 4));
  EQ(number(l, TCP_SAVE_SYN), 0);
  EQ(kept(l), 0);
  for (int i = 0; i < 2; i++) {
    meet(l, s);
    if (i) speak(s);
    EQ(number(s[0], TCP_SAVE_SYN), 0);
    EQ(number(s[1], TCP_SAVE_SYN), 0);
    EQ(kept(s[0]), 0);
    EQ(kept(s[1]), 0);
    EQ(number(s[1], TCP_SAVE_SYN), 0);
    part(s);
  }
  // As much of the number as there is room for; a bad pointer and a bad length are said to be.
  char b[4] = {9, 9, 9, 9};
  socklen_t n = 1;
  CHECK(!getsockopt(l, IPPROTO_TCP, TCP_SAVE_SYN, b, &n));
  EQ(n, 1);
  CHECK(b[0] == 0 && b[1] == 9);
  n = 4;
  FAILS(getsockopt(l, IPPROTO_TCP, TCP_SAVE_SYN, (void *)16, &n), EFAULT);
  FAILS(getsockopt(l, IPPROTO_TCP, TCP_SAVE_SYN, b, (void *)16), EFAULT);
  n = (socklen_t)-1;
  FAILS(getsockopt(l, IPPROTO_TCP, TCP_SAVE_SYN, b, &n), EINVAL);
  close(l);
}

// A listener that asked has each of them, once, whatever became of the connection meanwhile.
static void asked(int lfd) {
  int s[2], l = bound();
  (void)lfd;
  save(l, 1);
  CHECK(!listen(l, 4));
  EQ(number(l, TCP_SAVE_SYN), 1);
  for (int i = 0; i < 2; i++) {
    meet(l, s);
    if (i) speak(s);
    EQ(number(s[1], TCP_SAVE_SYN), 1);
    CHECK(kept(s[1]) >= 60);
    EQ(kept(s[1]), 0);
    part(s);
  }
  close(l);
}

// What is asked later holds from then on.
static void asked_later(int lfd) {
  int s[2], l = bound(), v = 3;
  (void)lfd;
  CHECK(!listen(l, 4));
  FAILS(setsockopt(l, IPPROTO_TCP, TCP_SAVE_SYN, &v, sizeof v), EINVAL);
  EQ(number(l, TCP_SAVE_SYN), 0);
  meet(l, s);
  EQ(kept(s[1]), 0);
  part(s);
  save(l, 1);
  EQ(number(l, TCP_SAVE_SYN), 1);
  meet(l, s);
  speak(s);
  CHECK(kept(s[1]) >= 60);
  part(s);
  save(l, 0);
  EQ(number(l, TCP_SAVE_SYN), 0);
  CHECK(!listen(l, 8));
  EQ(number(l, TCP_SAVE_SYN), 0);
  meet(l, s);
  speak(s);
  EQ(kept(s[1]), 0);
  part(s);
  save(l, 1);
  meet(l, s);
  save(s[1], 0);
  EQ(number(s[1], TCP_SAVE_SYN), 0);
  part(s);
  close(l);
}
const test_case CASES[] = {
    {"unasked", unasked, NULL, SOLO},
    {"asked", asked, NULL, SOLO},
    {"asked_later", asked_later, NULL, SOLO},
    {0},
};
