// A stream one way: prints "MB/s N waited PERCENT". The receiver counts every byte and checks a
// sample of each part. `waited` as in pingpong.c.
//
//   stream [MIB] [WRITE_KIB]: 1024 MiB in writes of 256 KiB if not told otherwise.
#include "bench.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

// The eight bytes at a position that is a multiple of 4096 say which position it is; the rest of
// the page is fixed.
static uint64_t mark(uint64_t pos) { return (pos ^ 0x5bd1e995) * 0x9E3779B97F4A7C15ull; }

static int sender(const struct sockaddr_in *a, uint64_t total, size_t chunk, waits *w) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, (const void *)a, sizeof *a)) return 2;
  pin(0);
  char *b = aligned_alloc(4096, chunk);
  memset(b, 7, chunk);
  waits_begin(w, 0);
  for (uint64_t at = 0; at < total;) {
    for (size_t o = 0; o < chunk; o += 4096) {
      uint64_t m = mark(at + o);
      memcpy(b + o, &m, 8);
    }
    for (size_t o = 0; o < chunk;) {
      ssize_t k = write(fd, b + o, chunk - o);
      if (k <= 0) return 3;
      o += k;
    }
    at += chunk;
  }
  shutdown(fd, SHUT_WR);
  waits_end(w, 0);
  char c;
  return read(fd, &c, 1) == 1 && c == 'y' ? 0 : 4;  // the receiver has checked it all
}
int main(int argc, char **argv) {
  uint64_t total = (argc > 1 ? strtoull(argv[1], 0, 10) : 1024) << 20;
  size_t chunk = (argc > 2 ? atol(argv[2]) : 256) << 10;
  total -= total % chunk;
  struct sockaddr_in a = {.sin_family = AF_INET};
  socklen_t n = sizeof a;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0), st;
  if (bind(l, (void *)&a, n) || listen(l, 1) || getsockname(l, (void *)&a, &n)) return 2;
  waits *w = new_waits();
  if (!w) return 2;
  pid_t p = fork();
  if (!p) {
    close(l);
    exit(sender(&a, total, chunk, w));
  }
  int fd = accept(l, NULL, NULL);
  pin(1);
  size_t room = 256 << 10;
  char *b = malloc(room + 8);
  uint64_t got = 0, held = 0;  // `held` bytes of a mark that was cut are at the front
  waits_begin(w, 1);
  uint64_t t0 = ns();
  for (;;) {
    ssize_t k = read(fd, b + held, room - held);
    if (k < 0) return 5;
    if (k == 0) break;
    uint64_t start = got - held, end = got + k, pos = (start + 4095) / 4096 * 4096;
    for (; pos + 8 <= end; pos += 4096) {
      uint64_t m;
      memcpy(&m, b + (pos - start), 8);
      if (m != mark(pos)) {
        fprintf(stderr, "wrong bytes at %llu\n", (unsigned long long)pos);
        return 6;
      }
      if (pos + 4095 < end && b[pos - start + 4095] != 7) return 7;
    }
    held = pos < end ? end - pos : 0;
    if (held) memmove(b, b + (pos - start), held);
    got = end;
  }
  double t = (ns() - t0) * 1e-9;
  waits_end(w, 1);
  if (got != total) {
    fprintf(stderr, "%llu bytes of %llu\n", (unsigned long long)got, (unsigned long long)total);
    return 8;
  }
  if (write(fd, "y", 1) != 1) return 9;
  waitpid(p, &st, 0);
  printf("MB/s %.0f waited %d\n", total / t / 1e6, most_waited(w));
  return WIFEXITED(st) ? WEXITSTATUS(st) : 10;
}
