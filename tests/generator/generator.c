// A generator of calls: random sequences on a TCP connection in mid-life, made once without the
// library and once with it.
//
//   generator run FIRST COUNT [OPTION...]   writes one line a call ("SEED STEP CALL = RESULT")
//   generator replay SEED [OPTION...]       the calls of one seed
//   generator other PATH [-6]               the other process, which has the accepted end
//
// Options: -6. -s leaves out what cannot be where TCP is excluded. -o PATH meets the other process
// there (else both ends are this one's). -k KEEP, a string of 0 and 1, says which calls are made.
//
// It knows nothing of the library. `tests/generator/run` runs it both ways and compares what was
// written. So whatever is written must not depend on time. Before each call all bytes that were
// sent have arrived (`settle`), and no call moves more than the buffers of both ends hold. A line
// "SEED kind NAME" says that a limit of the library's was met.
#include "generator.h"

world g;
char buffer[LARGEST * 4];
static uint64_t state;

unsigned pick(unsigned n) {
  state ^= state << 13, state ^= state >> 7, state ^= state << 17;
  return (unsigned)(state >> 33) % n;
}

// Each call has random numbers of its own, so that one may be left out and the others stay as they
// are.
static void random_from(uint64_t seed) {
  state = seed * 0x9e3779b97f4a7c15u + 0x1234567;
  for (int i = 0; i < 8; i++) pick(2);
}
void begin_call(uint64_t seed, int step) { random_from(seed * 1000 + (uint64_t)step + 1); }

void die(const char *what) {
  perror(what);
  exit(2);
}

void kind(const char *name) {
  printf("%llu kind %s\n", (unsigned long long)g.seed, name);
  fflush(stdout);
}

long waiting(int end) {
  int n = 0;
  return ioctl(g.s[end], FIONREAD, &n) < 0 ? -1 : n;
}

// Whether everything that was sent to this end, the stream's end too, has arrived.
static int settled(int end) {
  if (g.closed[end]) return 1;
  if (g.s[end] < 0) return other_settled();
  struct pollfd p = {g.s[end], POLLRDHUP, 0};
  int r = poll(&p, 1, 0);
  if (g.reset[end]) return r == 1 && p.revents & POLLHUP;
  int here = waiting(end) >= (long)(g.sent[!end] - g.received[end]);
  return here && (!g.ended[!end] || (r == 1 && p.revents & POLLRDHUP));
}

static void settle(void) {
  for (int i = 0; i < 120; i++) {
    int a = settled(0), b = settled(1);
    if (a && b) return;
    usleep(i < 60 ? 20 : 1000);
  }
}

void address(struct sockaddr_storage *a, socklen_t *n) {
  memset(a, 0, sizeof *a);
  if (g.six) {
    struct sockaddr_in6 *six = (void *)a;
    six->sin6_family = AF_INET6, six->sin6_addr = in6addr_loopback, six->sin6_port = htons((uint16_t)g.port);
    *n = sizeof *six;
  } else {
    struct sockaddr_in *four = (void *)a;
    four->sin_family = AF_INET, four->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    four->sin_port = htons((uint16_t)g.port);
    *n = sizeof *four;
  }
}

static void listen_here(void) {
  struct sockaddr_storage a;
  socklen_t n;
  g.port = 0;
  address(&a, &n);
  g.listener = socket(a.ss_family, SOCK_STREAM, 0);
  if (g.listener < 0 || bind(g.listener, (void *)&a, n) || listen(g.listener, 8)) die("listen");
  getsockname(g.listener, (void *)&a, &n);
  g.port = ntohs(((struct sockaddr_in *)&a)->sin_port);  // at the same place in both families
}

// One message to and fro, so that the connection is in mid-life.
static void warm(int end) {
  write_out(end, 1000);
  if (send(g.s[end], buffer, 1000, 0) != 1000) die("warm send");
  g.sent[end] += 1000;
  if (recv(g.s[!end], buffer, 1000, MSG_WAITALL) != 1000 || *read_back(!end, 1000, 1)) die("warm recv");
}

static void in_mid_life(int end) {
  int one = 1;
  setsockopt(g.s[end], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(g.s[end], F_SETFL, fcntl(g.s[end], F_GETFL) | O_NONBLOCK);
}

static void pair(void) {
  struct sockaddr_storage a;
  socklen_t n;
  for (int e = 0; e < 2; e++) {
    g.sent[e] = g.received[e] = 0;
    g.ended[e] = g.closed[e] = g.deaf[e] = g.back[e] = g.reset[e] = g.nagle[e] = g.edge[e] = 0;
  }
  if (g.control < 0 && g.listener < 0) listen_here();
  address(&a, &n);
  g.s[0] = socket(a.ss_family, SOCK_STREAM, 0);
  if (g.s[0] < 0 || connect(g.s[0], (void *)&a, n) < 0) die("connect");
  g.set = epoll_create1(EPOLL_CLOEXEC);
  if (g.control >= 0) {
    other_pair();
  } else {
    g.s[1] = accept(g.listener, NULL, NULL);
    if (g.s[1] < 0) die("accept");
    for (int i = 0; i < WARM; i++) warm(i & 1);
    in_mid_life(1);
  }
  in_mid_life(0);
}

// One call, or one idea of a few.
void step(void) {
  int end = (int)pick(2);
  unsigned what = pick(100);
  size_t n = pick(8) ? 1 + pick(LARGEST) : pick(3);
  if (g.closed[end]) end = !end;
  SAY("nothing");
  if (what < 25) do_send(end, n);
  else if (what < 50) do_receive(end, n);
  else if (what < 57) do_transfer(end, n);
  else if (what < 73) do_ready(end);
  else if (what < 81) do_option(end);
  else if (what < 87) do_number(end);
  else if (what < 92) do_process(end);
  else if (what < 96) do_end(end);
  else if (what < 98) do_foreign();
  else do_urgent(end);
}

void finish_step(void) {
  printf("%llu %d %s\n", (unsigned long long)g.seed, g.step, g.out);
  fflush(stdout);
}

// Which process makes a call: the one that has the end that it is about.
static int is_others(void) {
  int end = (int)pick(2);
  if (g.closed[end]) end = !end;
  return g.s[end] < 0;
}

static void sequence(void) {
  random_from(g.seed);
  int calls = 3 + (int)pick(MOST - 2);
  for (; g.step < calls && !(g.closed[0] && g.closed[1]); g.step++) {
    if ((size_t)g.step < strlen(g.keep) && g.keep[g.step] == '0') continue;
    settle();
    begin_call(g.seed, g.step);
    int others = is_others();
    begin_call(g.seed, g.step);
    if (others) other_step();
    else step();
    finish_step();
  }
  if (!g.closed[0]) close(g.s[0]);
  if (!g.closed[1] && g.s[1] >= 0) close(g.s[1]);
  if (g.control >= 0) other_close();
  close(g.set);
  printf("%llu end\n", (unsigned long long)g.seed);
  fflush(stdout);
}

static int all(void) {
  for (; g.seed < g.last; g.seed++) {
    g.step = 0;
    pair();
    sequence();
  }
  return 0;
}

// After exec: the call that was under way is over.
static int resume(const char *role, const char *text) {
  restore(text);
  if (!strcmp(role, "other")) {
    reply();
    return serve();
  }
  finish_step();
  g.step++;
  sequence();
  g.seed++;
  return all();
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc < 3) return 2;
  if (!strcmp(argv[1], "act")) return act(argc, argv);
  if (!strcmp(argv[1], "resume") && argc > 3) return resume(argv[2], argv[3]);
  if (!strcmp(argv[1], "other")) return other_start(argv[2]);
  g.seed = strtoull(argv[2], NULL, 10), g.last = g.seed + 1;
  g.listener = g.control = -1;
  const char *path = NULL;
  int i = 3;
  if (!strcmp(argv[1], "run") && argc > i) g.last = g.seed + strtoull(argv[i++], NULL, 10);
  for (; i < argc; i++) {
    if (!strcmp(argv[i], "-6")) g.six = 1;
    else if (!strcmp(argv[i], "-s")) g.strict = 1;
    else if (!strcmp(argv[i], "-k") && i + 1 < argc) snprintf(g.keep, sizeof g.keep, "%s", argv[++i]);
    else if (!strcmp(argv[i], "-o") && i + 1 < argc) path = argv[++i];
    else return 2;
  }
  if (path) other_begin(path, g.six);
  return all();
}
