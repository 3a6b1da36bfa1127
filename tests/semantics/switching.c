// While the bytes of a connection change their carrier, a program that asks what is ready gets true
// answers. Each case uses many fresh connections, since a connection changes once.
#include "sem.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

enum { CONNS = 60, BODY = 1200000 };

// Sends BODY bytes on each connection, as fast as they are taken. On every fourth one the kernel's
// own are slowed down. So the last of them are still on their way when others have taken a faster
// one.
static void bodies_server(int lfd) {
  for (int i = 0; i < CONNS; i++) {
    int fd = accept(lfd, NULL, NULL);
    unsigned rate = 30000000;
    char c;
    CHECK(fd >= 0);
    if (i % 4 == 3) CHECK(!setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
    get(fd, &c, 1);
    nonblock(fd, 1);
    put_stream(fd, i, 0, BODY, 60000);
    get(fd, &c, 1);
    close(fd);
  }
}
// A connection whose receive buffer is small, so that much of what the peer has sent is still on
// its way.
static int small_dial(void) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, ctx.port);
  int fd = socket(ctx.family, SOCK_STREAM, 0), size = 16384;
  CHECK(fd >= 0);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size));
  CHECK(!connect(fd, (void *)&a, n));
  put(fd, "r", 1);
  nonblock(fd, 1);
  return fd;
}
static int unread(int fd) {
  int n = -1;
  CHECK(!ioctl(fd, FIONREAD, &n));
  return n;
}
// Waits until there is something to read, in one of three ways.
static void await(int fd, int ep, int how) {
  struct epoll_event e;
  fd_set r;
  struct timeval t = {10, 0};
  FD_ZERO(&r);
  FD_SET(fd, &r);
  int n = how == 0 ? epoll_wait(ep, &e, 1, 10000) : how == 1 ? ready(fd, POLLIN, 10000) == POLLIN : select(fd + 1, &r, NULL, NULL, &t);
  if (n != 1) FAIL("%d: nothing comes (%d, errno %d)", how, n, errno);
}
// What was said to be readable can be read, and FIONREAD knows of it.
static void true_alarms(int none) {
  (void)none;
  static char b[8192];
  for (int i = 0; i < CONNS; i++) {
    int fd = small_dial(), ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN};
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    for (uint64_t got = 0; got < BODY;) {
      await(fd, ep, i % 3);
      int n = i % 2 ? unread(fd) : 1;
      ssize_t k = recv(fd, b, i % 5 == 4 ? 1500 : sizeof b, 0);
      if (k <= 0 || n <= 0) FAIL("connection %d at %llu: FIONREAD says %d, recv %zd (errno %d)", i, (unsigned long long)got, n, k, k < 0 ? errno : 0);
      verify(b, k, i, got);
      got += k;
    }
    CHECK(!ready(fd, POLLIN, 0) && unread(fd) == 0);
    put(fd, "e", 1);
    close(ep);
    close(fd);
  }
}
// A read that fills less than its buffer has emptied the socket (epoll(7), question 9): what comes
// later is a new edge.
static void edge_after_short_read(int none) {
  (void)none;
  static char b[30000];
  for (int i = 0; i < CONNS; i++) {
    int fd = small_dial(), ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN | EPOLLET};
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    for (uint64_t got = 0; got < BODY;) {
      if (epoll_wait(ep, &e, 1, 10000) != 1) FAIL("connection %d at %llu: no edge, %d bytes unread", i, (unsigned long long)got, unread(fd));
      ssize_t k;
      do {
        k = recv(fd, b, sizeof b, 0);
        if (k < 0 && errno == EAGAIN) break;
        CHECK(k > 0);
        verify(b, k, i, got);
        got += k;
      } while (k == sizeof b);
    }
    put(fd, "e", 1);
    close(ep);
    close(fd);
  }
}
// Two threads read one connection, each after a poll; neither sleeps while there is something to
// read.
static struct {
  int fd;
  uint64_t got;
  pthread_mutex_t m;
} pair = {-1, 0, PTHREAD_MUTEX_INITIALIZER};
static void *one_of_two(void *p) {
  static __thread char b[5000];
  (void)p;
  for (;;) {
    if (!ready(pair.fd, POLLIN, 5000)) FAIL("asleep at %llu, %d bytes unread", (unsigned long long)pair.got, unread(pair.fd));
    pthread_mutex_lock(&pair.m);
    ssize_t k = recv(pair.fd, b, sizeof b, 0);
    CHECK(k >= 0 || errno == EAGAIN);
    if (k > 0) {
      verify(b, k, 7, pair.got);
      pair.got += k;
    }
    pthread_mutex_unlock(&pair.m);
    if (k == 0) return NULL;
  }
}
static void two_server(int lfd) {
  for (int i = 0; i < CONNS / 3; i++) {
    int fd = accept(lfd, NULL, NULL);
    char c;
    CHECK(fd >= 0);
    get(fd, &c, 1);
    put_stream(fd, 7, 0, BODY, 60000);
    hear('e');
    close(fd);
  }
}
static void two_threads(int none) {
  (void)none;
  pthread_t t[2];
  for (int i = 0; i < CONNS / 3; i++) {
    pair.fd = small_dial();
    pair.got = 0;
    for (int k = 0; k < 2; k++) CHECK(!pthread_create(&t[k], NULL, one_of_two, NULL));
    while (__atomic_load_n(&pair.got, __ATOMIC_SEQ_CST) < BODY) nap(1);
    tell('e');
    for (int k = 0; k < 2; k++) pthread_join(t[k], NULL);
    close(pair.fd);
  }
}
// The peer sets an option that the library cannot know, and says nothing: no reason to wake a
// thread.
static void odd_server(int fd) {
  int one = 1;
  hear('o');
  FAILS(setsockopt(fd, 999, 1, &one, sizeof one), ENOPROTOOPT);
  tell('d');
  hear('s');
  put(fd, "12345", 5);
  hear('q');
}
static void odd_peer(int fd) {
  int ep = epoll_create1(0);
  struct epoll_event e = {.events = EPOLLIN};
  char b[10];
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
  EQ(epoll_wait(ep, &e, 1, 5), 0);
  tell('o');
  hear('d');
  EQ(epoll_wait(ep, &e, 1, 50), 0);
  EQ(ready(fd, POLLIN, 20), 0);
  EQ(unread(fd), 0);
  tell('s');
  EQ(epoll_wait(ep, &e, 1, 5000), 1);
  EQ(unread(fd), 5);
  get(fd, b, 5);
  EQ(epoll_wait(ep, &e, 1, 5), 0);
  tell('q');
}
// -- what comes before a sandbox, and is none
static void give_up_privileges(void) { CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)); }
// Whether there could be a filter, as libseccomp and others ask. Nothing is installed by that.
static void ask_for_filters(void) {
  unsigned action = SECCOMP_RET_KILL_PROCESS;
  FAILS(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, NULL, 0, 0), EFAULT);
  FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 1, NULL), EINVAL);
  FAILS(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, NULL), EFAULT);
  EQ(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &action), 0);
}
// A root directory in which there is nothing, as servers choose; only root may.
static void lock_up(void) {
  char dir[] = "/tmp/sem.XXXXXX";
  int out = open("/", O_RDONLY | O_DIRECTORY);
  CHECK(mkdtemp(dir));
  CHECK(geteuid() || !chroot(dir));
  CHECK(!unlinkat(out, dir + 1, AT_REMOVEDIR));
  close(out);
}
// To and fro, in pieces.
static void exchange(int fd, int mine, uint64_t from, uint64_t to) {
  for (; from < to; from += 16384) {
    put_stream(fd, mine, from, from + 16384, 16384);
    get_stream(fd, !mine, from, from + 16384, 16384);
  }
}
enum { HALF = 1 << 20 };
// One connection from before, and one from after it.
static void unfiltered_server(int lfd, void (*first)(void)) {
  for (int i = 0; i < 2; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    exchange(fd, 0, 0, HALF);
    if (!i) first();
    exchange(fd, 0, HALF, 2 * HALF);
    get_eof(fd);
    close(fd);
  }
}
static void unfiltered_client(int fd) {
  (void)fd;
  for (int i = 0; i < 2; i++) {
    fd = dial();
    exchange(fd, 1, 0, 2 * HALF);
    CHECK(!shutdown(fd, SHUT_WR));
    get_eof(fd);
    close(fd);
  }
}
static void privileges_server(int lfd) { unfiltered_server(lfd, give_up_privileges); }
static void nothing(void) {}
static void locked_server(int lfd) {
  lock_up();
  unfiltered_server(lfd, nothing);
}
static void questions_server(int lfd) { unfiltered_server(lfd, ask_for_filters); }
// A filter that comes by an instruction of the program's own, which the library cannot see. It
// kills for a question that only the library asks.
static long raw(long n, long a, long b, void *c) {
#if defined(__x86_64__)
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "0"(n), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
#elif defined(__aarch64__)
  register long r __asm__("x0") = a, x1 __asm__("x1") = b, x8 __asm__("x8") = n;
  register void *x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(r) : "r"(x1), "r"(x2), "r"(x8) : "memory");
  return r;
#endif
}
static void no_netlink(void) {
  struct sock_filter f[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog p = {sizeof f / sizeof *f, f};
  give_up_privileges();
  EQ(raw(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &p), 0);
}
static void unseen_server(int lfd) { unfiltered_server(lfd, no_netlink); }

// A low-water mark counts what was sent before the switch and what was sent behind it together.
static void calls_on(int fd) {
  // Calls that change nothing, by which the connection may leave TCP.
  for (int k = 0, n; k < 30; k++, nap(1)) CHECK(!ioctl(fd, FIONREAD, &n));
}
static void low_water_server(int lfd) {
  int mark = 10;
  CHECK(!setsockopt(lfd, SOL_SOCKET, SO_RCVLOWAT, &mark, sizeof mark));
  tell('l');
  for (int i = 0; i < 6; i++) {
    int fd = accept(lfd, NULL, NULL), ep = epoll_create1(0);
    char b[20];
    CHECK(fd >= 0);
    struct epoll_event e = {.events = EPOLLIN | (i % 3 == 2 ? EPOLLET : 0)};
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    calls_on(fd);
    EQ(i % 3 ? epoll_wait(ep, &e, 1, 0) : ready(fd, POLLIN, 0), 0);
    tell('m');
    EQ(i % 3 ? epoll_wait(ep, &e, 1, 5000) : ready(fd, POLLIN, 5000), 1);
    EQ(recv(fd, b, sizeof b, MSG_DONTWAIT), 10);
    close(ep);
    close(fd);
    tell('d');
  }
}
static void low_water_client(int fd) {
  hear('l');
  for (int i = 0; i < 6; i++) {
    fd = dial();
    put(fd, "12345", 5);
    calls_on(fd);
    hear('m');
    nap(i < 3 ? 0 : 100);
    put(fd, "67890", 5);
    hear('d');
    close(fd);
  }
}

const test_case CASES[] = {
    {"true_alarms", bodies_server, true_alarms, RAW},
    {"edge_after_short_read", bodies_server, edge_after_short_read, RAW},
    {"two_threads", two_server, two_threads, RAW},
    {"low_water_across_the_switch", low_water_server, low_water_client, RAW | COLD},
    {"odd_peer", odd_server, odd_peer, 0},
    {"after_no_new_privs", privileges_server, unfiltered_client, RAW},
    {"after_chroot", locked_server, unfiltered_client, RAW},
    {"after_an_unseen_filter", unseen_server, unfiltered_client, RAW | NOSHM},
    {"after_asking_for_filters", questions_server, unfiltered_client, RAW},
    {0},
};
