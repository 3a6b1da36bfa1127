// The process that has the accepted end, where the two ends are no relatives. It is started apart,
// and told over a UNIX socket which call to make. World and question go there and back as they are.
#include "generator.h"

enum { PAIR = 'p', SETTLED = 's', STEP = 'c', CLOSE = 'x' };
static char question;

int whole(int fd, void *p, size_t n, int writing) {
  for (size_t k = 0; k < n;) {
    ssize_t m = writing ? write(fd, (char *)p + k, n - k) : read(fd, (char *)p + k, n - k);
    if (m <= 0) return 0;
    k += (size_t)m;
  }
  return 1;
}

// What this process alone knows stays its own.
static int exchange(int writing) {
  int s[2] = {g.s[0], g.s[1]}, listener = g.listener, set = g.set, control = g.control;
  int ok = whole(control, &g, sizeof g, writing);
  g.s[0] = s[0], g.s[1] = s[1], g.listener = listener, g.set = set, g.control = control;
  return ok;
}

static int ask(char what) {
  int answer;
  if (!whole(g.control, &what, 1, 1) || !exchange(1)) die("the other process");
  if (!exchange(0) || !whole(g.control, &answer, sizeof answer, 0)) die("the other process");
  return answer;
}

static void warm_here(int end) {
  for (int i = 0; i < WARM; i++) {
    if ((i & 1) == end) {
      write_out(end, 1000);
      if (send(g.s[end], buffer, 1000, 0) != 1000) die("warm send");
      g.sent[end] += 1000;
    } else {
      if (recv(g.s[end], buffer, 1000, MSG_WAITALL) != 1000 || *read_back(end, 1000, 1)) die("warm recv");
    }
  }
}

// -- in the process that leads
void other_pair(void) {
  char what = PAIR;
  int answer;
  world mine;
  if (!whole(g.control, &what, 1, 1) || !exchange(1)) die("the other process");
  g.s[1] = -1;
  warm_here(0);
  mine = g;
  if (!exchange(0) || !whole(g.control, &answer, sizeof answer, 0)) die("the other process");
  g.sent[0] = mine.sent[0], g.received[0] = mine.received[0];
}
int other_settled(void) { return ask(SETTLED); }
void other_step(void) { ask(STEP); }
void other_close(void) { ask(CLOSE); }

int other_begin(const char *path, int six) {
  struct sockaddr_un a = {.sun_family = AF_UNIX};
  snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
  g.control = socket(AF_UNIX, SOCK_STREAM, 0);
  for (int i = 0; connect(g.control, (void *)&a, sizeof a); i++) {
    if (i > 500) die("the other process");
    usleep(10000);
  }
  char family = six ? '6' : '4';
  if (!whole(g.control, &family, 1, 1) || !whole(g.control, &g.port, sizeof g.port, 0)) die("the other process");
  return 0;
}

// -- in the other one
static int here(void) {
  struct pollfd p = {g.s[1], POLLRDHUP, 0};
  int r = poll(&p, 1, 0);
  if (g.reset[1]) return r == 1 && p.revents & POLLHUP;
  int all = waiting(1) >= (long)(g.sent[0] - g.received[1]);
  return all && (!g.ended[0] || (r == 1 && p.revents & POLLRDHUP));
}

static void take_one(void) {
  int one = 1;
  g.s[0] = -1;
  g.s[1] = accept(g.listener, NULL, NULL);
  if (g.s[1] < 0) die("accept");
  g.set = epoll_create1(EPOLL_CLOEXEC);
  warm_here(1);
  setsockopt(g.s[1], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
  fcntl(g.s[1], F_SETFL, fcntl(g.s[1], F_GETFL) | O_NONBLOCK);
}

static int answer;
void reply(void) {
  if (!exchange(1) || !whole(g.control, &answer, sizeof answer, 1)) exit(0);
}

int serve(void) {
  while (whole(g.control, &question, 1, 0) && exchange(0)) {
    answer = 1;
    if (question == PAIR) take_one();
    if (question == SETTLED) answer = here();
    if (question == STEP) {
      begin_call(g.seed, g.step);
      step();
    }
    if (question == CLOSE) {
      if (!g.closed[1]) close(g.s[1]);
      close(g.set);
    }
    reply();
  }
  return 0;
}

int other_start(const char *path) {
  struct sockaddr_un u = {.sun_family = AF_UNIX};
  struct sockaddr_storage a;
  socklen_t n;
  char family;
  snprintf(u.sun_path, sizeof u.sun_path, "%s", path);
  int door = socket(AF_UNIX, SOCK_STREAM, 0);
  if (door < 0 || bind(door, (void *)&u, sizeof u) || listen(door, 1)) die(path);
  g.s[0] = g.s[1] = g.set = -1;
  for (;;) {
    g.control = accept(door, NULL, NULL);
    if (g.control < 0 || !whole(g.control, &family, 1, 0)) die("control");
    g.six = family == '6', g.port = 0;
    address(&a, &n);
    g.listener = socket(a.ss_family, SOCK_STREAM, 0);
    if (g.listener < 0 || bind(g.listener, (void *)&a, n) || listen(g.listener, 8)) die("listen");
    getsockname(g.listener, (void *)&a, &n);
    g.port = ntohs(((struct sockaddr_in *)&a)->sin_port);
    if (!whole(g.control, &g.port, sizeof g.port, 1)) die("control");
    return serve();
  }
}
