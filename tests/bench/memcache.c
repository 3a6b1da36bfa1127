// Asks memcached for one value over and over: memcache PORT CONNECTIONS SIZE SECONDS.
//
// One thread, epoll, one request under way on each connection. Prints "rate N p50 NS p99 NS":
// answers a second, and what one takes. The last bytes of each answer are checked, and its length.
#include "asks.h"

static char *answer;
static size_t whole;

// Stores the value that is asked for, and says how long an answer is.
static int store(int fd, size_t size) {
  char head[64], said[16];
  int n = snprintf(head, sizeof head, "set k 0 0 %zu\r\n", size);
  char *value = malloc(size + 2);
  memset(value, 'v', size);
  memcpy(value + size, "\r\n", 2);
  if (!all_sent(fd, head, n) || !all_sent(fd, value, size + 2)) return 0;
  free(value);
  if (recv(fd, said, 8, MSG_WAITALL) != 8 || memcmp(said, "STORED\r\n", 8)) return 0;
  whole = snprintf(head, sizeof head, "VALUE k 0 %zu\r\n", size) + size + 2 + 5;
  answer = malloc(whole);
  return 1;
}
int main(int argc, char **argv) {
  if (argc != 5) return 2;
  int port = atoi(argv[1]), number = atoi(argv[2]);
  size_t size = atol(argv[3]);
  double seconds = atof(argv[4]);
  asking *all = calloc(number, sizeof *all);
  int e = epoll_create1(0);
  for (int i = 0; i < number; i++) {
    if ((all[i].fd = to_port(port)) < 0) return 3;
    if (!i && !store(all[i].fd, size)) return 4;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = all + i};
    if (epoll_ctl(e, EPOLL_CTL_ADD, all[i].fd, &ev)) return 5;
  }
  times t = {0};
  uint64_t began = ns(), end = began + seconds * 1e9, now = began;
  for (int i = 0; i < number; i++) {
    all[i].began = now;
    if (!all_sent(all[i].fd, "get k\r\n", 7)) return 6;
  }
  while (now < end) {
    struct epoll_event ready[64];
    int n = epoll_wait(e, ready, 64, 10000);
    if (n <= 0) return 7;
    for (int i = 0; i < n; i++) {
      asking *a = ready[i].data.ptr;
      ssize_t k = recv(a->fd, answer, whole - a->got, MSG_DONTWAIT);
      if (k <= 0) {
        if (k < 0 && errno == EAGAIN) continue;
        return 8;
      }
      if ((a->got += k) < whole) continue;
      if (answer[k - 1] != '\n') return 9;
      now = ns();
      took(&t, now - a->began);
      a->got = 0;
      a->began = now;
      if (now < end && !all_sent(a->fd, "get k\r\n", 7)) return 6;
    }
  }
  told(&t, t.number, now - began);
  return 0;
}
