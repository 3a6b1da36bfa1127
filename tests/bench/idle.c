// Many idle connections and a busy one on one epoll object.
//
//   idle [NUMBER [ROUNDS]]: prints "p50 NS p99 NS kib N mapped N": round trips of the busy one, and the resident memory of both ends
//   for each idle connection: what there is of it, and what it seems to be when a page that both have mapped counts twice.
//
// The child serves by epoll on core 1; the parent connects, exchanges 64 bytes on each connection, and then asks on the
// last one, spinning, on core 0.
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

enum { SIZE = 64, TOGETHER = 10 };

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
// Resident memory of two processes in KiB: of each its share ("Pss": a page is divided by the number of those who have it), and all that
// each has mapped ("Rss").
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
static int ask(pid_t server, const struct sockaddr_in *a, long number, long rounds) {
  long times = rounds / TOGETHER, warm = times / 4 + 100;
  int fd = -1, one = 1;
  memory before = resident(server, getpid()), after = before;
  for (long i = 0; i <= number; i++) {
    if (i == number) after = resident(server, getpid());
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (const void *)a, sizeof *a)) return 6;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (!exchange(fd, i, 0)) return 7;
  }
  pin(0);
  uint32_t *t = calloc(times, sizeof *t);
  for (long i = -warm; i < times; i++) {
    uint64_t t0 = ns();
    for (int k = 0; k < TOGETHER; k++)
      if (!exchange(fd, i, MSG_DONTWAIT)) return 8;
    if (i >= 0) t[i] = (ns() - t0) / TOGETHER;
  }
  qsort(t, times, sizeof *t, by_value);
  double each = number ? 1.0 / number : 0;
  printf("p50 %u p99 %u kib %.2f mapped %.2f\n", t[times / 2], t[times * 99 / 100], (after.share - before.share) * each,
         (after.mapped - before.mapped) * each);
  return 0;
}
int main(int argc, char **argv) {
  long number = argc > 1 ? atol(argv[1]) : 10, rounds = argc > 2 ? atol(argv[2]) : 20000;
  struct rlimit many;
  getrlimit(RLIMIT_NOFILE, &many);
  many.rlim_cur = many.rlim_max;
  setrlimit(RLIMIT_NOFILE, &many);
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(l, (void *)&a, n) || listen(l, 1024) || getsockname(l, (void *)&a, &n)) return 2;
  pid_t p = fork();
  if (!p) {
    pin(1);
    exit(serve(l));
  }
  close(l);
  int rc = ask(p, &a, number, rounds), st;
  fflush(stdout);
  // The server ends by itself when a connection does, unless it never had one.
  if (rc) kill(p, SIGTERM);
  shutdown(3, SHUT_WR);
  waitpid(p, &st, 0);
  return rc;
}
