// Round trips of 64 bytes with both sides spinning (MSG_DONTWAIT), pinned to two cores.
//
//   pingpong [ROUNDS]: prints "p50 NS p99 NS mean NS" of the round trip and checks every message.
//
// Two processes: the parent serves on core 1, the child asks on core 0. Both inherit LD_PRELOAD.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SIZE = 64 };

static void pin(int cpu) {
  cpu_set_t s;
  CPU_ZERO(&s);
  CPU_SET(cpu, &s);
  sched_setaffinity(0, sizeof s, &s);  // a machine with one core stays as it is
}
static uint64_t ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
static int get(int fd, char *b) {
  for (size_t n = 0; n < SIZE;) {
    ssize_t k = recv(fd, b + n, SIZE - n, MSG_DONTWAIT);
    if (k > 0) n += k;
    else if (k == 0 || errno != EAGAIN) return 0;
  }
  return 1;
}
static int put(int fd, const char *b) {
  for (size_t n = 0; n < SIZE;) {
    ssize_t k = send(fd, b + n, SIZE - n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (k > 0) n += k;
    else if (k == 0 || errno != EAGAIN) return 0;
  }
  return 1;
}
static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
static int client(const struct sockaddr_in *a, long rounds) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (connect(fd, (const void *)a, sizeof *a)) return 2;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  pin(0);
  uint32_t *t = calloc(rounds, sizeof *t);
  char out[SIZE] = "", in[SIZE];
  uint64_t sum = 0;
  long warm = rounds / 4 + 50000;
  for (long i = -warm; i < rounds; i++) {
    memcpy(out, &i, sizeof i);
    memcpy(out + 48, &i, sizeof i);
    uint64_t t0 = ns();
    if (!put(fd, out) || !get(fd, in)) return 3;
    uint64_t d = ns() - t0;
    if (memcmp(in, out, SIZE)) {
      fprintf(stderr, "round %ld: other bytes came back\n", i);
      return 4;
    }
    if (i >= 0) t[i] = d < UINT32_MAX ? d : UINT32_MAX, sum += d;
  }
  qsort(t, rounds, sizeof *t, by_value);
  printf("p50 %u p99 %u mean %lu\n", t[rounds / 2], t[rounds * 99 / 100], (unsigned long)(sum / rounds));
  return 0;
}
int main(int argc, char **argv) {
  long rounds = argc > 1 ? atol(argv[1]) : 200000;
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, st;
  if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n)) return 2;
  pid_t p = fork();
  if (!p) {
    close(l);
    exit(client(&a, rounds));
  }
  int fd = accept(l, NULL, NULL);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  pin(1);
  char b[SIZE];
  while (get(fd, b) && put(fd, b))
    ;
  close(fd);
  waitpid(p, &st, 0);
  return WIFEXITED(st) ? WEXITSTATUS(st) : 9;
}
