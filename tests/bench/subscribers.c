// Publishes to many subscribers of redis, all of them here: subscribers PORT NUMBER SECONDS.
//
// One thread, epoll. A message of 64 bytes is published when every subscriber has the one before.
// Prints "rate N p50 NS p99 NS": messages that subscribers got in a second, and what one to all of
// them takes. Each message is checked.
#include "asks.h"

#define BODY "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define MESSAGE "*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$64\r\n" BODY "\r\n"
#define SUBSCRIBED "*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"
#define PUBLISH "*3\r\n$7\r\nPUBLISH\r\n$1\r\nc\r\n$64\r\n" BODY "\r\n"

// More of the message that this one waits for. 1 when the message is whole, 0 when not yet, -1 if
// it is another or the end.
static int more(asking *a) {
  char b[sizeof MESSAGE];
  size_t left = sizeof MESSAGE - 1 - a->got;
  ssize_t k = recv(a->fd, b, left, MSG_DONTWAIT);
  if (k < 0 && errno == EAGAIN) return 0;
  if (k <= 0 || memcmp(b, MESSAGE + a->got, k)) return -1;
  a->got = (size_t)k == left ? 0 : a->got + k;
  return !a->got;
}
static int publish(int fd, int number) {
  char want[32], said[32];
  int n = snprintf(want, sizeof want, ":%d\r\n", number);
  if (!all_sent(fd, PUBLISH, sizeof PUBLISH - 1)) return 0;
  return recv(fd, said, n, MSG_WAITALL) == n && !memcmp(said, want, n);
}
int main(int argc, char **argv) {
  if (argc != 4) return 2;
  int port = atoi(argv[1]), number = atoi(argv[2]), e = epoll_create1(0), publisher = to_port(port);
  double seconds = atof(argv[3]);
  asking *all = calloc(number, sizeof *all);
  for (int i = 0; i < number; i++) {
    char said[sizeof SUBSCRIBED];
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = all + i};
    if ((all[i].fd = to_port(port)) < 0 || !all_sent(all[i].fd, "SUBSCRIBE c\r\n", 13)) return 3;
    if (recv(all[i].fd, said, sizeof said - 1, MSG_WAITALL) != sizeof said - 1) return 4;
    if (memcmp(said, SUBSCRIBED, sizeof said - 1)) return 4;
    if (epoll_ctl(e, EPOLL_CTL_ADD, all[i].fd, &ev)) return 5;
  }
  times t = {0};
  uint64_t began = ns(), now = began, before;
  while (now < began + seconds * 1e9) {
    before = now;
    if (!publish(publisher, number)) return 6;
    for (int left = number; left;) {
      struct epoll_event ready[128];
      int n = epoll_wait(e, ready, 128, 10000);
      if (n <= 0) return 7;
      for (int i = 0; i < n; i++) {
        int is = more(ready[i].data.ptr);
        if (is < 0) return 8;
        left -= is;
      }
    }
    took(&t, (now = ns()) - before);
  }
  told(&t, t.number * number, now - began);
  return 0;
}
