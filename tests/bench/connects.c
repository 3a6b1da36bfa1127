// Connections that live for one request: connect, send 64 bytes, receive 64 bytes, close, one after
// the other.
//
//   connects [NUMBER]: prints "us N waited PERCENT", the mean of one.
//
// The parent serves on core 1, the child asks on core 0; calls block, bytes are checked.
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 64 };

static int whole(int fd, char *b) { return recv(fd, b, SIZE, MSG_WAITALL) == SIZE; }

static int client(const struct sockaddr_in *a, long number, waits *w) {
  pin(0);
  uint64_t t0 = 0;
  long warm = number / 10 + 1;
  for (long i = -warm; i < number; i++) {
    char out[SIZE] = "", in[SIZE];
    if (i == 0) {
      waits_begin(w, 0);
      t0 = ns();
    }
    memcpy(out, &i, sizeof i);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(fd, (const void *)a, sizeof *a)) return 3;
    if (send(fd, out, SIZE, MSG_NOSIGNAL) != SIZE || !whole(fd, in)) return 4;
    if (memcmp(in, out, SIZE)) return 5;
    close(fd);
  }
  double us = (ns() - t0) / 1e3 / number;
  waits_end(w, 0);
  printf("us %.2f waited %d\n", us, most_waited(w));
  return 0;
}
int main(int argc, char **argv) {
  long number = argc > 1 ? atol(argv[1]) : 20000;
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0), st;
  if (bind(l, (void *)&a, n) || listen(l, 64) || getsockname(l, (void *)&a, &n)) return 2;
  waits *w = new_waits();
  if (!w) return 2;
  pid_t p = fork();
  if (!p) {
    close(l);
    exit(client(&a, number, w));
  }
  pin(1);
  for (long i = 0; i < number + number / 10 + 1; i++) {
    char b[SIZE];
    int fd = accept(l, NULL, NULL);
    if (fd < 0 || !whole(fd, b) || send(fd, b, SIZE, MSG_NOSIGNAL) != SIZE) break;
    recv(fd, b, SIZE, 0);  // the client is the first to close
    close(fd);
  }
  close(l);
  waitpid(p, &st, 0);
  return WIFEXITED(st) ? WEXITSTATUS(st) : 9;
}
