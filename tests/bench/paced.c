// What a slow conversation costs: a message of 64 bytes and its answer each millisecond, then
// nothing at all.
//
//   paced [MILLISECONDS [IDLE_MILLISECONDS]]: prints "cpu_us N idle_us N": processor time of both
//   ends for each message, and for the whole time at rest (both blocked in a receive).
//
// The child serves on core 1, the parent asks on core 0.
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64 };

static double used_us(pid_t other) {
  clockid_t c;
  struct timespec t = {0}, u = {0};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  if (!clock_getcpuclockid(other, &c)) clock_gettime(c, &u);
  return (t.tv_sec + u.tv_sec) * 1e6 + (t.tv_nsec + u.tv_nsec) * 1e-3;
}
static int serve(int l) {
  int fd = accept(l, NULL, NULL), one = 1;
  char b[SIZE];
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  while (recv(fd, b, SIZE, MSG_WAITALL) == SIZE)
    if (send(fd, b, SIZE, MSG_NOSIGNAL) != SIZE) return 3;
  return 0;
}
// One message in each millisecond that begins; those that we came too late for are left out.
static double talk(int fd, pid_t server, long number) {
  char out[SIZE] = "", in[SIZE];
  struct timespec at;
  double before = 0;
  clock_gettime(CLOCK_MONOTONIC, &at);
  for (long i = -200; i < number; i++) {
    if (i == 0) before = used_us(server);
    memcpy(out, &i, sizeof i);
    if (send(fd, out, SIZE, MSG_NOSIGNAL) != SIZE || recv(fd, in, SIZE, MSG_WAITALL) != SIZE || memcmp(in, out, SIZE)) return -1;
    at.tv_nsec += 1000000;
    if (at.tv_nsec >= 1000000000) at.tv_nsec -= 1000000000, at.tv_sec++;
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
  }
  return (used_us(server) - before) / number;
}
int main(int argc, char **argv) {
  long number = argc > 1 ? atol(argv[1]) : 1000, rest = argc > 2 ? atol(argv[2]) : 1000;
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1, st;
  if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n)) return 2;
  pid_t p = fork();
  if (!p) {
    pin(1);
    exit(serve(l));
  }
  close(l);
  pin(0);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, (void *)&a, sizeof a)) {
    kill(p, SIGTERM);
    return 4;
  }
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  double cpu = talk(fd, p, number);
  struct timeval t = {.tv_sec = rest / 1000, .tv_usec = rest % 1000 * 1000};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  char c;
  double before = used_us(p);
  ssize_t k = recv(fd, &c, 1, 0);
  double idle = used_us(p) - before;
  shutdown(fd, SHUT_WR);
  waitpid(p, &st, 0);
  if (cpu < 0 || k >= 0) return 5;
  printf("cpu_us %.2f idle_us %.1f\n", cpu, idle);
  return 0;
}
