#include "rs.h"

#include <stdarg.h>

int family = AF_INET, port, seconds = 30;
static const char *running = "?";
static int hear_fd = -1, tell_fd = -1;

void fail_at(const char *file, int line, const char *fmt, ...) {
  char text[400];
  va_list list;
  va_start(list, fmt);
  vsnprintf(text, sizeof text, fmt, list);
  va_end(list);
  const char *base = strrchr(file, '/');
  printf("FAIL %s/v%d: %s:%d: %s\n", running, family == AF_INET ? 4 : 6, base ? base + 1 : file, line, text);
  fflush(stdout);
  _exit(1);
}

void tell(char c) { CHECK(write(tell_fd, &c, 1) == 1); }

void hear(char c) {
  char got = 0;
  ssize_t n;
  while ((n = read(hear_fd, &got, 1)) < 0 && errno == EINTR) {
  }
  if (n != 1) _exit(1);  // the other side has failed, and said so
  if (got != c) FAIL("heard '%c', not '%c'", got, c);
}

socklen_t address(struct sockaddr_storage *a, int to_port) {
  const char *given = getenv("RS_ADDRESS"), *given6 = getenv("RS_ADDRESS6");
  if (family == AF_INET6 && given6) given = given6;
  memset(a, 0, sizeof *a);
  if (family == AF_INET) {
    struct sockaddr_in *in = (struct sockaddr_in *)a;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    in->sin_port = htons(to_port);
    if (given) CHECK(inet_pton(AF_INET, given, &in->sin_addr) == 1);
    return sizeof *in;
  }
  struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)a;
  in6->sin6_family = AF_INET6;
  in6->sin6_addr = in6addr_loopback;
  in6->sin6_port = htons(to_port);
  if (given) CHECK(inet_pton(AF_INET6, given, &in6->sin6_addr) == 1);
  return sizeof *in6;
}

int fresh(void) {
  int fd = rsocket(family, SOCK_STREAM, 0);
  CHECK(fd >= 0);
  return fd;
}

int listener(int *to_port) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, 0);
  int fd = fresh();
  CHECK(rbind(fd, (struct sockaddr *)&a, len) == 0);
  CHECK(rlisten(fd, 128) == 0);
  CHECK(rgetsockname(fd, (struct sockaddr *)&a, &len) == 0);
  *to_port = ntohs(((struct sockaddr_in *)&a)->sin_port);
  return fd;
}

static int dial_port(int to_port) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, to_port);
  int fd = fresh();
  CHECK(rconnect(fd, (struct sockaddr *)&a, len) == 0);
  return fd;
}

int dial(void) { return dial_port(port); }

void pair(int at, int ends[2]) {
  struct sockaddr_storage a;
  socklen_t len = sizeof a;
  CHECK(rgetsockname(at, (struct sockaddr *)&a, &len) == 0);
  ends[0] = dial_port(ntohs(((struct sockaddr_in *)&a)->sin_port));
  ends[1] = raccept(at, NULL, NULL);
  CHECK(ends[1] >= 0);
}

void nonblock(int fd, int on) {
  int flags = rfcntl(fd, F_GETFL);
  CHECK(flags >= 0);
  CHECK(rfcntl(fd, F_SETFL, on ? flags | O_NONBLOCK : flags & ~O_NONBLOCK) == 0);
}

short ready(int fd, short events, int ms) {
  struct pollfd p = {.fd = fd, .events = events};
  int n = rpoll(&p, 1, ms);
  CHECK(n >= 0);
  CHECK((n == 1) == (p.revents != 0));
  return p.revents;
}

int option(int fd, int level, int name) {
  int value = -1;
  socklen_t len = sizeof value;
  if (rgetsockopt(fd, level, name, &value, &len) != 0) FAIL("option %d/%d: %s", level, name, strerror(errno));
  CHECK(len == sizeof value);
  return value;
}

void set_option(int fd, int level, int name, int value) {
  if (rsetsockopt(fd, level, name, &value, sizeof value) != 0)
    FAIL("option %d/%d to %d: %s", level, name, value, strerror(errno));
}

double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

void nap(int ms) {
  struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
  while (nanosleep(&t, &t) != 0 && errno == EINTR) {
  }
}

double cpu_used(void) {
  struct rusage r;
  getrusage(RUSAGE_SELF, &r);
  return r.ru_utime.tv_sec + r.ru_stime.tv_sec + (r.ru_utime.tv_usec + r.ru_stime.tv_usec) / 1e6;
}

double slow(void) {
  const char *factor = getenv("RS_SLOW");
  return factor ? atof(factor) : 1;
}

enum { STANDSTILL = 4 };
void took(double since, double least, double most) {
  double t = now() - since;
  // Where others use the machine, a process may stand still for some seconds.
  if (most - least < STANDSTILL) most = least + STANDSTILL;
  most = least + (most - least) * slow();
  if (t < least || t > most) FAIL("took %.3f s, not %.3f to %.3f", t, least, most);
}

void fill(void *buf, size_t n, uint64_t seed, uint64_t pos) {
  unsigned char *p = buf;
  for (size_t i = 0; i < n; i++, pos++) p[i] = (unsigned char)((pos * 2654435761u + seed) >> 7 ^ pos);
}

void verify(const void *buf, size_t n, uint64_t seed, uint64_t pos) {
  const unsigned char *p = buf;
  for (size_t i = 0; i < n; i++, pos++)
    if (p[i] != (unsigned char)((pos * 2654435761u + seed) >> 7 ^ pos))
      FAIL("byte %llu of the stream is wrong", (unsigned long long)pos);
}

void put(int fd, const void *buf, size_t n) {
  const char *p = buf;
  while (n) {
    ssize_t sent = rsend(fd, p, n, 0);
    CHECK(sent > 0);
    p += sent;
    n -= sent;
  }
}

void get(int fd, void *buf, size_t n) {
  char *p = buf;
  while (n) {
    ssize_t got = rrecv(fd, p, n, 0);
    if (got == 0) FAIL("the stream ended with %zu bytes missing", n);
    CHECK(got > 0);
    p += got;
    n -= got;
  }
}

void touch(int fd, int first) {
  char c;
  if (first) put(fd, "t", 1);
  get(fd, &c, 1);
  if (!first) put(fd, "t", 1);
}

void put_stream(int fd, uint64_t seed, uint64_t n, size_t chunk) {
  char *buf = malloc(chunk);
  for (uint64_t at = 0; at < n;) {
    size_t len = n - at < chunk ? n - at : chunk;
    fill(buf, len, seed, at);
    put(fd, buf, len);
    at += len;
  }
  free(buf);
}

void get_stream(int fd, uint64_t seed, uint64_t n, size_t chunk) {
  char *buf = malloc(chunk);
  for (uint64_t at = 0; at < n;) {
    size_t len = n - at < chunk ? n - at : chunk;
    get(fd, buf, len);
    verify(buf, len, seed, at);
    at += len;
  }
  free(buf);
}

void get_eof(int fd) {
  char c;
  EQ(rrecv(fd, &c, 1, 0), 0);
}

static void too_late(int sig) {
  (void)sig;
  FAIL("not done in time");
}

// One side in its own process. It ends by exit(), so that the library says what it did.
static pid_t side(const rs_case *c, int is_client, int mine[2], int theirs[2]) {
  fflush(stdout);
  pid_t pid = fork();
  if (pid != 0) return pid;
  signal(SIGALRM, too_late);
  alarm(seconds * slow());
  hear_fd = mine[0], tell_fd = theirs[1];
  close(mine[1]), close(theirs[0]);
  int fd = -1;
  if (is_client) {
    if (read(hear_fd, &port, sizeof port) != sizeof port) _exit(1);
    if (!(c->flags & RAW)) fd = dial();
    c->client(fd);
  } else {
    int l = listener(&port);
    if (!(c->flags & SOLO)) CHECK(write(tell_fd, &port, sizeof port) == sizeof port);
    if (!(c->flags & (RAW | SOLO))) {
      fd = raccept(l, NULL, NULL);
      CHECK(fd >= 0);
      EQ(rclose(l), 0);
      c->server(fd);
    } else {
      c->server(l);
    }
  }
  exit(0);
}

static int run(const rs_case *c) {
  int to_server[2], to_client[2], bad = 0, status;
  running = c->name;
  if (pipe(to_server) != 0 || pipe(to_client) != 0) return 1;
  pid_t server = side(c, 0, to_server, to_client);
  pid_t client = c->flags & SOLO ? 0 : side(c, 1, to_client, to_server);
  for (int i = 0; i < 2; i++) close(to_server[i]), close(to_client[i]);
  for (pid_t p = server; p; p = p == server ? client : 0) {
    waitpid(p, &status, 0);
    if (status == 0) continue;
    bad = 1;
    if (WIFSIGNALED(status))
      printf("FAIL %s/v%d: the %s died of signal %d\n", c->name, family == AF_INET ? 4 : 6,
             p == server ? "server" : "client", WTERMSIG(status));
  }
  if (!bad) printf("ok %s/v%d\n", c->name, family == AF_INET ? 4 : 6);
  fflush(stdout);
  return bad;
}

int main(int argc, char **argv) {
  int bad = 0, at = 1;
  setvbuf(stdout, NULL, _IOLBF, 0);
  if (getenv("RS_SECONDS")) seconds = atoi(getenv("RS_SECONDS"));
  if (at < argc && strcmp(argv[at], "-6") == 0) family = AF_INET6, at++;
  for (const rs_case *c = CASES; c->name; c++) {
    int wanted = at == argc;
    for (int i = at; i < argc; i++) wanted |= strcmp(argv[i], c->name) == 0;
    if (wanted) bad |= run(c);
  }
  return bad;
}
