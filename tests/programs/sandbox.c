// A client under a seccomp filter that kills on anything but read, write, poll, futex, mmap and exit.
//
//   sandbox PORT WARM : connects, exchanges WARM bytes, installs the filter, takes an answer that came before it,
//                       exchanges 300 messages, exits 0.
//
// The filter answers SECCOMP_RET_KILL_PROCESS, so one wrong system call shows as death by SIGSYS.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LET(nr) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static unsigned char b[60000], c[60000];

static void ask(int fd, size_t n, unsigned char x) {
  for (size_t i = 0; i < n; i++) b[i] = x + i;
  for (size_t o = 0; o < n;) {
    ssize_t k = write(fd, b + o, n - o);
    if (k <= 0) _exit(10);
    o += k;
  }
}

static void answer(int fd, size_t n) {
  for (size_t o = 0; o < n;) {
    struct pollfd p = {fd, POLLIN, 0};
    if (poll(&p, 1, 10000) != 1) _exit(11);
    ssize_t k = read(fd, c + o, n - o);
    if (k <= 0) _exit(12);
    o += k;
  }
  if (memcmp(b, c, n)) _exit(13);
}

static void echo(int fd, size_t n, unsigned char x) {
  ask(fd, n, x);
  answer(fd, n);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, (void *)&a, sizeof a)) return 3;
  for (long n = atol(argv[2]), i = 0; n > 0; n -= 10000, i++) echo(fd, n < 10000 ? n : 10000, i);
  struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      LET(SYS_read),
      LET(SYS_write),
#ifdef SYS_poll
      LET(SYS_poll),
#else
      LET(SYS_ppoll),
#endif
      LET(SYS_futex),
      LET(SYS_mmap),
      LET(SYS_exit),
      LET(SYS_exit_group),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog p = {sizeof f / sizeof *f, f};
  ask(fd, 40000, 77);
  usleep(100000);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 4;
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p, 0, 0)) return 5;
  answer(fd, 40000);
  for (int i = 0; i < 300; i++) echo(fd, 1 + i * 199, i);
  return 0;  // through exit(): whatever runs there is under the filter too
}
