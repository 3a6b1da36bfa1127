// Direct placement: riomap, riounmap, riowrite.
#include "placing.h"

#include <dirent.h>

static unsigned next(unsigned *seed) { return *seed = *seed * 1664525u + 1013904223u, *seed >> 8; }

// ---- what is sent after a direct write is received after it is in place

enum { AREA = 300000, TURNS = 600 };
// Turn i writes `len` bytes at `at`, which later turns of the same eight leave alone.
static void turn(unsigned i, size_t *at, size_t *len) {
  unsigned seed = i * 7919u + 1;
  size_t third = AREA / 8;
  *len = 1 + next(&seed) % (i % 7 == 0 ? third - 8 : 200);
  *at = i % 8 * third + next(&seed) % (third - *len);
}
static void order(int fd, off_t mine, off_t theirs) {
  static unsigned char area[AREA], out[AREA];
  EQ(riomap(fd, area, AREA, PROT_WRITE, 0, mine), mine);
  say(fd, 'm');
  wait_for(fd, 'm');
  unsigned sent = 0, seen = 0;
  while (seen < TURNS) {
    for (; sent < TURNS && sent < seen + 4; sent++) {
      size_t at, len;
      turn(sent, &at, &len);
      fill(out, len, sent, 0);
      place(fd, out, len, theirs + (off_t)at);
      put(fd, &sent, sizeof sent);
    }
    unsigned got;
    get(fd, &got, sizeof got);
    EQ(got, seen);
    size_t at, len;
    turn(seen, &at, &len);
    verify(area + at, len, seen, 0);
    seen++;
  }
  EQ(riounmap(fd, area, AREA), 0);
}
static void order_server(int l) {
  int fd = take(l, 1);
  order(fd, 0, 5000);
  get_eof(fd);
}
static void order_client(int none) {
  (void)none;
  int fd = dial_with(1, 0);
  order(fd, 5000, 0);
  EQ(rclose(fd), 0);
}

// ---- bytes appear while the program makes no call, and whatever it has not read

static void watch(volatile unsigned char *byte, unsigned char value) {
  double end = now() + seconds;
  while (*byte != value) {
    if (now() > end) FAIL("byte %d does not come, but %d", value, *byte);
    nap(0);
  }
}
static void by_itself(int fd, int first) {
  static unsigned char in[100000], out[100000];
  const size_t sizes[] = {1, 8, 64, 4096, 65536, 100000};
  EQ(riomap(fd, in, sizeof in, PROT_WRITE, 0, 0), 0);
  say(fd, 'm');
  wait_for(fd, 'm');
  for (unsigned i = 1; i <= 48; i++) {
    size_t len = sizes[i % 6];
    fill(out, len, i, 0);
    out[len - 1] = (unsigned char)i;
    for (int side = 0; side < 2; side++) {
      if (side == first) {
        place(fd, out, len, 0);
      } else {
        watch(in + len - 1, (unsigned char)i);
        verify(in, len - 1, i, 0);
        memset(in, 0, sizeof in);  // before the other side writes again
      }
    }
    if (i % 16 == 0) say(fd, 'u');  // lies there unread
  }
  for (int i = 0; i < 3; i++) wait_for(fd, 'u');
  EQ(riounmap(fd, in, sizeof in), 0);
  say(fd, 'e');
  wait_for(fd, 'e');
}
static void itself_server(int l) { by_itself(take(l, 1), 0); }
static void itself_client(int none) { (void)none, by_itself(dial_with(1, 0), 1); }

static void unread_server(int l) {
  enum { N = 8 << 20 };
  unsigned char *in = calloc(N, 1);
  int fd = take(l, 1);
  EQ(riomap(fd, in, N, PROT_WRITE, 0, 1000), 1000);
  say(fd, 'm');
  watch(in + N - 1, 77);  // behind much that is unread
  verify(in, N - 1, 9, 0);
  get_stream(fd, 3, 2000, 100);
  say(fd, 'e');
}
static void unread_client(int none) {
  enum { N = 8 << 20 };
  unsigned char *out = malloc(N);
  int fd = dial_with(1, 0);
  (void)none;
  wait_for(fd, 'm');
  put_stream(fd, 3, 2000, 20);
  fill(out, N, 9, 0);
  out[N - 1] = 77;
  place(fd, out, N, 1000);
  wait_for(fd, 'e');
}

// ---- what can be mapped, and what can be written

static void ranges_server(int l) {
  static unsigned char a[10000], b[500], c[500], d[500], other[100];
  int fd = take(l, 3);
  EQ(option(fd, SOL_RDMA, RDMA_IOMAPSIZE), 3);
  FAILS(riomap(fd, a, sizeof a, PROT_READ, 0, 0), EINVAL);
  FAILS(riomap(fd, a, sizeof a, PROT_WRITE | PROT_EXEC, 0, 0), EINVAL);
  FAILS(riomap(fd, a, 0, PROT_WRITE, 0, 0), EINVAL);
  FAILS(riomap(fd, a, sizeof a, PROT_WRITE, 0, -2), EINVAL);
  FAILS(riomap(fd, a, sizeof a, PROT_WRITE, 0, INT64_MAX - 5), EINVAL);
  FAILS(riomap(fd, a, (size_t)1 << 32, PROT_WRITE, 0, 0), EINVAL);
  FAILS(riomap(fd, NULL, 100, PROT_WRITE, 0, 0), EFAULT);
  void *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(constant != MAP_FAILED);
  FAILS(riomap(fd, constant, 4096, PROT_WRITE, 0, 0), EFAULT);
  FAILS(riounmap(fd, a, sizeof a), EINVAL);
  EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 4096), 4096);
  EQ(riomap(fd, b, sizeof b, PROT_WRITE, 0, 4096 + sizeof a), 4096 + sizeof a);
  FAILS(riomap(fd, c, sizeof c, PROT_WRITE, 0, 4000), EEXIST);
  FAILS(riomap(fd, c, sizeof c, PROT_WRITE, 0, 4096 + sizeof a - 1), EEXIST);
  off_t chosen = riomap(fd, c, sizeof c, PROT_WRITE, 0, -1);
  CHECK(chosen >= 0);
  FAILS(riomap(fd, d, sizeof d, PROT_WRITE, 0, 1 << 20), ENOMEM);
  EQ(riomap(fd, other, sizeof other, PROT_NONE, 0, 2 << 20), 2 << 20);
  put(fd, &chosen, sizeof chosen);
  wait_for(fd, 'w');
  verify(a, 100, 1, 0);
  verify(a + sizeof a - 100, 100, 2, 0);
  verify(b, sizeof b, 2, 100);
  verify(c + 200, 300, 3, 0);
  for (size_t i = 0; i < sizeof other; i++) EQ(other[i], 0);
  FAILS(riounmap(fd, a, sizeof a - 1), EINVAL);
  EQ(riounmap(fd, b, sizeof b), 0);
  EQ(riomap(fd, d, sizeof d, PROT_WRITE, 0, 1 << 20), 1 << 20);
  EQ(riounmap(fd, other, sizeof other), 0);
  say(fd, 'd');
  wait_for(fd, 'w');
  verify(d, sizeof d, 4, 0);
  say(fd, 'e');
  get_eof(fd);
}
static void ranges_client(int none) {
  static unsigned char out[20000];
  (void)none;
  int fd = dial_with(3, 0);
  off_t chosen;
  FAILS(riowrite(fd, out, 1, -1, 0), EINVAL);
  get(fd, &chosen, sizeof chosen);
  EQ(riowrite(fd, out, 0, 0, 0), 0);
  FAILS(riowrite(fd, out, 1, 4095, 0), EFAULT);
  FAILS(riowrite(fd, out, 1, 4096 + 10500, 0), EFAULT);
  FAILS(riowrite(fd, out, 1, 2 << 20, 0), EFAULT);
  fill(out, 100, 1, 0);
  EQ(riowrite(fd, out, 100, 4096, 0), 100);
  // Across two mappings, and no further than they go.
  fill(out, 1000, 2, 0);
  EQ(riowrite(fd, out, 1000, 4096 + 9900, 0), 600);
  fill(out, 1000, 3, 0);
  EQ(riowrite(fd, out, 1000, chosen + 200, 0), 300);
  say(fd, 'w');
  wait_for(fd, 'd');
  FAILS(riowrite(fd, out, 1, 4096 + 10000, 0), EFAULT);
  fill(out, 1000, 4, 0);
  EQ(riowrite(fd, out, 1000, 1 << 20, 0), 500);
  say(fd, 'w');
  wait_for(fd, 'e');
  EQ(rclose(fd), 0);
}

// A peer that takes no mappings gets none.
static void none_server(int l) {
  char a[100];
  int fd = take(l, 0);
  FAILS(riomap(fd, a, sizeof a, PROT_WRITE, 0, 0), ENOMEM);
  say(fd, 'x');
}
static void none_client(int none) {
  (void)none;
  wait_for(dial_with(0, 0), 'x');
}

static void solo(int l) {
  char a[100];
  FAILS(riomap(l, a, sizeof a, PROT_WRITE, 0, 0), ENOTCONN);
  FAILS(riowrite(l, a, sizeof a, 0, 0), ENOTCONN);
  FAILS(riounmap(l, a, sizeof a), EINVAL);
  FAILS(riomap(-1, a, sizeof a, PROT_WRITE, 0, 0), EBADF);
  FAILS(riowrite(-1, a, sizeof a, 0, 0), EBADF);
  FAILS(riounmap(-1, a, sizeof a), EBADF);
  FAILS(riomap(0, a, sizeof a, PROT_WRITE, 0, 0), EBADF);
  set_option(l, SOL_RDMA, RDMA_IOMAPSIZE, 300);
  EQ(option(l, SOL_RDMA, RDMA_IOMAPSIZE), 256);
  set_option(l, SOL_RDMA, RDMA_IOMAPSIZE, 1 << 20);
  EQ(option(l, SOL_RDMA, RDMA_IOMAPSIZE), 1024);
}

// ---- taking memory back

// The peer writes all the time; what was taken back does not change, and the connection stays.
static void unmapped_server(int l) {
  static unsigned char a[5000], before[5000];
  int fd = take(l, 1);
  for (int i = 0; i < 8; i++) {
    EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 100), 100);
    say(fd, 'm');
    nap(i % 5);
    EQ(riounmap(fd, a, sizeof a), 0);
    memcpy(before, a, sizeof a);
    nap(2);
    CHECK(memcmp(before, a, sizeof a) == 0);
    wait_for(fd, 'f');
    CHECK(memcmp(before, a, sizeof a) == 0);
  }
  get_eof(fd);
}
static void unmapped_client(int none) {
  static unsigned char out[5000];
  (void)none;
  int fd = dial_with(1, 0);
  for (int i = 0; i < 8; i++) {
    wait_for(fd, 'm');
    ssize_t n;
    for (unsigned k = 0;; k++) {
      memset(out, (int)k, sizeof out);
      n = (ssize_t)riowrite(fd, out, sizeof out, 100, 0);
      if (n < 0) break;
      CHECK(n > 0);
    }
    CHECK(errno == EFAULT);
    say(fd, 'f');
  }
  EQ(rclose(fd), 0);
}

// Each mapping is told by a message, which costs a credit where it must; none is lost by that.
static void many(int fd) {
  static unsigned char a[100], out[100];
  for (int i = 0; i < 60; i++) {
    EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, i * 1000), i * 1000);
    say(fd, 'm');
    wait_for(fd, 'm');
    fill(out, sizeof out, i, 0);
    place(fd, out, sizeof out, i * 1000);
    say(fd, 'w');
    wait_for(fd, 'w');
    verify(a, sizeof a, i, 0);
    EQ(riounmap(fd, a, sizeof a), 0);
  }
  put_stream(fd, 1, 5000, 3);
  get_stream(fd, 1, 5000, 1000);
}
static void many_server(int l) {
  set_option(l, SOL_RDMA, RDMA_RQSIZE, 16);
  many(take(l, 1));
}
static void many_client(int none) { (void)none, many(dial_with(1, 16)); }

// The last rclose takes all mappings back.
static void closed_server(int l) {
  static unsigned char a[5000], before[5000];
  int fd = take(l, 1);
  EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 0), 0);
  say(fd, 'm');
  watch(a, 1);
  EQ(rclose(fd), 0);
  memcpy(before, a, sizeof a);
  nap(50);
  CHECK(memcmp(before, a, sizeof a) == 0);
  tell('c');
}
static void closed_client(int none) {
  static unsigned char out[5000];
  (void)none;
  int fd = dial_with(1, 0);
  signal(SIGPIPE, SIG_IGN);
  wait_for(fd, 'm');
  memset(out, 1, sizeof out);
  double end = now() + seconds;
  ssize_t n;
  while ((n = (ssize_t)riowrite(fd, out, sizeof out, 0, 0)) > 0) CHECK(now() < end);
  // The mapping goes a moment before the connection.
  CHECK(errno == EPIPE || errno == ECONNRESET || errno == EFAULT);
  while (errno == EFAULT) {
    CHECK(now() < end);
    n = (ssize_t)riowrite(fd, out, sizeof out, 0, 0);
    CHECK(n == -1);
  }
  CHECK(errno == EPIPE || errno == ECONNRESET);
  hear('c');
}

static int piped;
static void on_pipe(int sig) { (void)sig, piped++; }
static void shut_server(int l) {
  char a[10];
  int fd = take(l, 1);
  EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 0), 0);
  say(fd, 'm');
  get_eof(fd);
}
static void shut_client(int none) {
  char a[10];
  (void)none;
  int fd = dial_with(1, 0);
  wait_for(fd, 'm');
  signal(SIGPIPE, on_pipe);
  EQ(rshutdown(fd, SHUT_WR), 0);
  FAILS(riowrite(fd, a, 1, 0, 0), EPIPE);
  EQ(piped, 1);
  FAILS(riowrite(fd, a, 1, 0, MSG_NOSIGNAL), EPIPE);
  EQ(piped, 1);
}

// ---- a receiver that does nothing: a writer that may not wait is told so, and hears when there is
// room

static void stopped_server(int l) {
  enum { N = 4 << 20 };
  unsigned char *in = calloc(N, 1);
  int fd = take(l, 1);
  pid_t me = getpid();
  EQ(riomap(fd, in, N, PROT_WRITE, 0, 0), 0);
  put(fd, &me, sizeof me);
  wait_for(fd, 'e');
  verify(in, N, 6, 0);
  get_eof(fd);
}
static int is_stopped(pid_t process, const char *thread) {
  char name[300], text[512] = "";
  snprintf(name, sizeof name, "/proc/%d/task/%s/stat", (int)process, thread);
  FILE *f = fopen(name, "r");
  if (!f) return 1;
  size_t n = fread(text, 1, sizeof text - 1, f);
  fclose(f);
  char *end = n ? strrchr(text, ')') : NULL;
  return end && end[1] == ' ' && end[2] == 'T';
}
// The thread that takes the signal may wait for a processor on a busy machine, and the others run
// meanwhile.
static void stop(pid_t process) {
  EQ(kill(process, SIGSTOP), 0);
  char name[64];
  snprintf(name, sizeof name, "/proc/%d/task", (int)process);
  for (int all = 0; !all;) {
    DIR *d = opendir(name);
    CHECK(d);
    all = 1;
    for (struct dirent *e; (e = readdir(d));)
      if (e->d_name[0] != '.') all &= is_stopped(process, e->d_name);
    closedir(d);
    if (!all) usleep(1000);
  }
}
static void stopped_client(int none) {
  enum { N = 4 << 20 };
  unsigned char *out = malloc(N);
  (void)none;
  pid_t peer;
  int fd = dial_with(1, 0);
  get(fd, &peer, sizeof peer);
  fill(out, N, 6, 0);
  stop(peer);
  size_t done = 0;
  while (done < N) {
    ssize_t n = (ssize_t)riowrite(fd, out + done, N - done, done, MSG_DONTWAIT);
    if (n > 0) {
      done += n;
      continue;
    }
    CHECK(n == -1 && errno == EAGAIN);
    if (ready(fd, POLLOUT, 50) == 0) break;
  }
  // A device places without the receiver's help.
  CHECK(getenv("RS_ADDRESS") || done < N);
  if (done < N) {
    EQ(kill(peer, SIGCONT), 0);
    EQ(ready(fd, POLLOUT, 10000), POLLOUT);
  }
  kill(peer, SIGCONT);
  place(fd, out + done, N - done, done);
  say(fd, 'e');
  EQ(rclose(fd), 0);
}

// ---- threads

enum { WRITERS = 3, EACH = 400, PART = 3000 };
static int shared_fd;
static void *writer(void *arg) {
  intptr_t me = (intptr_t)arg;
  static unsigned char out[WRITERS][PART];
  for (int i = 0; i < EACH; i++) {
    fill(out[me], PART, me * 1000 + i, 0);
    place(shared_fd, out[me], PART, me * PART);
  }
  return NULL;
}
static void threads_server(int l) {
  static unsigned char in[WRITERS * PART];
  int fd = take(l, 4);
  EQ(riomap(fd, in, sizeof in, PROT_WRITE, 0, 0), 0);
  say(fd, 'm');
  get_stream(fd, 2, 4 << 20, 3001);
  wait_for(fd, 'e');
  for (int i = 0; i < WRITERS; i++) verify(in + i * PART, PART, i * 1000 + EACH - 1, 0);
}
static void threads_client(int none) {
  pthread_t t[WRITERS];
  (void)none;
  shared_fd = dial_with(4, 0);
  wait_for(shared_fd, 'm');
  for (intptr_t i = 0; i < WRITERS; i++) EQ(pthread_create(&t[i], NULL, writer, (void *)i), 0);
  put_stream(shared_fd, 2, 4 << 20, 5000);
  for (int i = 0; i < WRITERS; i++) EQ(pthread_join(t[i], NULL), 0);
  say(shared_fd, 'e');
}

// ---- mappings are those of the process that made them

static void fork_server(int l) {
  static unsigned char in[1000];
  int fd = take(l, 2), status;
  EQ(riomap(fd, in, sizeof in, PROT_WRITE, 0, 0), 0);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    char a[10];
    FAILS(riomap(fd, a, sizeof a, PROT_WRITE, 0, 5000), EOPNOTSUPP);
    FAILS(riounmap(fd, in, sizeof in), EINVAL);
    EQ(rclose(fd), 0);
    _exit(0);
  }
  EQ(waitpid(child, &status, 0), child);
  EQ(status, 0);
  say(fd, 'm');
  wait_for(fd, 'w');
  verify(in, sizeof in, 8, 0);
  say(fd, 'e');
}
static void fork_client(int none) {
  static unsigned char out[1000];
  (void)none;
  int fd = dial_with(2, 0);
  wait_for(fd, 'm');
  fill(out, sizeof out, 8, 0);
  place(fd, out, sizeof out, 0);
  say(fd, 'w');
  wait_for(fd, 'e');
}

const rs_case CASES[] = {
    {"order", order_server, order_client, RAW},
    {"by_itself", itself_server, itself_client, RAW},
    {"behind_unread", unread_server, unread_client, RAW},
    {"ranges", ranges_server, ranges_client, RAW},
    {"none_taken", none_server, none_client, RAW},
    {"not_connected", solo, NULL, SOLO},
    {"unmapped", unmapped_server, unmapped_client, RAW},
    {"many", many_server, many_client, RAW},
    {"closed", closed_server, closed_client, RAW},
    {"shut", shut_server, shut_client, RAW},
    {"stopped", stopped_server, stopped_client, RAW},
    {"threads", threads_server, threads_client, RAW},
    {"forked", fork_server, fork_client, RAW},
    {0},
};
