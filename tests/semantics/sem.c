// The harness of the semantics tests: see sem.h.
#include "sem.h"

#include <dirent.h>
#include <stdarg.h>
#include <sys/prctl.h>

sem_ctx ctx;
static const char *case_name = "?";
enum { FD_IN = 200, FD_OUT = 201, FD_CTL = 202 };

void fail_at(const char *file, int line, const char *fmt, ...) {
  char b[700];
  int n = snprintf(b, sizeof b, "%s %s:%d: ", ctx.is_client ? "client" : "server", file, line);
  va_list ap;
  va_start(ap, fmt);
  n += vsnprintf(b + n, sizeof b - n - 2, fmt, ap);
  va_end(ap);
  if (n > (int)sizeof b - 2) n = sizeof b - 2;
  b[n++] = '\n';
  if (write(2, b, n) < 0) _exit(98);
  _exit(99);
}

double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}
void nap(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
  while (nanosleep(&t, &t) && errno == EINTR)
    ;
}
double cpu_used(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1e-6;
}

// ---------------------------------------------------------------- notes

static double slowness(void) {
  const char *t = getenv("SEM_TIMEOUT");
  double times = t ? atof(t) / 30 : 1;
  return times > 1 ? times : 1;
}
int patience(int ms) {
  ms = (int)(ms * slowness());
  return ms >= 1000 && ms < 20000 ? 20000 : ms;
}
double most_at_once(void) { return 4 * slowness(); }
int often(int n) { return (int)(n / (slowness() * slowness())); }
int storm_us(void) {
  double s = slowness();
  return (int)(100 * s * s * s);
}

void tell(char c) { CHECK(write(FD_OUT, &c, 1) == 1); }
static void hear_bytes(void *b, size_t n, const char *what) {
  for (size_t k = 0; k < n;) {
    struct pollfd p = {FD_IN, POLLIN, 0};
    int r = poll(&p, 1, patience(15000));
    if (r < 0 && errno == EINTR) continue;
    if (r == 0) FAIL("the other side did not say %s", what);
    ssize_t m = read(FD_IN, (char *)b + k, n - k);
    if (m < 0 && errno == EINTR) continue;
    if (m <= 0) FAIL("the other side ended without saying %s", what);
    k += m;
  }
}
void hear(char c) {
  char got, want[4] = {'\'', c, '\'', 0};
  hear_bytes(&got, 1, want);
  if (got != c) FAIL("heard '%c', not '%c'", got, c);
}
void tell_int(long v) { CHECK(write(FD_OUT, &v, sizeof v) == sizeof v); }
long hear_int(void) {
  long v;
  hear_bytes(&v, sizeof v, "a number");
  return v;
}

// ---------------------------------------------------------------- sockets

socklen_t address(struct sockaddr_storage *a, int port) {
  const char *given;
  memset(a, 0, sizeof *a);
  if (ctx.family == AF_INET6) {
    struct sockaddr_in6 *s = (void *)a;
    s->sin6_family = AF_INET6;
    s->sin6_addr = in6addr_loopback;
    if ((given = getenv("SEM_ADDRESS6")) && *given) CHECK(inet_pton(AF_INET6, given, &s->sin6_addr) == 1);
    s->sin6_port = htons(port);
    return sizeof *s;
  }
  struct sockaddr_in *s = (void *)a;
  s->sin_family = AF_INET;
  s->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if ((given = getenv("SEM_ADDRESS")) && *given) CHECK(inet_pton(AF_INET, given, &s->sin_addr) == 1);
  s->sin_port = htons(port);
  return sizeof *s;
}
int listener(int *port) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, 0);
  int fd = socket(ctx.family, SOCK_STREAM, 0), one = 1;
  CHECK(fd >= 0);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one));
  CHECK(!bind(fd, (void *)&a, n));
  CHECK(!listen(fd, 512));
  CHECK(!getsockname(fd, (void *)&a, &n));
  *port = ntohs(ctx.family == AF_INET6 ? ((struct sockaddr_in6 *)&a)->sin6_port : ((struct sockaddr_in *)&a)->sin_port);
  return fd;
}
int dial_port(int port) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, port);
  int fd = socket(ctx.family, SOCK_STREAM, 0);
  CHECK(fd >= 0);
  CHECK(!connect(fd, (void *)&a, n));
  return fd;
}
int dial(void) { return dial_port(ctx.port); }
void nonblock(int fd, int on) {
  int f = fcntl(fd, F_GETFL);
  CHECK(f >= 0 && !fcntl(fd, F_SETFL, on ? f | O_NONBLOCK : f & ~O_NONBLOCK));
}
short ready(int fd, short events, int ms) {
  struct pollfd p = {fd, events, 0};
  int r;
  do r = poll(&p, 1, ms < 1000 ? ms : patience(ms));
  while (r < 0 && errno == EINTR);
  CHECK(r >= 0 && r == (p.revents != 0));
  return p.revents;
}
void warm(int fd, int i_start) {
  char b[16384];
  for (long k = 0; k < ctx.warm; k += sizeof b) {
    if (i_start) {
      fill(b, sizeof b, 77, k);
      put(fd, b, sizeof b);
      get(fd, b, sizeof b);
      verify(b, sizeof b, 77, k);
    } else {
      get(fd, b, sizeof b);
      put(fd, b, sizeof b);
    }
  }
}

// ---------------------------------------------------------------- bytes

static uint64_t mix(uint64_t seed, uint64_t i) {
  uint64_t x = (i + 1) * 0x9E3779B97F4A7C15ull ^ seed * 0xD1B54A32D192ED03ull;
  x ^= x >> 29;
  x *= 0xBF58476D1CE4E5B9ull;
  return x ^ x >> 32;
}
uint64_t rnd(uint64_t *s) { return mix(12345, (*s)++); }
void fill(void *buf, size_t n, uint64_t seed, uint64_t pos) {
  unsigned char *b = buf;
  while (n) {
    uint64_t w = mix(seed, pos >> 3);
    unsigned o = pos & 7, m = 8 - o;
    w >>= 8 * o;
    if (m > n) m = n;
    memcpy(b, &w, m);
    b += m, n -= m, pos += m;
  }
}
void verify(const void *buf, size_t n, uint64_t seed, uint64_t pos) {
  const unsigned char *b = buf;
  while (n) {
    uint64_t w = mix(seed, pos >> 3);
    unsigned o = pos & 7, m = 8 - o;
    w >>= 8 * o;
    if (m > n) m = n;
    if (memcmp(b, &w, m)) FAIL("wrong byte near position %llu of the stream", (unsigned long long)pos);
    b += m, n -= m, pos += m;
  }
}
void put(int fd, const void *buf, size_t n) {
  const char *b = buf;
  while (n) {
    ssize_t k = send(fd, b, n, MSG_NOSIGNAL);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && errno == EAGAIN) {
      CHECK(ready(fd, POLLOUT, 15000));
      continue;
    }
    CHECK(k > 0);
    b += k, n -= k;
  }
}
void get(int fd, void *buf, size_t n) {
  char *b = buf;
  while (n) {
    ssize_t k = recv(fd, b, n, 0);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && errno == EAGAIN) {
      CHECK(ready(fd, POLLIN, 15000));
      continue;
    }
    if (k == 0) FAIL("end of file, %zu bytes too early", n);
    CHECK(k > 0);
    b += k, n -= k;
  }
}
void put_stream(int fd, uint64_t seed, uint64_t from, uint64_t to, size_t max) {
  char *b = malloc(max);
  uint64_t r = seed;
  while (from < to) {
    size_t n = 1 + rnd(&r) % max;
    if (n > to - from) n = to - from;
    fill(b, n, seed, from);
    put(fd, b, n);
    from += n;
  }
  free(b);
}
void get_stream(int fd, uint64_t seed, uint64_t from, uint64_t to, size_t max) {
  char *b = malloc(max);
  uint64_t r = seed + 99;
  while (from < to) {
    size_t n = 1 + rnd(&r) % max;
    if (n > to - from) n = to - from;
    ssize_t k = recv(fd, b, n, 0);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0 && errno == EAGAIN) {
      CHECK(ready(fd, POLLIN, 15000));
      continue;
    }
    if (k == 0) FAIL("end of file at %llu of %llu", (unsigned long long)from, (unsigned long long)to);
    CHECK(k > 0 && (size_t)k <= n);
    verify(b, k, seed, from);
    from += k;
  }
  free(b);
}
void get_eof(int fd) {
  char c;
  ssize_t k;
  while ((k = recv(fd, &c, 1, 0)) < 0 && (errno == EINTR || errno == EAGAIN))
    if (errno == EAGAIN) CHECK(ready(fd, POLLIN, 15000));
  if (k) FAIL("wanted the end of the stream, got %zd (%s)", k, k < 0 ? strerror(errno) : "data");
}
void pump(int fd, uint64_t out, uint64_t in, uint64_t n, size_t max) {
  char *b = malloc(max), *w = malloc(max);
  uint64_t sent = 0, got = 0, r = out, wn = 0, wo = 0;
  while (sent < n || got < n) {
    short ev = (sent < n ? POLLOUT : 0) | (got < n ? POLLIN : 0);
    short rev = ready(fd, ev, 15000);
    if (!rev) FAIL("nothing moves: sent %llu, got %llu", (unsigned long long)sent, (unsigned long long)got);
    if (got < n && rev & (POLLIN | POLLHUP | POLLERR)) {
      size_t m = 1 + rnd(&r) % max;
      if (m > n - got) m = n - got;
      ssize_t k = recv(fd, b, m, 0);
      if (k == 0) FAIL("end of file at %llu", (unsigned long long)got);
      if (k < 0 && errno != EAGAIN) FAIL("recv: %s", strerror(errno));
      if (k > 0) verify(b, k, in, got), got += k;
    }
    if (sent < n && rev & POLLOUT) {
      if (wo == wn) {
        wn = 1 + rnd(&r) % max, wo = 0;
        if (wn > n - sent) wn = n - sent;
        fill(w, wn, out, sent);
      }
      ssize_t k = send(fd, w + wo, wn - wo, MSG_NOSIGNAL);
      if (k < 0 && errno != EAGAIN) FAIL("send: %s", strerror(errno));
      if (k > 0) wo += k, sent += k;
    }
  }
  free(b);
  free(w);
}

// ---------------------------------------------------------------- processes

int (*extra_role)(const char *, const char *);

static void set_preload(const char *lib) {
  if (lib && *lib) setenv("LD_PRELOAD", lib, 1);
  else unsetenv("LD_PRELOAD");
}
// Execs this program again as `role`; fd0, if not negative, becomes its standard input and output.
pid_t spawn_self(int preloaded, const char *role, int fd0, const char *arg) {
  const char *lib = getenv(ctx.is_client ? "SEM_PRELOAD_CLIENT" : "SEM_PRELOAD_SERVER");
  char fam[8], port[16];
  snprintf(fam, sizeof fam, "%d", ctx.family);
  snprintf(port, sizeof port, "%d", ctx.port);
  pid_t p = fork();
  CHECK(p >= 0);
  if (p) return p;
  if (fd0 >= 0) {
    dup2(fd0, 0);
    dup2(fd0, 1);
  }
  set_preload(preloaded ? lib : NULL);
  execl(ctx.self, ctx.self, "@extra", role, fam, port, arg ? arg : "", (char *)0);
  _exit(97);
}
int exit_status(pid_t pid) {
  int st;
  pid_t p;
  do p = waitpid(pid, &st, 0);
  while (p < 0 && errno == EINTR);
  CHECK(p == pid);
  return WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
}
int count_fds(const char *prefix) {
  DIR *d = opendir("/proc/self/fd");
  CHECK(d);
  int n = 0;
  for (struct dirent *e; (e = readdir(d));) {
    char link[300];
    ssize_t k = readlinkat(dirfd(d), e->d_name, link, sizeof link - 1);
    if (k <= 0 || atoi(e->d_name) == dirfd(d)) continue;
    link[k] = 0;
    if (!strncmp(link, prefix, strlen(prefix))) n++;
  }
  closedir(d);
  return n;
}

static const test_case *find(const char *name) {
  for (const test_case *c = CASES; c->name; c++)
    if (!strcmp(c->name, name)) return c;
  fprintf(stderr, "no such case: %s\n", name);
  exit(2);
}
static void touch_other(int fd, int i_start) {
  char c = 't';
  if (i_start) put(fd, &c, 1), get(fd, &c, 1);
  else get(fd, &c, 1), put(fd, &c, 1);
}
// Does policy exclude TCP? Then a connection carries nothing until both sides have been in a call
// on it.
int no_tcp(void) {
  const char *tr = getenv("RSOCKET_TRANSPORT");
  return tr && *tr && !strstr(tr, "tcp");
}
void settle(int a, int b) {
  if (!no_tcp()) return;
  int fd[2] = {a, b}, sent[2] = {0, 0}, got[2] = {0, 0};
  double end = now() + patience(10);
  nonblock(a, 1), nonblock(b, 1);
  while (!got[0] || !got[1]) {
    for (int k = 0; k < 2; k++) {
      char c = 's';
      if (!sent[k]) sent[k] = send(fd[k], &c, 1, MSG_NOSIGNAL) == 1;
      if (!got[k]) got[k] = recv(fd[k], &c, 1, 0) == 1;
    }
    CHECK(now() < end);
  }
  nonblock(a, 0), nonblock(b, 0);
}
// Does policy exclude what the case needs?
static int left_out(const test_case *c) {
  return no_tcp() && (c->flags & NOSHM || (c->flags & EARLY && !strstr(getenv("RSOCKET_TRANSPORT"), "rdma")));
}
static int play(const test_case *c) {
  const char *w = getenv("SEM_WARM");
  int touch = c->flags & TOUCH || (no_tcp() && !(c->flags & COLD));
  ctx.warm = c->flags & COLD || !w ? 0 : atol(w);
  if (ctx.is_client) {
    int fd = -1;
    if (!(c->flags & RAW)) {
      fd = dial();
      if (touch) touch_other(fd, 1);
      warm(fd, 1);
    }
    c->client(fd);
    return 0;
  }
  int lfd = listener(&ctx.port);
  CHECK(write(FD_CTL, &ctx.port, sizeof ctx.port) == sizeof ctx.port);
  close(FD_CTL);
  if (c->flags & (RAW | SOLO)) {
    c->server(lfd);
    return 0;
  }
  int fd = accept(lfd, NULL, NULL);
  CHECK(fd >= 0);
  close(lfd);
  if (touch) touch_other(fd, 0);
  warm(fd, 0);
  c->server(fd);
  return 0;
}

// ---------------------------------------------------------------- the driver, never preloaded

static pid_t launch(const char *role, const char *lib, int in, int out, int ctl, int log, int port) {
  char fam[8], prt[16];
  snprintf(fam, sizeof fam, "%d", ctx.family);
  snprintf(prt, sizeof prt, "%d", port);
  pid_t p = fork();
  if (p) return p;
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // the driver's end is theirs
  dup2(in, FD_IN);
  dup2(out, FD_OUT);
  if (ctl >= 0) dup2(ctl, FD_CTL);
  dup2(log, 1);
  dup2(log, 2);
  for (int fd = 3; fd < 100; fd++) close(fd);
  set_preload(lib);
  execl(ctx.self, ctx.self, role, case_name, fam, prt, (char *)0);
  _exit(97);
}
static void put_line(const char *verdict, const char *why) {
  const char *label = getenv("SEM_LABEL");
  printf("%s %s%s%s%s%s\n", verdict, label ? label : "", label ? " " : "", case_name, why ? ": " : "", why ? why : "");
  fflush(stdout);
}
static int read_port(int fd, int *port, pid_t pid) {
  struct pollfd p = {fd, POLLIN, 0};
  if (poll(&p, 1, patience(10000)) == 1 && read(fd, port, sizeof *port) == sizeof *port) return 1;
  kill(-pid, SIGKILL);
  return 0;
}
static int run_case(const test_case *c) {
  int s2c[2], c2s[2], ctl[2], port = 0, status[2] = {-1, -1};
  case_name = c->name;
  if (pipe2(s2c, O_CLOEXEC) || pipe2(c2s, O_CLOEXEC) || pipe2(ctl, O_CLOEXEC)) abort();
  FILE *log = tmpfile();
  fcntl(fileno(log), F_SETFL, O_APPEND);
  pid_t pid[2] = {launch("@server", getenv("SEM_PRELOAD_SERVER"), c2s[0], s2c[1], ctl[1], fileno(log), 0), 0};
  close(ctl[1]);
  if (read_port(ctl[0], &port, pid[0]) && !(c->flags & SOLO))
    pid[1] = launch("@client", getenv("SEM_PRELOAD_CLIENT"), s2c[0], c2s[1], -1, fileno(log), port);
  close(ctl[0]), close(s2c[0]), close(s2c[1]), close(c2s[0]), close(c2s[1]);
  const char *t = getenv("SEM_TIMEOUT");
  double end = now() + (t ? atof(t) : 30);
  int timed_out = 0, left = pid[1] ? 2 : 1;
  while (left) {
    int moved = 0;
    for (int i = 0; i < 2; i++) {
      if (!pid[i] || status[i] >= 0) continue;
      // It is not reaped before its group is ended below: until then its number is no other
      // process's.
      siginfo_t end_of = {0};
      if (waitid(P_PID, pid[i], &end_of, WEXITED | WNOHANG | WNOWAIT) || !end_of.si_pid) continue;
      status[i] = end_of.si_code == CLD_EXITED ? end_of.si_status : 128 + end_of.si_status;
      left--, moved = 1;
      // The process that is left of a case that has failed gets two more seconds to say why.
      if (status[i] && now() + patience(2) < end) end = now() + patience(2);
    }
    if (left && now() > end) {
      timed_out = 1;
      for (int i = 0; i < 2; i++)
        if (pid[i] && status[i] < 0) kill(-pid[i], SIGCONT), kill(-pid[i], SIGKILL);
      end += 1000;
    }
    if (!moved && left) nap(1);
  }
  for (int i = 0; i < 2; i++)
    if (pid[i]) kill(-pid[i], SIGKILL), waitpid(pid[i], NULL, 0);  // grandchildren of a failed case
  char text[900] = "";
  rewind(log);
  size_t n = fread(text, 1, sizeof text - 1, log);
  text[n] = 0;
  while (n && text[n - 1] == '\n') text[--n] = 0;
  for (char *p = text; *p; p++)
    if (*p == '\n') *p = '|';
  fclose(log);
  if (!status[0] && (!pid[1] || !status[1]) && !timed_out) {
    put_line("ok", NULL);
    return 0;
  }
  char why[1200];
  snprintf(why, sizeof why, "%sserver %d client %d; %s", timed_out ? "timed out; " : "", status[0], status[1], text);
  put_line("FAIL", why);
  return 1;
}

int main(int argc, char **argv) {
  static char self[4096];
  ssize_t k = readlink("/proc/self/exe", self, sizeof self - 1);
  ctx.self = k > 0 ? self : argv[0];
  ctx.family = AF_INET;
  if (argc >= 5 && argv[1][0] == '@') {
    if (!strcmp(argv[1], "@extra")) {
      ctx.family = atoi(argv[3]);
      ctx.port = atoi(argv[4]);
      return extra_role ? extra_role(argv[2], argc > 5 ? argv[5] : "") : 96;
    }
    case_name = argv[2];
    ctx.family = atoi(argv[3]);
    ctx.port = atoi(argv[4]);
    ctx.is_client = !strcmp(argv[1], "@client");
    return play(find(case_name));
  }
  if (argc > 1 && !strcmp(argv[1], "list")) {
    for (const test_case *c = CASES; c->name; c++)
      if (!left_out(c) && !(getenv("SEM_PAIRS") && c->flags & SOLO)) puts(c->name);
    return 0;
  }
  if (argc < 2 || strcmp(argv[1], "run")) {
    fprintf(stderr, "usage: %s list | run [-6] [case...]\n", argv[0]);
    return 2;
  }
  int i = 2, bad = 0;
  if (i < argc && !strcmp(argv[i], "-6")) ctx.family = AF_INET6, i++;
  if (i < argc)
    for (; i < argc; i++) bad += run_case(find(argv[i]));
  else
    for (const test_case *c = CASES; c->name; c++)
      if (!left_out(c)) bad += run_case(c);
  return bad != 0;
}
