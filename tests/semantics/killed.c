// Processes that end in the midst (kill -9, exit). What they have sent arrives, a peer that waits
// for them is told soon, and the survivor keeps nothing of them. A peer that reads on is not taken
// for dead.
#include "sem.h"

#include <sched.h>

enum { MIB = 1 << 20 };

// What the victim says about itself, in memory that outlives it.
typedef struct {
  volatile uint64_t accepted;  // bytes that its writes have returned for
} testament;

static testament *will(int *fd) {
  *fd = memfd_create("sem-testament", 0);
  CHECK(*fd >= 0 && !ftruncate(*fd, 4096));
  testament *t = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, *fd, 0);
  CHECK(t != MAP_FAILED);
  return t;
}
static testament *will_of(pid_t p, int fd) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/%d", p, fd);
  int f = open(path, O_RDONLY);
  CHECK(f >= 0);
  testament *t = mmap(NULL, 4096, PROT_READ, MAP_SHARED, f, 0);
  close(f);
  CHECK(t != MAP_FAILED);
  return t;
}
static int memfd_maps(void) {
  FILE *f = fopen("/proc/self/maps", "r");
  char line[600];
  int n = 0;
  CHECK(f);
  while (fgets(line, sizeof line, f)) n += strstr(line, "memfd:") != NULL;
  fclose(f);
  return n;
}
enum { ROUNDS = 8, SETTLED = 3 };
// What the descriptors of this process are, in one line, for the report of a leak.
static const char *list_fds(void) {
  static char text[500];
  size_t n = 0;
  for (int fd = 3; fd < 70000 && n < sizeof text - 80; fd++) {
    char path[64], link[60];
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    ssize_t k = readlink(path, link, sizeof link - 1);
    if (k <= 0) continue;
    link[k] = 0;
    n += snprintf(text + n, sizeof text - n, " %d=%s", fd, link);
  }
  return text;
}
// The survivor of ROUNDS killings holds no more at the end than in the first ones. In which of them
// the library makes what it keeps for good depends on how busy the machine is.
static void no_leak(int round) {
  static int fds, maps;
  int f = count_fds(""), m = memfd_maps();
  if (round <= SETTLED) {
    fds = f > fds ? f : fds;
    maps = m > maps ? m : maps;
  }
  if (round == ROUNDS) {
    // What the last of the dead left is put away with the next connection; a leak would be one for
    // each round.
    if (f >= fds + ROUNDS - SETTLED) FAIL("%d descriptors, in the first rounds %d:%s", f, fds, list_fds());
    if (m > maps + 1) FAIL("%d mappings of memfds, in the first rounds %d", m, maps);
    double c = cpu_used();
    nap(300);
    struct pollfd none;
    CHECK(poll(&none, 0, 200) == 0);
    if (cpu_used() - c > 0.03) FAIL("%.3f s of processor time at rest", cpu_used() - c);
  }
}
// A killing, and when the victim has ended by it: for that it has to be given a processor.
typedef struct {
  pid_t victim;
  int after;  // so many ms
  _Atomic double ended;
  pthread_t thread;
} execution;
enum { LONG = 20000 };  // for waits that such an end is to end
static void *executioner(void *p) {
  execution *e = p;
  nap(e->after);
  kill(e->victim, SIGKILL);
  // Its parent waits for it, and then it is no more.
  for (double end = now() + patience(LONG) / 1000.0; !kill(e->victim, 0) && now() < end;) nap(1);
  e->ended = now();
  return NULL;
}
static void condemn(execution *e, pid_t victim, int after) {
  *e = (execution){.victim = victim, .after = after};
  CHECK(!pthread_create(&e->thread, NULL, executioner, e));
}
static void told_in_time(execution *e) {
  double at = now();
  pthread_join(e->thread, NULL);
  if (at - e->ended > most_at_once()) FAIL("told %.2f s after the end", at - e->ended);
}
// Victims write as fast as they can; with `both`, they read too.
static void victim(int fd, int both) {
  int w;
  testament *t = will(&w);
  static char b[60000];
  tell_int(getpid());
  tell_int(w);
  uint64_t r = 5, got = 0;
  if (both) nonblock(fd, 1);
  for (;;) {
    size_t n = 1 + rnd(&r) % (both ? 3000 : sizeof b);
    fill(b, n, 1, t->accepted);
    ssize_t k = send(fd, b, n, MSG_NOSIGNAL);
    if (k > 0) t->accepted += k;
    else if (errno != EAGAIN) _exit(1);
    if (!both) continue;
    k = recv(fd, b, sizeof b, 0);
    if (k > 0) verify(b, k, 2, got), got += k;
    if (k < 0 && errno == EAGAIN) ready(fd, POLLIN | POLLOUT, 1000);
  }
}
static int ended_truthfully(ssize_t k) { return k == 0 || (k < 0 && errno == ECONNRESET); }
static void survive_reading(int fd, int round) {
  pid_t p = hear_int();
  testament *t = will_of(p, hear_int());
  static char b[40000];
  uint64_t got = 0, mark = 2 * MIB + round * 777777;
  ssize_t k = 1;
  while (got < mark) {
    k = recv(fd, b, sizeof b, 0);
    CHECK(k > 0);
    verify(b, k, 1, got);
    got += k;
  }
  execution e;
  condemn(&e, p, 0);
  while ((k = recv(fd, b, sizeof b, 0)) > 0) {
    verify(b, k, 1, got);
    got += k;
  }
  CHECK(ended_truthfully(k));
  told_in_time(&e);
  // Every byte that the dead one's writes had returned for.
  if (got < t->accepted) FAIL("%llu bytes of %llu", (unsigned long long)got, (unsigned long long)t->accepted);
  if (got > t->accepted + 60000) FAIL("%llu bytes, more than the %llu written", (unsigned long long)got, (unsigned long long)t->accepted);
  munmap(t, 4096);
  close(fd);
}
static void survive_both(int fd, int round) {
  pid_t p = hear_int();
  hear_int();
  static char b[40000];
  uint64_t got = 0, sent = 0, mark = MIB + round * 55555, killed = 0;
  execution e;
  nonblock(fd, 1);
  for (;;) {
    if (!killed && got > mark) condemn(&e, p, 0), killed = 1;
    size_t n = 3000;
    fill(b, n, 2, sent);
    ssize_t k = send(fd, b, n, MSG_NOSIGNAL);
    if (k > 0) sent += k;
    else if (errno != EAGAIN) {
      CHECK(killed && (errno == ECONNRESET || errno == EPIPE));
      break;
    }
    k = recv(fd, b, sizeof b, 0);
    if (k > 0) verify(b, k, 1, got), got += k;
    else if (k == 0 || errno != EAGAIN) {
      CHECK(killed && ended_truthfully(k));
      break;
    } else
      CHECK(ready(fd, POLLIN | POLLOUT, LONG));
  }
  told_in_time(&e);
  close(fd);
}
// The dead one was reading: a blocked writer is told.
static void victim_of(int fd, int says) {
  static char b[40000];
  uint64_t got = 0;
  tell_int(getpid());
  for (;;) {
    ssize_t k = recv(fd, b, sizeof b, 0);
    if (k <= 0) _exit(1);
    verify(b, k, 3, got);
    got += k;
    if (got <= 3 * MIB) continue;
    if (says) tell('r');
    for (;;) pause();
  }
}
static void reading_victim(int fd) { victim_of(fd, 0); }
static void full_victim(int fd) { victim_of(fd, 1); }
static void survive_writing(int fd, int round) {
  (void)round;
  execution e;
  static char b[100000];
  uint64_t n = 0;
  ssize_t k;
  condemn(&e, hear_int(), 200);
  do {
    fill(b, sizeof b, 3, n);
    k = send(fd, b, sizeof b, MSG_NOSIGNAL);
    if (k > 0) n += k;
  } while (k > 0);
  CHECK(k < 0 && (errno == ECONNRESET || errno == EPIPE));
  told_in_time(&e);
  close(fd);
}
// Dead while it sleeps in recv, with nothing under way: the others' sleeps end too.
static void sleeping_victim(int fd) {
  char c;
  tell_int(getpid());
  recv(fd, &c, 1, 0);
  _exit(1);
}
static void survive_sleeping(int fd, int round) {
  execution end;
  char c;
  condemn(&end, hear_int(), 200);
  if (round % 3 == 0) EQ(recv(fd, &c, 1, 0), 0);
  else if (round % 3 == 1) EQ(ready(fd, POLLIN | POLLRDHUP, LONG), POLLIN | POLLRDHUP);
  else {
    int ep = epoll_create1(0);
    struct epoll_event e = {.events = EPOLLIN | EPOLLRDHUP | EPOLLET};
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
    EQ(epoll_wait(ep, &e, 1, LONG), 1);
    CHECK(e.events == (EPOLLIN | EPOLLRDHUP));
    close(ep);
  }
  told_in_time(&end);
  get_eof(fd);
  close(fd);
}
// The dead one was reading, and no thread is inside a send. A thread that waits for room is told,
// if that is all it waits for.
static uint64_t fill_up(int fd, uint64_t n) {
  static char b[100000];
  nonblock(fd, 1);
  // The victim reads 3 MiB; then what TCP still finds room for a moment later.
  for (int quiet = 0; quiet < 10;) {
    fill(b, sizeof b, 3, n);
    ssize_t k = send(fd, b, sizeof b, MSG_NOSIGNAL);
    CHECK(k > 0 || errno == EAGAIN);
    if (k > 0) n += k, quiet = 0;
    else nap(10), quiet += n > 3 * MIB;
    CHECK(n < 256u * MIB);
  }
  return n;
}
// Poll, select, epoll by level and by edge, in turns; whether `fd` was writable within that time.
static int wait_for_room(int fd, int kind, int ep, int ms) {
  struct timeval t = {ms / 1000, ms % 1000 * 1000};
  struct epoll_event e;
  fd_set w;
  FD_ZERO(&w);
  FD_SET(fd, &w);
  if (kind == 0) return (ready(fd, POLLOUT, ms) & POLLOUT) != 0;
  if (kind == 1) return select(fd + 1, NULL, &w, NULL, &t);
  int n = epoll_wait(ep, &e, 1, ms);
  return n == 1 && (e.events & EPOLLOUT);
}
static void sends_no_more(int fd) {
  static char b[1000];
  ssize_t k = 1;
  // TCP fails the second at the latest; a device may still be about to say so.
  for (int i = 0; i < 20 && k > 0; i++) {
    k = send(fd, b, sizeof b, MSG_NOSIGNAL);
    if (k > 0 && i > 1) nap(patience(20));
  }
  CHECK(k < 0 && (errno == ECONNRESET || errno == EPIPE));
}
// Before the wait, or during it; or long after it has said that it sends no more.
enum { DEAD, DIES, HALF };
static void survive_full(int fd, int round, int when) {
  pid_t p = hear_int();
  int kind = round % 4, ep = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLOUT | (kind == 3 ? EPOLLET : 0)};
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &event));
  uint64_t n = fill_up(fd, 0);
  // However long it was kept from reading: now it has read all that it will.
  hear('r');
  fill_up(fd, n);
  while (epoll_wait(ep, &event, 1, 0) > 0) CHECK(kind == 3);  // an edge from before
  if (when == HALF) {
    double c = cpu_used();
    EQ(wait_for_room(fd, kind, ep, 500), 0);
    if (cpu_used() - c > 0.05) FAIL("%.3f s of processor time without room", cpu_used() - c);
  }
  execution e;
  condemn(&e, p, when == DIES ? 200 : 0);
  while (when == DEAD && !e.ended) nap(1);
  EQ(wait_for_room(fd, kind, ep, LONG), 1);
  told_in_time(&e);
  sends_no_more(fd);
  close(ep);
  close(fd);
}
static void survive_full_dead(int fd, int round) { survive_full(fd, round, DEAD); }
static void survive_full_dies(int fd, int round) { survive_full(fd, round, DIES); }
static void survive_full_half(int fd, int round) { survive_full(fd, round, HALF); }
static void half_closed_victim(int fd) {
  tell_int(getpid());
  get_stream(fd, 3, 0, 3 * MIB, 40000);
  CHECK(!shutdown(fd, SHUT_WR));
  tell('r');
  for (;;) pause();
}
// No process reads any more, and there is room for a long time. A peer that writes a little now and
// then is told soon all the same.
static void survive_trickling(int fd, int round) {
  pid_t p = hear_int();  // less than 0: it ends by itself
  static char b[10000];
  put_stream(fd, 3, 0, MIB, 30000);
  hear('r');
  nap(20);
  if (p > 0) CHECK(!kill(p, SIGKILL));
  // It has to be given a processor to end.
  for (double end = now() + 10; !kill(abs(p), 0) && now() < end;) nap(1);
  nap(patience(50));
  size_t n = round % 2 ? 1 : sizeof b;
  ssize_t k = 0;
  int writes = 0;
  while ((k = send(fd, b, n, MSG_NOSIGNAL)) > 0 && ++writes < 15) nap(20);
  if (k > 0) FAIL("%d writes of %zu bytes to a dead peer were accepted", writes, n);
  CHECK(errno == ECONNRESET || errno == EPIPE);
  close(fd);
}
static void trickle_to(int fd, pid_t victim) {
  tell_int(victim);
  get_stream(fd, 3, 0, MIB, 30000);
  tell('r');
}
static void idle_victim(int fd) {
  trickle_to(fd, getpid());
  for (;;) pause();
}
static void leaving_victim(int fd) {
  trickle_to(fd, -getpid());
  exit(0);
}
static void vanishing_victim(int fd) {
  trickle_to(fd, -getpid());
  _exit(0);
}
// The victims are children of one side, one for each round; the other side survives them all.
static void victims_end(int lfd, void (*play)(int), int status) {
  for (int i = 1; i <= ROUNDS; i++) {
    pid_t p = fork();
    CHECK(p >= 0);
    if (!p) {
      int fd = lfd >= 0 ? accept(lfd, NULL, NULL) : dial();
      CHECK(fd >= 0);
      warm(fd, 1);
      play(fd);
      _exit(9);
    }
    EQ(exit_status(p), status);
    hear('n');
  }
}
static void victims(int lfd, void (*play)(int)) { victims_end(lfd, play, 128 + SIGKILL); }
static void survivors(int lfd, void (*play)(int, int)) {
  for (int i = 1; i <= ROUNDS; i++) {
    int fd = lfd >= 0 ? accept(lfd, NULL, NULL) : dial();
    CHECK(fd >= 0);
    warm(fd, 0);
    play(fd, i);
    no_leak(i);
    tell('n');
  }
}
static void victim_one(int fd) { victim(fd, 0); }
static void victim_both(int fd) { victim(fd, 1); }
static void kc_write_s(int l) { survivors(l, survive_reading); }
static void kc_write_c(int fd) { victims(fd, victim_one); }
static void ks_write_s(int l) { victims(l, victim_one); }
static void ks_write_c(int fd) { survivors(fd, survive_reading); }
static void kc_both_s(int l) { survivors(l, survive_both); }
static void kc_both_c(int fd) { victims(fd, victim_both); }
static void ks_both_s(int l) { victims(l, victim_both); }
static void ks_both_c(int fd) { survivors(fd, survive_both); }
static void kc_read_s(int l) { survivors(l, survive_writing); }
static void kc_read_c(int fd) { victims(fd, reading_victim); }
static void ks_read_s(int l) { victims(l, reading_victim); }
static void ks_read_c(int fd) { survivors(fd, survive_writing); }
static void kc_sleep_s(int l) { survivors(l, survive_sleeping); }
static void kc_sleep_c(int fd) { victims(fd, sleeping_victim); }
static void kc_full_s(int l) { survivors(l, survive_full_dead); }
static void kc_full_c(int fd) { victims(fd, full_victim); }
static void ks_full_s(int l) { victims(l, full_victim); }
static void ks_full_c(int fd) { survivors(fd, survive_full_dies); }
static void kc_half_s(int l) { survivors(l, survive_full_half); }
static void kc_half_c(int fd) { victims(fd, half_closed_victim); }
static void kc_idle_s(int l) { survivors(l, survive_trickling); }
static void kc_idle_c(int fd) { victims(fd, idle_victim); }
static void ks_exit_s(int l) { victims_end(l, leaving_victim, 0); }
static void ks_exit_c(int fd) { survivors(fd, survive_trickling); }
static void kc_vanish_s(int l) { survivors(l, survive_trickling); }
static void kc_vanish_c(int fd) { victims_end(fd, vanishing_victim, 0); }
// One of two holders is killed in the middle: the other goes on.
static void sibling_server(int fd) {
  static char b[30000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
static void sibling_client(int fd) {
  for (int i = 0; i < 10; i++) {
    pid_t p = fork();
    CHECK(p >= 0);
    if (!p)
      for (;;) {  // looks at the connection all the time, changes nothing
        char c[100];
        recv(fd, c, sizeof c, MSG_PEEK | MSG_DONTWAIT);
        ready(fd, POLLIN, 0);
      }
    nap(10 + 3 * i);
    CHECK(!kill(p, SIGKILL));
    EQ(exit_status(p), 128 + SIGKILL);
    double t = now();
    put_stream(fd, 1, i * 30000, (i + 1) * 30000, 3000);
    get_stream(fd, 1, i * 30000, (i + 1) * 30000, 3000);
    if (now() - t > most_at_once()) FAIL("the survivor took %.2f s", now() - t);
  }
  close(fd);
}
// A peer that has said its last reads on. The process that sends to it has gone to another network
// meanwhile, where nothing is known of that.
static void other_network_server(int fd) {
  static char b[30000];
  CHECK(!shutdown(fd, SHUT_WR));
  for (uint64_t at = 0; at < 6 * MIB;) {
    ssize_t k = recv(fd, b, sizeof b, MSG_DONTWAIT);
    if (k < 0) {
      CHECK(errno == EAGAIN);
      nap(1);
      continue;
    }
    CHECK(k > 0);
    verify(b, k, 19, at);
    at += k;
  }
  get_eof(fd);
}
static void other_network_client(int fd) {
  get_eof(fd);
  // Where that is not allowed there is nothing to be seen.
  if (unshare(CLONE_NEWNET)) CHECK(errno == EPERM);
  put_stream(fd, 19, 0, 6 * MIB, 30000);
  CHECK(!shutdown(fd, SHUT_WR));
}

const test_case CASES[] = {
    {"kill_writing_client", kc_write_s, kc_write_c, RAW},
    {"kill_writing_server", ks_write_s, ks_write_c, RAW},
    {"kill_busy_client", kc_both_s, kc_both_c, RAW},
    {"kill_busy_server", ks_both_s, ks_both_c, RAW},
    {"kill_reading_client", kc_read_s, kc_read_c, RAW},
    {"kill_reading_server", ks_read_s, ks_read_c, RAW},
    {"kill_sleeping_client", kc_sleep_s, kc_sleep_c, RAW},
    {"kill_full_client", kc_full_s, kc_full_c, RAW},
    {"kill_full_server_later", ks_full_s, ks_full_c, RAW},
    {"kill_half_closed_client", kc_half_s, kc_half_c, RAW},
    {"kill_idle_client", kc_idle_s, kc_idle_c, RAW},
    {"server_exits", ks_exit_s, ks_exit_c, RAW},
    {"client_vanishes", kc_vanish_s, kc_vanish_c, RAW},
    {"kill_one_of_two_holders", sibling_server, sibling_client, 0},
    {"half_closed_and_another_network", other_network_server, other_network_client, 0},
    {0},
};
