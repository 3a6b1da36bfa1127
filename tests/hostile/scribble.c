// A victim, a hostile peer with a valid attachment, and an honest peer beside it. All three are
// ordinary programs that are preloaded; `scribble.sh` starts them.
//
//   scribble victim PORT
//       echoes every connection in a thread of its own, until SIGTERM. Its buffers end at pages
//       that cannot be touched. Each call has a time-out; one that takes much longer is reported.
//   scribble hostile PORT MS SEED
//       attaches, then writes over all memory that it shares with the victim, for so long
//   scribble honest PORT MS
//       exchanges checked bytes for so long, or until SIGTERM
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, BUFFER = 16 * PAGE, TIMEOUT_MS = 1000, LATE_MS = 20000, WARM = 60, PIECE = 3000 };

static void die(const char *what) {
  fprintf(stderr, "scribble: %s: %s\n", what, strerror(errno));
  exit(1);
}

static long now_ms(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static _Atomic int late;

// A call that waits must come back when its time is over; the machine may be busy.
static void in_time(long began, const char *call) {
  long took = now_ms() - began;
  if (took > LATE_MS) {
    late = 1;
    fprintf(stderr, "LATE %s: %ld ms\n", call, took);
  }
}

static void limit(int fd) {
  struct timeval t = {TIMEOUT_MS / 1000, TIMEOUT_MS % 1000 * 1000};
  if (setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t) || setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof t))
    die("setsockopt");
}

// BUFFER bytes with a wall on either side.
static char *walled(void) {
  char *p = mmap(NULL, BUFFER + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED || mprotect(p + PAGE, BUFFER, PROT_READ | PROT_WRITE)) die("mmap");
  return p + PAGE;
}

// -------------------------------------------------------------------------------- the victim

// Waits for readability in one of four ways; false when nothing came in time.
static int wait_readable(int fd, int epoll, unsigned way) {
  long began = now_ms();
  struct pollfd p = {fd, POLLIN, 0};
  struct epoll_event e;
  int r = 1;
  switch (way) {
    case 0: return 1;
    case 1: r = poll(&p, 1, TIMEOUT_MS); break;
    default: r = epoll_wait(epoll, &e, 1, TIMEOUT_MS); break;
  }
  in_time(began, way == 1 ? "poll" : "epoll_wait");
  return r > 0;
}

static void *serve(void *arg) {
  static _Atomic unsigned serial;
  int fd = (int)(intptr_t)arg;
  unsigned way = serial++ % 4;
  char *wall = walled();
  int epoll = epoll_create1(EPOLL_CLOEXEC), silent = 0, empty = 1;
  struct epoll_event e = {.events = EPOLLIN | (way == 3 ? EPOLLET : 0)};
  if (way >= 2) epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &e);
  limit(fd);
  // Half a minute without anything ends it.
  while (silent < 30000 / TIMEOUT_MS) {
    // With edges everything is taken before the next wait.
    if ((way < 3 || empty) && !wait_readable(fd, epoll, way)) {
      silent++;
      continue;
    }
    // Up to the wall, in differing lengths.
    size_t len = 1 + (size_t)rand() % BUFFER;
    char *at = wall + BUFFER - len;
    long began = now_ms();
    ssize_t n = recv(fd, at, len, way ? MSG_DONTWAIT : 0);
    in_time(began, "recv");
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
      silent += !way;
      empty = 1;
      continue;
    }
    if (n <= 0) break;
    if ((size_t)n > len) die("recv gave more than there was room for");
    silent = empty = 0;
    char *out = wall + BUFFER - n;
    memmove(out, at, (size_t)n);
    for (ssize_t done = 0; done < n;) {
      began = now_ms();
      ssize_t m = send(fd, out + done, (size_t)(n - done), MSG_NOSIGNAL);
      in_time(began, "send");
      if (m < 0 && errno == EAGAIN && silent++ < 30) continue;
      if (m <= 0) goto end;
      done += m;
    }
  }
end:
  close(epoll);
  close(fd);
  munmap(wall - PAGE, BUFFER + 2 * PAGE);
  return NULL;
}

static void on_term(int sig) {
  (void)sig;
  exit(late ? 3 : 0);
}

static _Noreturn void victim(int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int one = 1, l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  signal(SIGPIPE, SIG_IGN);
  signal(SIGTERM, on_term);
  setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(l, (struct sockaddr *)&a, sizeof a) || listen(l, 64)) die("listen");
  for (;;) {
    int fd = accept4(l, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0) continue;
    pthread_t t;
    if (pthread_create(&t, NULL, serve, (void *)(intptr_t)fd)) die("pthread_create");
    pthread_detach(t);
  }
}

// -------------------------------------------------------------------------------- the peers

static int reach(int port) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) die("connect");
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  limit(fd);
  return fd;
}

// Sends LEN bytes that depend on ROUND and wants them back.
static int exchange(int fd, unsigned round, size_t len) {
  static char out[1 << 16], in[1 << 16];
  for (size_t i = 0; i < len; i++) out[i] = (char)(round * 31 + i * 7 + i / 251);
  for (size_t done = 0; done < len;) {
    ssize_t n = send(fd, out + done, len - done, MSG_NOSIGNAL);
    // A call with a time-out is never restarted, whatever the handler was installed with.
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return 0;
    done += (size_t)n;
  }
  int patience = 60;
  for (size_t done = 0; done < len;) {
    ssize_t n = recv(fd, in + done, len - done, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN && patience-- > 0) continue;
    if (n <= 0) return 0;
    done += (size_t)n;
  }
  if (memcmp(in, out, len)) {
    fprintf(stderr, "WRONG bytes in round %u\n", round);
    exit(4);
  }
  return 1;
}

static volatile sig_atomic_t enough;

static void on_enough(int sig) { enough = sig; }

static int honest(int port, long ms) {
  long end = now_ms() + ms;
  struct sigaction action = {.sa_handler = on_enough, .sa_flags = SA_RESTART};
  sigaction(SIGTERM, &action, NULL);
  int fd = reach(port);
  unsigned round = 0;
  while ((!enough && now_ms() < end) || round < WARM) {
    if (!exchange(fd, round, 1 + round * 977 % (1 << 16))) die("the honest connection broke");
    round++;
  }
  close(fd);
  printf("honest %u\n", round);
  return 0;
}

static struct { uint64_t *at; size_t words; } shared[64];
static int areas;
static uint64_t state;

static uint64_t rnd(void) {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

// All memory that is shared with the victim: the arenas that this process has mapped.
static void find_shared(void) {
  FILE *f = fopen("/proc/self/maps", "re");
  char line[512];
  if (!f) die("maps");
  areas = 0;
  while (fgets(line, sizeof line, f) && areas < 64) {
    unsigned long from, to;
    char mode[8];
    if (sscanf(line, "%lx-%lx %7s", &from, &to, mode) == 3 && !strcmp(mode, "rw-s") && strstr(line, "/memfd:")) {
      shared[areas].at = (uint64_t *)from;
      shared[areas++].words = (to - from) / 8;
    }
  }
  fclose(f);
}

// Pages of an area that are in use: heads, lanes, buffers with something in them.
static struct { unsigned area; size_t page; } hot[4096];
static size_t hots;

static void find_hot(void) {
  static unsigned char resident[1 << 20];
  hots = 0;
  for (int a = 0; a < areas; a++) {
    size_t pages = shared[a].words / (PAGE / 8);
    if (pages > sizeof resident || mincore(shared[a].at, pages * PAGE, resident)) continue;
    for (size_t p = 0; p < pages && hots < sizeof hot / sizeof *hot; p++)
      if (resident[p] & 1) {
        hot[hots].area = (unsigned)a;
        hot[hots++].page = p;
      }
  }
}

// One act of malice. Most of it where there is something.
static void scribble(void) {
  unsigned a = (unsigned)(rnd() % (unsigned)areas);
  size_t at = rnd() % shared[a].words;
  if (rnd() % 16 && hots) {
    size_t h = rnd() % hots;
    a = hot[h].area;
    at = hot[h].page * (PAGE / 8) + rnd() % (PAGE / 8);
  }
  size_t words = shared[a].words;
  volatile uint64_t *w = shared[a].at + at;
  switch (rnd() % 8) {
    case 0: *w = rnd(); break;
    case 1: *w = 0; break;
    case 2: *w = ~0ull; break;
    case 3: *w ^= 1ull << rnd() % 64; break;
    case 4: *w += 1; break;
    case 5: *w = shared[a].at[rnd() % words]; break;
    // A word of the lanes with a plausible lap.
    case 6: *w = (*w & 0xffffffff00000000ull) | (uint32_t)rnd(); break;
    default:
      if (rnd() % 64 == 0) madvise((void *)((uintptr_t)w & ~(uintptr_t)(PAGE - 1)), PAGE, MADV_REMOVE);
      else for (size_t i = 0; i < 64 && at + i < words; i++) w[i] = rnd();
  }
}

static _Noreturn void *chatter(void *arg) {
  static char bytes[1 << 16];
  int fd = (int)(intptr_t)arg;
  for (;;) {
    send(fd, bytes, 1 + (size_t)rand() % sizeof bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
    recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    usleep((unsigned)rand() % 300);
  }
}

static int hostile(int port, long ms, uint64_t seed) {
  long end = now_ms() + ms;
  int fds[3];
  state = seed * 0x9e3779b97f4a7c15ull + 1;
  // On a busy machine the two ends may miss each other; then they stay on TCP, and others try.
  for (int tries = 0; tries < 10 && areas == 0; tries++) {
    for (int i = 0; i < 3; i++) {
      fds[i] = reach(port);
      for (unsigned r = 0; r < WARM; r++)
        if (!exchange(fds[i], r, PIECE)) die("warming up");
    }
    find_shared();
  }
  if (areas == 0) {
    fprintf(stderr, "scribble: nothing is shared\n");
    return 5;
  }
  printf("hostile %d\n", areas);
  fflush(stdout);
  // What now goes wrong in this process is its own affair: the last connection is left silent.
  signal(SIGSEGV, SIG_DFL);
  pthread_t t;
  for (int i = 0; i < 2; i++) pthread_create(&t, NULL, chatter, (void *)(intptr_t)fds[i]);
  // In bursts of differing lengths, so that the victim sees many states in between.
  while (now_ms() < end) {
    if (rnd() % 64 == 0 || !hots) find_hot();
    for (uint64_t n = 1 + rnd() % (1 << rnd() % 12); n > 0; n--) scribble();
    if (rnd() % 4 == 0) usleep((unsigned)(rnd() % 1000));
  }
  _exit(0);
}

int main(int argc, char **argv) {
  if (argc >= 3 && !strcmp(argv[1], "victim")) victim(atoi(argv[2]));
  if (argc >= 4 && !strcmp(argv[1], "honest")) return honest(atoi(argv[2]), atol(argv[3]));
  if (argc >= 5 && !strcmp(argv[1], "hostile")) return hostile(atoi(argv[2]), atol(argv[3]), strtoull(argv[4], NULL, 10));
  fprintf(stderr, "usage: scribble victim|honest|hostile PORT ...\n");
  return 2;
}
