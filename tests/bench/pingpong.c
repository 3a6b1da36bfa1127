// Round trips of 64 bytes with both sides spinning (MSG_DONTWAIT), pinned to two cores.
//
//   pingpong [ROUNDS [blocking]]: prints "p50 NS p99 NS mean NS waited PERCENT" of the round trip
//   and checks every message. Ten of them are timed together, since looking at the clock takes a
//   tenth of one. `waited` is how much of the time the one of the two that got less of its core was
//   kept from it by others. `blocking`: the calls wait.
//
// Two processes: the parent serves on core 1, the child asks on core 0. Both inherit LD_PRELOAD.
// With -DRSOCKET it calls rsocket(7).
#include "bench.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "calls.h"

enum { SIZE = 64, TOGETHER = 10 };
static int how = MSG_DONTWAIT;

static int get(int fd, char *b) {
  for (size_t n = 0; n < SIZE;) {
    ssize_t k = recv(fd, b + n, SIZE - n, how);
    if (k > 0) n += k;
    else if (k == 0 || errno != EAGAIN) return 0;
  }
  return 1;
}
static int put(int fd, const char *b) {
  for (size_t n = 0; n < SIZE;) {
    ssize_t k = send(fd, b + n, SIZE - n, how | MSG_NOSIGNAL);
    if (k > 0) n += k;
    else if (k == 0 || errno != EAGAIN) return 0;
  }
  return 1;
}
static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
static int client(const struct sockaddr_in *a, long rounds, waits *w) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (connect(fd, (const void *)a, sizeof *a)) return 2;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  pin(0);
  uint32_t *t = calloc(rounds, sizeof *t);
  char out[SIZE] = "", in[SIZE];
  uint64_t sum = 0;
  long times = rounds / TOGETHER, warm = times / 4 + 300;
  waits_begin(w, 0);
  for (long i = -warm; i < times; i++) {
    uint64_t t0 = ns();
    for (int k = 0; k < TOGETHER; k++) {
      long number = i * TOGETHER + k;
      memcpy(out, &number, sizeof number);
      memcpy(out + 48, &number, sizeof number);
      if (!put(fd, out) || !get(fd, in)) return 3;
      if (memcmp(in, out, SIZE)) {
        fprintf(stderr, "round %ld: other bytes came back\n", number);
        return 4;
      }
    }
    uint64_t d = (ns() - t0) / TOGETHER;
    if (i >= 0) t[i] = d < UINT32_MAX ? d : UINT32_MAX, sum += d;
  }
  waits_end(w, 0);
  close(fd);
  // The other side ends with the connection, and says how it fared.
  for (int i = 0; i < 1000 && !w->done; i++) usleep(1000);
  qsort(t, times, sizeof *t, by_value);
  printf("p50 %u p99 %u mean %lu waited %d\n", t[times / 2], t[times * 99 / 100], (unsigned long)(sum / times), most_waited(w));
  return 0;
}
int main(int argc, char **argv) {
  long rounds = argc > 1 ? atol(argv[1]) : 200000;
  if (argc > 2 && !strcmp(argv[2], "blocking")) how = 0;
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, st;
  if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n)) return 2;
  waits *w = new_waits();
  if (!w) return 2;
  pid_t p = fork();
  if (!p) {
    close(l);
    exit(client(&a, rounds, w));
  }
  int fd = accept(l, NULL, NULL);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  pin(1);
  waits_begin(w, 1);
  char b[SIZE];
  while (get(fd, b) && put(fd, b))
    ;
  waits_end(w, 1);
  w->done = 1;
  close(fd);
  waitpid(p, &st, 0);
  return WIFEXITED(st) ? WEXITSTATUS(st) : 9;
}
