// A client that enters a sandbox: a seccomp filter that kills on anything but read, write, poll,
// futex, mmap and exit.
//
//   sandbox PORT WARM HOW [once]
//       connects, exchanges WARM bytes, enters the sandbox, takes an answer that came before it,
//       exchanges 300 messages, exits 0
//   sandbox within COMMAND...
//       becomes another program in a Landlock domain as below
//
// HOW it is entered: `prctl`, `prctl-number` (by `syscall`). `seccomp` (by number), without
// no_new_privs where the user may. `tsync`, the same for all threads. `libseccomp`. `landlock`: no
// filter, but rules by which it cannot reach abstract sockets of others; it has a second connection
// then, without `once`. `stay`: not at all. 77: not to be had here.
//
// The filter answers SECCOMP_RET_KILL_PROCESS, so one wrong system call shows as death by SIGSYS.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
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

static const int LET_THROUGH[] = {
    SYS_read, SYS_write,
#ifdef SYS_poll
    SYS_poll,
#else
    SYS_ppoll,
#endif
    SYS_futex, SYS_mmap, SYS_exit, SYS_exit_group,
};
#define N (sizeof LET_THROUGH / sizeof *LET_THROUGH)

static int by_libseccomp(void) {
  void *lib = dlopen("libseccomp.so.2", RTLD_NOW);
  if (!lib) return 77;
  void *(*init)(unsigned) = (void *(*)(unsigned))dlsym(lib, "seccomp_init");
  int (*add)(void *, unsigned, int, unsigned, ...) = (int (*)(void *, unsigned, int, unsigned, ...))dlsym(lib, "seccomp_rule_add");
  int (*load)(void *) = (int (*)(void *))dlsym(lib, "seccomp_load");
  void *filter = init(SECCOMP_RET_KILL_PROCESS);
  for (size_t i = 0; i < N; i++)
    if (add(filter, SECCOMP_RET_ALLOW, LET_THROUGH[i], 0)) return 6;
  return load(filter) ? 7 : 0;
}

// The numbers are those of linux/landlock.h, which may be older than the kernel.
static int by_landlock(void) {
  // 1: abstract sockets. 2: signals.
  struct { unsigned long files, net, scoped; } rules = {.scoped = 1 | 2};
  if (syscall(444, NULL, 0, 1) < 6) return 77;
  int fd = syscall(444, &rules, sizeof rules, 0);
  return fd < 0 || (geteuid() && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) || syscall(446, fd, 0) ? 8 : 0;
}

static int enter(const char *how) {
  struct sock_filter f[2 + 2 * N] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  for (size_t i = 0; i < N; i++) {
    f[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, LET_THROUGH[i], 0, 1);
    f[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  f[1 + 2 * N] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  struct sock_fprog p = {sizeof f / sizeof *f, f};
  if (!strcmp(how, "stay")) return 0;
  if (!strcmp(how, "libseccomp")) return by_libseccomp();
  if (!strcmp(how, "landlock")) return by_landlock();
  if (!strcmp(how, "prctl-number"))
    return syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1L, 0L, 0L, 0L)              ? 4
           : syscall(SYS_prctl, PR_SET_SECCOMP, (long)SECCOMP_MODE_FILTER, &p, 0L, 0L) ? 5
                                                                                 : 0;
  if (!strcmp(how, "prctl") || geteuid())
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 4;
  if (!strcmp(how, "prctl")) return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p, 0, 0) ? 5 : 0;
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, strcmp(how, "tsync") ? 0 : SECCOMP_FILTER_FLAG_TSYNC, &p) ? 5 : 0;
}

static int dial(const char *port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(fd, (void *)&a, sizeof a)) _exit(3);
  return fd;
}

int main(int argc, char **argv) {
  if (argc > 2 && !strcmp(argv[1], "within")) {
    int bad = by_landlock();
    if (!bad) execvp(argv[2], argv + 2);
    return bad ? bad : 9;
  }
  if (argc < 4) return 2;
  int fd = dial(argv[1]);
  for (long n = atol(argv[2]), i = 0; n > 0; n -= 10000, i++) echo(fd, n < 10000 ? n : 10000, i);
  ask(fd, 40000, 77);
  usleep(100000);
  int bad = enter(argv[3]);
  if (bad) return bad;
  answer(fd, 40000);
  for (int i = 0; i < 300; i++) echo(fd, 1 + i * 199, i);
  if (!strcmp(argv[3], "landlock") && argc == 4) {
    // New connections are allowed, by TCP; the process at the other end may be asleep.
    fd = dial(argv[1]);
    for (int i = 0; i < 100; i++) {
      if (i % 10 == 9) usleep(20000);
      echo(fd, 1 + i * 199, i);
    }
  }
  return 0;  // through exit(): whatever runs there is under the filter too
}
