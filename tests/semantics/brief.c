// Calls that sleep after others whose sleeps were short: what ends or changes a sleep does so here
// as well.
#include "sem.h"

#include <pthread.h>
#include <sys/syscall.h>

static volatile sig_atomic_t hits;
static void on_signal(int s) {
  (void)s;
  hits++;
}
// The server answers a little later than a spin lasts, so that each round is a short sleep of the
// client. Then it does what the byte says.
static void server(int fd) {
  char c;
  while (recv(fd, &c, 1, 0) == 1) {
    if (c == 'k') syscall(SYS_exit_group, 0);  // TCP alone says so
    if (c == 's') shutdown(fd, SHUT_WR);
    if (c == 's' || c == 'n') continue;
    nanosleep(&(struct timespec){0, c == 'd' ? 30000000 : 100000}, NULL);
    put(fd, &c, 1);
  }
}
static void rounds(int fd, int n) {
  for (int i = 0; i < n; i++) {
    char c = 'r';
    put(fd, &c, 1);
    get(fd, &c, 1);
  }
}
static void soon(double t0) {
  if (now() - t0 > most_at_once()) FAIL("took %.3f s", now() - t0);
}
// Another process does something to the connection by a call that no library sees.
static void elsewhere(long call, long a, long b, long c, long d, long e) {
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    syscall(call, a, b, c, d, e);
    syscall(SYS_exit_group, 0);
  }
  CHECK(waitpid(child, NULL, 0) == child);
}
static void killed(int fd) {
  char c = 'k';
  rounds(fd, 200);
  double t = now();
  put(fd, &c, 1);
  ssize_t n = recv(fd, &c, 1, 0);
  if (n != 0 && !(n < 0 && errno == ECONNRESET)) FAIL("%zd (errno %d)", n, errno);
  soon(t);
}
static void ended(int fd) {
  char c = 's';
  rounds(fd, 200);
  double t = now();
  put(fd, &c, 1);
  EQ(recv(fd, &c, 1, 0), 0);
  soon(t);
}
static void nonblocking(int fd) {
  char c;
  rounds(fd, 200);
  elsewhere(SYS_fcntl, fd, F_SETFL, O_RDWR | O_NONBLOCK, 0, 0);
  double t = now();
  FAILS(recv(fd, &c, 1, 0), EAGAIN);
  soon(t);
}
static void limited(int fd) {
  char c;
  struct timeval limit = {0, 100000};
  rounds(fd, 200);
  elsewhere(SYS_setsockopt, fd, SOL_SOCKET, SO_RCVTIMEO, (long)&limit, sizeof limit);
  double t = now();
  FAILS(recv(fd, &c, 1, 0), EAGAIN);
  if (now() - t < 0.09) FAIL("took %.3f s", now() - t);
  soon(t);
}
// Our own calls are heard of at once.
static void limited_here(int fd) {
  char c;
  struct timeval limit = {0, 100000};
  rounds(fd, 200);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit));
  double t = now();
  FAILS(recv(fd, &c, 1, 0), EAGAIN);
  if (now() - t < 0.09) FAIL("took %.3f s", now() - t);
  soon(t);
  CHECK(!fcntl(fd, F_SETFL, O_RDWR | O_NONBLOCK));
  FAILS(recv(fd, &c, 1, 0), EAGAIN);
}
// An interval, so that one of them finds the thread asleep, however late that is.
static void signals_every_ms(int ms, int flags) {
  struct sigaction a = {.sa_handler = on_signal, .sa_flags = flags};
  struct itimerval t = {{0, ms * 1000}, {0, ms * 1000}};
  CHECK(!sigaction(SIGALRM, &a, NULL));
  hits = 0;
  CHECK(!setitimer(ITIMER_REAL, &t, NULL));
}
static void interrupted(int fd) {
  for (int i = 0; i < 20; i++) {
    char c = 'n';
    rounds(fd, 10);
    put(fd, &c, 1);
    signals_every_ms(2, 0);
    FAILS(recv(fd, &c, 1, 0), EINTR);
    CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
    if (!hits) FAIL("EINTR without a handler");
  }
}
static void restarted(int fd) {
  for (int i = 0; i < 20; i++) {
    char c = 'd';
    rounds(fd, 10);
    put(fd, &c, 1);
    signals_every_ms(2, SA_RESTART);
    EQ(recv(fd, &c, 1, 0), 1);
    CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
    EQ(c, 'd');
    if (!hits) FAIL("no handler ran");
  }
}
// A process that is stopped and goes on has not been interrupted.
static void stopped(int fd) {
  char c = 'd';
  rounds(fd, 200);
  put(fd, &c, 1);
  pid_t me = getpid(), child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    for (int i = 0; i < 5; i++) {
      usleep(1000);
      kill(me, SIGSTOP);
      usleep(1000);
      kill(me, SIGCONT);
    }
    syscall(SYS_exit_group, 0);
  }
  EQ(recv(fd, &c, 1, 0), 1);
  CHECK(waitpid(child, NULL, 0) == child);
}
static void *shuts(void *fd) {
  usleep(1000);
  shutdown(*(int *)fd, SHUT_RD);
  return NULL;
}
static void shut_here(int fd) {
  char c = 'n';
  pthread_t other;
  rounds(fd, 200);
  put(fd, &c, 1);
  double t = now();
  CHECK(!pthread_create(&other, NULL, shuts, &fd));
  EQ(recv(fd, &c, 1, 0), 0);
  soon(t);
  CHECK(!pthread_join(other, NULL));
}
// Until the first thread of this process sleeps, and still does a little later.
static void await_sleep(void) {
  char path[64], state = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", getpid());
  for (int asleep = 0; asleep < 2; asleep = state == 'S' ? asleep + 1 : 0) {
    usleep(1000);
    FILE *f = fopen(path, "r");
    CHECK(f && fscanf(f, "%*d (%*[^)]) %c", &state) == 1);
    fclose(f);
  }
}
static void *closes(void *fd) {
  await_sleep();
  close(*(int *)fd);
  return NULL;
}
// The thread that sleeps goes on, and gets its answer.
static void closed_here(int fd) {
  char c = 'd';
  pthread_t other;
  rounds(fd, 200);
  put(fd, &c, 1);
  CHECK(!pthread_create(&other, NULL, closes, &fd));
  EQ(recv(fd, &c, 1, 0), 1);
  EQ(c, 'd');
  CHECK(!pthread_join(other, NULL));
}
static void *receives(void *fd) {
  char c;
  return recv(*(int *)fd, &c, 1, 0) == 1 ? fd : NULL;
}
static void two_sleepers(int fd) {
  for (int i = 0; i < 20; i++) {
    char c = 'd';
    pthread_t other;
    void *got;
    rounds(fd, 10);
    CHECK(!pthread_create(&other, NULL, receives, &fd));
    put(fd, &c, 1);
    put(fd, &c, 1);
    EQ(recv(fd, &c, 1, 0), 1);
    CHECK(!pthread_join(other, &got));
    if (!got) FAIL("the other one got nothing");
  }
}
static void *receives_for_ever(void *fd) {
  for (;;) rounds(*(int *)fd, 1);
  return NULL;
}
static void cancelled(int fd) {
  char c = 'r';
  pthread_t other;
  void *how;
  CHECK(!pthread_create(&other, NULL, receives_for_ever, &fd));
  usleep(50000);
  double t = now();
  CHECK(!pthread_cancel(other));
  CHECK(!pthread_join(other, &how));
  soon(t);
  if (how != PTHREAD_CANCELED) FAIL("not cancelled");
  // It may have left one answer behind.
  put(fd, &c, 1);
  EQ(recv(fd, &c, 1, 0), 1);
}
const test_case CASES[] = {
    {"killed", server, killed, 0},
    {"ended", server, ended, 0},
    {"nonblocking", server, nonblocking, 0},
    {"limited", server, limited, 0},
    {"limited_here", server, limited_here, 0},
    {"interrupted", server, interrupted, 0},
    {"restarted", server, restarted, 0},
    {"stopped", server, stopped, 0},
    {"shut_here", server, shut_here, 0},
    {"closed_here", server, closed_here, 0},
    {"two_sleepers", server, two_sleepers, 0},
    {"cancelled", server, cancelled, 0},
    {0},
};
