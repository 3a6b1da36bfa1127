// An echo by io_uring, and by libc's calls where there is none: `PORT syscall|liburing`. Makes a
// ring as libuv does (by libc's `syscall`) or as liburing does, connects, sends 3,000,000 bytes and
// compares what comes back. With a ring the sends go through it. Prints `ring` or `no ring: ERROR`,
// then `same`.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

enum { ALL = 3000000 };
static char out[ALL], in[ALL];

// The calls that go through `syscall` are untouched: as many arguments as there can be, errno,
// results.
static int others_work(void) {
  struct timeval start, end;
  struct timespec wait = {0, 20000000};
  int p[2];
  if (syscall(SYS_getpid) != getpid()) return 1;
  errno = 0;
  if (syscall(SYS_close, -1) != -1 || errno != EBADF) return 2;
  if (pipe(p)) return 3;
  gettimeofday(&start, NULL);
  fd_set set;
  FD_ZERO(&set);
  FD_SET(p[0], &set);
  // Six arguments behind the number: the last is on the stack.
  if (syscall(SYS_pselect6, p[0] + 1, &set, NULL, NULL, &wait, NULL)) return 4;
  gettimeofday(&end, NULL);
  if ((end.tv_sec - start.tv_sec) * 1000000 + end.tv_usec - start.tv_usec < 20000) return 5;
  void *m = (void *)syscall(SYS_mmap, NULL, 4096, 3, 0x22, -1, 0);
  if (m == (void *)-1) return 6;
  return 0;
}

static ssize_t ring_send(struct io_uring *ring, int fd, const void *from, size_t n) {
  struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
  struct io_uring_cqe *cqe;
  io_uring_prep_send(sqe, fd, from, n, 0);
  if (io_uring_submit(ring) != 1 || io_uring_wait_cqe(ring, &cqe)) return -1;
  ssize_t sent = cqe->res;
  io_uring_cqe_seen(ring, cqe);
  return sent;
}

int main(int argc, char **argv) {
  struct io_uring ring;
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int have = 0, error = 0, s = socket(AF_INET, SOCK_STREAM, 0);
  if (argc < 3 || connect(s, (void *)&to, sizeof to)) return 2;
  int bad = others_work();
  if (bad) {
    printf("another system call went wrong: %d\n", bad);
    return 1;
  }
  for (size_t i = 0; i < ALL; i++) out[i] = i * 31 >> 3;
  // What went before there was a ring may have left TCP already.
  for (size_t sent = 0, got = 0; got < ALL;) {
    if (!have && !error && got >= ALL / 2 && got == sent) {
      if (!strcmp(argv[2], "syscall")) {
        struct io_uring_params p = {0};
        errno = 0;
        long fd = syscall(SYS_io_uring_setup, 8, &p);
        error = fd < 0 ? errno : 0;
        if (!error && (fcntl(fd, F_SETFD, FD_CLOEXEC) || io_uring_queue_mmap(fd, &p, &ring))) return 3;
        for (unsigned i = 0; !error && i < p.sq_entries; i++) ring.sq.array[i] = i;
      } else error = -io_uring_queue_init(8, &ring, 0);
      have = !error;
      if (have) puts("ring");
      else printf("no ring: %s\n", strerror(error));
    }
    size_t n = sent - got < 200000 ? 10000 : 0;
    if (n > ALL - sent) n = ALL - sent;
    if (!have && !error && sent < ALL / 2 && n > ALL / 2 - sent) n = ALL / 2 - sent;
    if (!have && !error && sent == ALL / 2) n = 0;
    if (n) {
      ssize_t r = have ? ring_send(&ring, s, out + sent, n) : write(s, out + sent, n);
      if (r <= 0) return 4;
      sent += r;
    }
    struct pollfd p = {s, POLLIN, 0};
    if (poll(&p, 1, n ? 0 : -1) == 1) {
      ssize_t r = read(s, in + got, ALL - got);
      if (r <= 0) return 5;
      got += r;
    }
  }
  puts(memcmp(in, out, ALL) ? "other bytes came back" : "same");
  return 0;
}
