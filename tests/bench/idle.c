// Many idle connections and a busy one on one epoll object.
//
//   idle [NUMBER [ROUNDS [FEW]]]: prints "p50 NS p99 NS kib N mapped N growth N".
//
// p50 and p99 are of round trips of the busy one. kib is the resident memory of both ends for each
// idle connection, what there is of it. mapped is what that memory seems to be when a page that
// both have mapped counts twice. growth, with FEW, is how many times as long a round trip is as
// beside FEW idle ones (0 without). A machine's speed changes from second to second, so the two
// take turns of milliseconds, each in processes of its own. A cache line's way from core to core
// may depend on which page it is in, so each turn has another busy connection. The median of the
// turns' ratios is told.
//
// A child serves by epoll on core 1. Its parent connects, exchanges 64 bytes on each connection,
// and then asks on the last one, spinning, on core 0.
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64, TOGETHER = 10, TURNS = 50, BUSY = 10 };

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
static int by_size(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}
// Resident memory of two processes in KiB. Of each its share ("Pss": a page is divided by the
// number of processes that have it), and all that it has mapped ("Rss").
typedef struct {
  double share, mapped;
} memory;
static memory resident(pid_t a, pid_t b) {
  memory sum = {0, 0};
  for (int i = 0; i < 2; i++) {
    char name[64], line[256];
    unsigned long kib;
    snprintf(name, sizeof name, "/proc/%d/smaps_rollup", i ? a : b);
    FILE *f = fopen(name, "r");
    while (f && fgets(line, sizeof line, f)) {
      if (sscanf(line, "Pss: %lu", &kib) == 1) sum.share += kib;
      if (sscanf(line, "Rss: %lu", &kib) == 1) sum.mapped += kib;
    }
    if (f) fclose(f);
  }
  return sum;
}
static int serve(int l) {
  int e = epoll_create1(0), one = 1;
  struct epoll_event ev = {.events = EPOLLIN, .data.fd = l}, ready[64];
  epoll_ctl(e, EPOLL_CTL_ADD, l, &ev);
  for (;;) {
    int n = epoll_wait(e, ready, 64, -1);
    for (int i = 0; i < n; i++) {
      char b[SIZE];
      int fd = ready[i].data.fd;
      if (fd == l) {
        if ((fd = accept(l, NULL, NULL)) < 0) return 3;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        ev.data.fd = fd;
        if (epoll_ctl(e, EPOLL_CTL_ADD, fd, &ev)) return 4;
        continue;
      }
      ssize_t k = recv(fd, b, SIZE, MSG_DONTWAIT);
      if (k == 0) return 0;
      if (k > 0 && send(fd, b, k, MSG_NOSIGNAL) != k) return 5;
    }
  }
}
static int exchange(int fd, long number, int how) {
  char out[SIZE] = "", in[SIZE];
  memcpy(out, &number, sizeof number);
  if (send(fd, out, SIZE, MSG_NOSIGNAL) != SIZE) return 0;
  for (size_t n = 0; n < SIZE;) {
    ssize_t k = recv(fd, in + n, SIZE - n, how);
    if (k > 0) n += k;
    else if (k == 0 || !how) return 0;
  }
  return !memcmp(in, out, SIZE);
}
// A server, and its connections: the first, and those that are busy in turns.
typedef struct {
  pid_t server;
  int first, busy[BUSY];
  memory grown;
} side;
static int meet(long number, side *to) {
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (bind(l, (void *)&a, n) || listen(l, 1024) || getsockname(l, (void *)&a, &n)) return 2;
  to->server = fork();
  if (!to->server) {
    pin(1);
    exit(serve(l));
  }
  close(l);
  memory before = resident(to->server, getpid()), after = before;
  to->first = -1;
  for (long i = 0; i <= number; i++) {
    if (i == number) after = resident(to->server, getpid());
    int fd = to->busy[i % BUSY] = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (const void *)&a, sizeof a)) return 6;
    if (to->first < 0) to->first = fd;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!exchange(fd, i, 0)) return 7;
  }
  to->grown = (memory){after.share - before.share, after.mapped - before.mapped};
  pin(0);
  return 0;
}
// Round trips, each time the mean of some that follow one another; those that warm up are not
// counted.
static int burst(int fd, long times, uint32_t *t) {
  for (long i = -(times / 4 + 100); i < times; i++) {
    uint64_t t0 = ns();
    for (int k = 0; k < TOGETHER; k++)
      if (!exchange(fd, i, MSG_DONTWAIT)) return 8;
    if (i >= 0) t[i] = (ns() - t0) / TOGETHER;
  }
  return 0;
}
static uint32_t median(uint32_t *t, long times) {
  qsort(t, times, sizeof *t, by_value);
  return t[times / 2];
}
// The server ends by itself when a connection does, unless it never had one.
static void part(const side *s, int rc) {
  int st;
  if (rc || shutdown(s->first, SHUT_WR)) kill(s->server, SIGTERM);
  waitpid(s->server, &st, 0);
}
// The one that has few connections: measures when it is told to, and says the median.
static int beside(long few, long times, int told, int says) {
  side s = {0};
  char c;
  uint32_t *t = calloc(times, sizeof *t), p50 = 0;
  int rc = few + 1 < BUSY ? 2 : meet(few, &s);
  for (long turn = 0; !rc && write(says, &p50, sizeof p50) == sizeof p50 && read(told, &c, 1) == 1; turn++) {
    rc = burst(s.busy[turn % BUSY], times, t);
    p50 = median(t, times);
  }
  part(&s, rc);
  return rc;
}
static int measure(long number, long rounds, int tells, int hears) {
  long turns = tells < 0 ? 1 : TURNS, times = rounds / TOGETHER / turns;
  uint32_t *t = calloc(turns * times, sizeof *t), *sorted = calloc(times, sizeof *t), other;
  double ratios[TURNS] = {0};
  side s = {0};
  int rc = number + 1 < BUSY && tells >= 0 ? 2 : meet(number, &s);
  // Its first word is that it is ready.
  if (!rc && tells >= 0 && read(hears, &other, sizeof other) != sizeof other) rc = 9;
  for (long turn = 0; !rc && turn < turns; turn++) {
    uint32_t *now = t + turn * times;
    if ((rc = burst(s.busy[(number + turn) % BUSY], times, now)) || tells < 0) break;
    memcpy(sorted, now, times * sizeof *t);
    if (write(tells, "", 1) != 1 || read(hears, &other, sizeof other) != sizeof other) rc = 9;
    else ratios[turn] = (double)median(sorted, times) / other;
  }
  part(&s, rc);
  if (rc) return rc;
  double each = number ? 1.0 / number : 0;
  qsort(t, turns * times, sizeof *t, by_value);
  qsort(ratios, turns, sizeof *ratios, by_size);
  printf("p50 %u p99 %u kib %.2f mapped %.2f growth %.3f\n", t[turns * times / 2], t[turns * times * 99 / 100], s.grown.share * each,
         s.grown.mapped * each, ratios[turns / 2]);
  return 0;
}
int main(int argc, char **argv) {
  long number = argc > 1 ? atol(argv[1]) : 10, rounds = argc > 2 ? atol(argv[2]) : 20000, few = argc > 3 ? atol(argv[3]) : 0;
  struct rlimit many;
  getrlimit(RLIMIT_NOFILE, &many);
  many.rlim_cur = many.rlim_max;
  setrlimit(RLIMIT_NOFILE, &many);
  if (!few) return measure(number, rounds, -1, -1);
  int out[2], in[2], st;
  if (pipe(out) || pipe(in)) return 2;
  pid_t p = fork();
  if (!p) {
    close(out[1]), close(in[0]);
    exit(beside(few, rounds / TOGETHER / TURNS, out[0], in[1]));
  }
  close(out[0]), close(in[1]);
  signal(SIGPIPE, SIG_IGN);
  int rc = measure(number, rounds, out[1], in[0]);
  close(out[1]), close(in[0]);
  waitpid(p, &st, 0);
  return rc ? rc : !WIFEXITED(st) || WEXITSTATUS(st);
}
