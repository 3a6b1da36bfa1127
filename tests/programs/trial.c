// The two ends of an echo, for what a seccomp filter allows. `trial serve HOW PORTFILE` serves one
// connection; `trial ask HOW PORTFILE` asks 240 times 1000 bytes. Exit 0: every byte was right, no
// handler of SIGSYS or SIGCHLD ran, and there was no child to wait for.
//
// HOW is one of these. `alone`. `threads`: beside a thread that sleeps. `stack`: in a thread with
// the smallest stack. `forked`: in a child, which the parent waits for. `waits`: beside a thread
// that waits for any child all the time. `late`: alone, and half-way it installs a filter that
// kills for what it does not do itself.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE 1000
#define ROUNDS 240
static const char *how, *file;
static int serves, bad;
static volatile int heard, done, children;

static void die(int code) {
  fprintf(stderr, "%s: %d, errno %d\n", serves ? "serve" : "ask", code, errno);
  _exit(code);
}

static void hear(int number) {
  (void)number;
  heard++;
}

static int is(const char *what) { return !strcmp(how, what); }

static void fill(char *b, int round) {
  for (int i = 0; i < SIZE; i++) b[i] = round * 7 + i;
}

static void take(int fd, char *b, int round) {
  for (int n = 0; n < SIZE;) {
    if (round > ROUNDS / 2) {
      struct pollfd p = {fd, POLLIN, 0};
      if (poll(&p, 1, 20000) != 1) die(10);
    }
    ssize_t k = recv(fd, b + n, SIZE - n, 0);
    if (k <= 0) die(11);
    n += k;
  }
  char want[SIZE];
  fill(want, round);
  if (memcmp(b, want, SIZE)) die(12);
}

// Everything that this program does itself from here on, and no more.
static void confine(void) {
  static const int calls[] = {SYS_recvfrom, SYS_sendto, SYS_ppoll, SYS_close, SYS_exit_group, SYS_write, SYS_read, SYS_openat, SYS_futex,
                              SYS_nanosleep, SYS_clock_nanosleep, SYS_wait4, SYS_getpid,
#ifdef SYS_poll
                              SYS_poll,
#endif
  };
  enum { N = sizeof calls / sizeof *calls };
  struct sock_filter f[2 * N + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
  for (int i = 0; i < N; i++) {
    f[1 + 2 * i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1);
    f[2 + 2 * i] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  }
  f[2 * N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  struct sock_fprog p = {2 * N + 2, f};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p, 0, 0)) die(13);
}

static void *live(void *fd_) {
  int fd = *(int *)fd_;
  char b[SIZE];
  for (int round = 0; round < ROUNDS; round++) {
    if (serves) {
      take(fd, b, round);
    } else {
      fill(b, round);
    }
    if (send(fd, b, SIZE, MSG_NOSIGNAL) != SIZE) die(14);
    if (!serves) take(fd, b, round);
    if (!serves && round % 60 == 59) usleep(3000);
    if (is("late") && round == ROUNDS / 2) confine();
  }
  if (serves && recv(fd, b, 1, 0) != 0) die(15);
  close(fd);
  return NULL;
}

static void *sleeps(void *none) {
  while (!done) usleep(10000);
  return none;
}

static void *waits(void *none) {
  while (!done) {
    if (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD) children++;
    usleep(50);
  }
  return none;
}

static int listening(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
  socklen_t size = sizeof a;
  int l = socket(AF_INET, SOCK_STREAM, 0), fd;
  // As nearly every server does.
  if (getenv("REUSE") && setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int))) die(15);
  if (l < 0 || bind(l, (void *)&a, size) || listen(l, 5) || getsockname(l, (void *)&a, &size)) die(16);
  FILE *f = fopen(file, "w");
  fprintf(f, "%d\n", ntohs(a.sin_port));
  fclose(f);
  if ((fd = accept(l, NULL, NULL)) < 0) die(17);
  close(l);
  return fd;
}

static int dialled(void) {
  int port = 0;
  for (int i = 0; i < 1000 && !port; i++) {
    FILE *f = fopen(file, "r");
    if (f && fscanf(f, "%d", &port) != 1) port = 0;
    if (f) fclose(f);
    if (!port) usleep(10000);
  }
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (fd < 0 || connect(fd, (void *)&a, sizeof a)) die(18);
  return fd;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  serves = !strcmp(argv[1], "serve");
  how = argv[2];
  file = argv[3];
  alarm(60);
  signal(SIGSYS, hear);
  pthread_t beside, small;
  int fd = serves ? listening() : dialled();
  if (is("forked")) {
    pid_t child = fork();
    int status = 1;
    if (child) {
      close(fd);
      if (waitpid(child, &status, 0) != child) die(19);
      return status ? 20 : 0;
    }
  }
  signal(SIGCHLD, hear);
  if (is("threads") || is("waits")) pthread_create(&beside, NULL, is("waits") ? waits : sleeps, NULL);
  if (is("stack")) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN);
    if (pthread_create(&small, &attributes, live, &fd) || pthread_join(small, NULL)) die(21);
  } else {
    live(&fd);
  }
  done = 1;
  if (is("threads") || is("waits")) pthread_join(beside, NULL);
  if (!is("late") && (waitpid(-1, NULL, WNOHANG | __WALL) != -1 || errno != ECHILD)) bad = 22;
  if (children) bad = 23;
  if (heard) bad = 24;
  if (bad) die(bad);
  return 0;
}
