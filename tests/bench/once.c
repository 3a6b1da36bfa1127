// One call at a time, in one process: for counting instructions, and for the time of a hook that
// has nothing to do.
//
//   once foreign NUMBER: write() on a descriptor that is no socket
//   once send NUMBER, once receive NUMBER: 64 bytes between two ends of a connection, both here
//   once look NUMBER: a receive that finds nothing
//   once wait NUMBER: epoll_wait that finds those bytes at one of its members
//   once modify NUMBER: epoll_ctl that asks for room as well, and not any more
//
// Prints "ns N", the mean of one call. What is counted is `measured` and what it calls.
#include "bench.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 64, WARM = 3000 };
static char bytes[SIZE];

static ssize_t put(int fd) { return send(fd, bytes, SIZE, MSG_DONTWAIT | MSG_NOSIGNAL); }
static ssize_t get(int fd) { return recv(fd, bytes, SIZE, MSG_DONTWAIT); }
static ssize_t foreign(int fd) { return write(fd, bytes, SIZE); }
static int set, member;
static ssize_t await(int fd) {
  struct epoll_event e[16];
  return epoll_wait(fd, e, 16, 100);
}
static ssize_t modify(int fd) {
  static unsigned turn;
  struct epoll_event e = {.events = EPOLLIN | (turn++ % 2 ? 0 : EPOLLOUT), .data.fd = member};
  return epoll_ctl(fd, EPOLL_CTL_MOD, member, &e);
}

__attribute__((noinline)) ssize_t measured(ssize_t (*call)(int), int fd) { return call(fd); }

// Both ends of a connection; calls until nothing is refused, which is when a device has taken it
// over.
static int meet(int *ends) {
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n)) return 0;
  ends[0] = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(ends[0], (void *)&a, n)) return 0;
  ends[1] = accept(l, NULL, NULL);
  for (int i = 0; i < 2; i++) setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  for (int i = 0; i < WARM; i++) {
    for (int way = 0; way < 2; way++) {
      uint64_t end = ns() + 5000000000ull;
      while (put(ends[way]) != SIZE)
        if (get(ends[!way]) >= 0 || ns() > end) return 0;
      while (get(ends[!way]) != SIZE)
        if (ns() > end) return 0;
    }
  }
  return 1;
}
int main(int argc, char **argv) {
  if (argc < 3) return 2;
  long number = atol(argv[2]);
  uint64_t t = 0;
  pin(0);
  if (!strcmp(argv[1], "foreign")) {
    int fd = open("/dev/null", O_WRONLY);
    for (long i = 0; i < 1000; i++) foreign(fd);
    t = ns();
    for (long i = 0; i < number; i++) measured(foreign, fd);
    t = ns() - t;
  } else if (!strcmp(argv[1], "wait") || !strcmp(argv[1], "modify")) {
    int ends[2], waits = argv[1][0] == 'w';
    if (!meet(ends)) return 3;
    set = epoll_create1(0), member = ends[1];
    struct epoll_event e = {.events = EPOLLIN, .data.fd = member};
    if (epoll_ctl(set, EPOLL_CTL_ADD, member, &e)) return 7;
    for (long i = 0; i < number; i++) {
      if (waits && put(ends[0]) != SIZE) return 4;
      uint64_t t0 = ns();
      ssize_t k = measured(waits ? await : modify, set);
      t += ns() - t0;
      if (k != waits) return 8;
      if (waits && get(member) != SIZE) return 5;
    }
  } else {
    int ends[2], sends = !strcmp(argv[1], "send"), looks = !strcmp(argv[1], "look");
    if (!meet(ends)) return 3;
    for (long i = 0; looks && i < number; i++) {
      uint64_t t0 = ns();
      if (measured(get, ends[1]) >= 0) return 6;
      t += ns() - t0;
    }
    for (long i = 0; !looks && i < number; i++) {
      uint64_t t0 = ns();
      ssize_t k = sends ? measured(put, ends[0]) : put(ends[0]);
      if (sends) t += ns() - t0;
      if (k != SIZE) return 4;
      t0 = ns();
      k = sends ? get(ends[1]) : measured(get, ends[1]);
      if (!sends) t += ns() - t0;
      if (k != SIZE) return 5;
    }
  }
  printf("ns %.2f\n", (double)t / number);
  return 0;
}
