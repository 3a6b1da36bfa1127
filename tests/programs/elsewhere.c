// A client that goes to another network namespace with connections that have left TCP.
//
//   elsewhere server PORT
//       echoes messages, a thread for each connection
//   elsewhere client PORT HOW [once]
//       four connections exchange what makes them leave TCP; then HOW: `stay`, `unshare`, `setns`
//       (to a namespace that another process made, by nstype 0), or `hop` (there and back). After
//       it each end has to wake the other where it never slept before: in threads, in new epoll
//       sets, after a fork and in another program. Without `once` it also has a connection to a
//       server that has never been anywhere else. The exit status says which step stood still.
//       77: not to be had here.
//
// A message is 1000 bytes; its first one tells the server what to do before it answers.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { AT_ONCE, LATER, NEW_SET };
enum { LEN = 1000, N = 4, PATIENCE = 5000 };

static int set_of(int fd) {
  int set = epoll_create1(EPOLL_CLOEXEC);
  struct epoll_event e = {.events = EPOLLIN};
  if (epoll_ctl(set, EPOLL_CTL_ADD, fd, &e)) exit(90);
  return set;
}

// Waits in the epoll set, or by poll(2) for -1.
static int readable(int fd, int set, int ms) {
  struct pollfd p = {fd, POLLIN, 0};
  struct epoll_event e;
  return (set < 0 ? poll(&p, 1, ms) : epoll_wait(set, &e, 1, ms)) == 1;
}

static int take(int fd, int set, unsigned char *m, int ms) {
  for (int at = 0; at < LEN;) {
    if (!readable(fd, set, ms)) return 0;
    int n = read(fd, m + at, LEN - at);
    if (n <= 0) return 0;
    at += n;
  }
  return 1;
}

static void *serve(void *arg) {
  int fd = (int)(long)arg, set = -1;
  for (unsigned char m[LEN]; take(fd, set, m, -1);) {
    if (m[0] == LATER) usleep(20000);
    if (m[0] == NEW_SET) set = set_of(fd);
    if (write(fd, m, LEN) != LEN) break;
  }
  close(fd);
  return NULL;
}

static int server(struct sockaddr_in *a) {
  int l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), yes = 1;
  setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  if (bind(l, (void *)a, sizeof *a) || listen(l, 16)) return 2;
  for (;;) {
    pthread_t t;
    int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
    if (fd >= 0) pthread_create(&t, NULL, serve, (void *)(long)fd);
  }
}

static int echo(int fd, int set, int what) {
  unsigned char m[LEN] = {what}, back[LEN];
  for (int i = 1; i < LEN; i++) m[i] = rand();
  return write(fd, m, LEN) == LEN && take(fd, set, back, PATIENCE) && !memcmp(m, back, LEN);
}

// Both ends sleep in turns.
static void turns(int fd, int set, int step) {
  for (int i = 0; i < 3; i++) {
    if (!echo(fd, set, LATER)) exit(step);
    usleep(20000);
  }
}

static void *turns_in_thread(void *arg) {
  turns((int)(long)arg, -1, 11);
  return NULL;
}

static int namespace_of_another(void) {
  int p[2];
  char c;
  if (pipe(p)) exit(91);
  pid_t child = fork();
  if (!child) {
    c = unshare(CLONE_NEWNET) ? 'n' : 'y';
    (void)!write(p[1], &c, 1);
    pause();
  }
  if (read(p[0], &c, 1) != 1) exit(92);
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/ns/net", c == 'y' ? child : 0);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  close(p[0]);
  close(p[1]);
  return fd;
}

static int go(const char *how, int there) {
  if (!strcmp(how, "unshare")) return unshare(CLONE_NEWNET);
  int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
  if (strcmp(how, "stay") && setns(there, 0)) return -1;
  return strcmp(how, "hop") ? 0 : setns(home, CLONE_NEWNET);
}

static int dial(struct sockaddr_in *a) {
  int fd = socket(AF_INET, SOCK_STREAM, 0);
  for (int tries = 0; connect(fd, (void *)a, sizeof *a); tries++) {
    if (tries == 100) exit(3);
    usleep(20000);
  }
  for (int i = 0; i < 50; i++)
    if (!echo(fd, -1, AT_ONCE)) exit(4);
  return fd;
}

// A connection to a program that was started where we are now.
static void at_the_other_place(struct sockaddr_in *a, const char *port) {
  int s = socket(AF_INET, SOCK_DGRAM, 0);
  struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
  if (ioctl(s, SIOCSIFFLAGS, &lo)) exit(93);
  close(s);
  pid_t child = fork();
  if (!child) {
    for (int fd = 3; fd < 32; fd++) close(fd);
    execl("/proc/self/exe", "elsewhere", "server", port, NULL);
    _exit(94);
  }
  int fd = dial(a);
  turns(fd, -1, 17);
  close(fd);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2]))};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (!strcmp(argv[1], "server")) return server(&a);
  if (!strcmp(argv[1], "again")) {
    turns(atoi(argv[2]), -1, 15);
    return 0;
  }
  if (argc < 4) return 2;
  int fd[N], there = namespace_of_another();
  if (there < 0) return 77;
  for (int i = 0; i < N; i++) fd[i] = dial(&a);
  if (go(argv[3], there)) return errno == EPERM ? 77 : 5;
  for (int i = 0; i < N; i++) turns(fd[i], -1, 10);
  pthread_t t[N];
  for (int i = 0; i < N; i++) pthread_create(&t[i], NULL, turns_in_thread, (void *)(long)fd[i]);
  for (int i = 0; i < N; i++) pthread_join(t[i], NULL);
  for (int i = 0; i < N; i++) {
    if (!echo(fd[i], -1, NEW_SET)) return 12;
    usleep(20000);
    turns(fd[i], -1, 12);
  }
  turns(fd[0], set_of(fd[0]), 13);
  pid_t child = fork();
  if (!child) {
    turns(fd[1], -1, 14);
    _exit(0);
  }
  int status;
  waitpid(child, &status, 0);
  if (status) return WIFEXITED(status) ? WEXITSTATUS(status) : 16;
  if (argc == 4 && (!strcmp(argv[3], "unshare") || !strcmp(argv[3], "setns"))) at_the_other_place(&a, argv[2]);
  char number[16];
  snprintf(number, sizeof number, "%d", fd[2]);
  execl("/proc/self/exe", argv[0], "again", number, NULL);
  return 6;
}
