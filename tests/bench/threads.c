// Many threads that block, one for each connection, at both ends: a thousand bytes there and back.
//
//   threads NUMBER SECONDS: prints "rate N p50 NS p99 NS" of all of them together
//
// The child serves, the parent asks. Connections have had reason to leave TCP when it begins.
#include "asks.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

enum { SIZE = 1000, WARM = 60, STACK = 64 << 10 };
static int port, seconds;
static pthread_barrier_t warmed;
static atomic_int failed;

static int threads(int number, void *(*run)(void *), void **what, pthread_t *ids) {
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, STACK);
  for (int i = 0; i < number; i++)
    if (pthread_create(&ids[i], &a, run, what[i])) return 0;
  return 1;
}
static void *serve(void *what) {
  int fd = (int)(intptr_t)what;
  char b[SIZE];
  while (recv(fd, b, SIZE, MSG_WAITALL) == SIZE && all_sent(fd, b, SIZE));
  close(fd);
  return NULL;
}
static int serve_all(int l, int number, void **what, pthread_t *ids) {
  for (int i = 0, one = 1; i < number; i++) {
    int fd = accept(l, NULL, NULL);
    if (fd < 0) return 3;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    what[i] = (void *)(intptr_t)fd;
  }
  if (!threads(number, serve, what, ids)) return 3;
  for (int i = 0; i < number; i++) pthread_join(ids[i], NULL);
  return 0;
}
static int there_and_back(int fd, uint64_t n) {
  char out[SIZE] = "", in[SIZE];
  memcpy(out, &n, sizeof n);
  return all_sent(fd, out, SIZE) && recv(fd, in, SIZE, MSG_WAITALL) == SIZE && !memcmp(in, out, SIZE);
}
static void *ask(void *what) {
  times *t = what;
  int fd = to_port(port), good = fd >= 0;
  for (uint64_t n = 0; good && n < WARM; n++) good = there_and_back(fd, n);
  pthread_barrier_wait(&warmed);
  uint64_t now = ns(), end = now + seconds * 1000000000ULL;
  for (uint64_t n = 0, before = now; good && now < end; n++, before = now) {
    good = there_and_back(fd, n);
    took(t, (now = ns()) - before);
  }
  if (!good) failed++;
  close(fd);
  return NULL;
}
static int ask_all(int number, void **what, pthread_t *ids) {
  times *each = calloc(number, sizeof *each), all = {0};
  if (!each) return 2;
  for (int i = 0; i < number; i++) what[i] = &each[i];
  pthread_barrier_init(&warmed, NULL, number + 1);
  if (!threads(number, ask, what, ids)) return 2;
  pthread_barrier_wait(&warmed);
  uint64_t began = ns();
  for (int i = 0; i < number; i++) pthread_join(ids[i], NULL);
  uint64_t in = ns() - began;
  for (int i = 0; i < number; i++)
    for (size_t k = 0; k < each[i].number; k++) took(&all, each[i].ns[k]);
  if (failed) return 5;
  told(&all, all.number, in);
  return 0;
}
int main(int argc, char **argv) {
  int number = argc > 1 ? atoi(argv[1]) : 64, st;
  seconds = argc > 2 ? atoi(argv[2]) : 2;
  void **what = calloc(number, sizeof *what);
  pthread_t *ids = calloc(number, sizeof *ids);
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0);
  if (!what || !ids || bind(l, (void *)&a, n) || listen(l, number) || getsockname(l, (void *)&a, &n)) return 2;
  port = ntohs(a.sin_port);
  pid_t p = fork();
  if (!p) exit(serve_all(l, number, what, ids));
  close(l);
  int r = ask_all(number, what, ids);
  if (r) kill(p, SIGTERM);
  waitpid(p, &st, 0);
  return r ? r : st ? 6 : 0;
}
