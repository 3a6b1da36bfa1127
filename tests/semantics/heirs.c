// What a program that is started has of a stream that is over, and that its starter has not read.
#include "pair.h"

#include <spawn.h>
#include <sys/wait.h>

static char x[70000], y[70000];
static char *none[] = {NULL};
static char *cat[] = {"/bin/cat", NULL};

// The peer sends `n` bytes, and closes, is reset, or only shuts down.
enum { CLOSED, RESET, SHUT };
static int over(int lfd, size_t n, int how) {
  int s[2];
  struct linger g = {1, 0};
  two(lfd, s);
  fill(x, n, 4, 0);
  put(s[0], x, n);
  if (how == SHUT) {
    CHECK(!shutdown(s[0], SHUT_WR));
    until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP);
    return s[1];
  }
  if (how == RESET) CHECK(!setsockopt(s[0], SOL_SOCKET, SO_LINGER, &g, sizeof g));
  CHECK(!close(s[0]));
  short end = how == RESET ? POLLERR | POLLHUP : 0;
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP | end);
  return s[1];
}
// What the program wrote, and that it ended as it should.
static void read_all(int from, pid_t child, size_t n, int rc) {
  size_t at = 0;
  ssize_t k;
  int status;
  while ((k = read(from, y + at, sizeof y - at)) > 0) at += k;
  CHECK(waitpid(child, &status, 0) == child);
  EQ(at, n);
  verify(y, n, 4, 0);
  EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, rc);
}
static void spawned(int lfd, size_t n, int how) {
  int fd = over(lfd, n, how), p[2];
  posix_spawn_file_actions_t a;
  pid_t child;
  CHECK(!pipe2(p, O_CLOEXEC) && !posix_spawn_file_actions_init(&a));
  CHECK(!posix_spawn_file_actions_adddup2(&a, fd, 0) && !posix_spawn_file_actions_adddup2(&a, p[1], 1));
  CHECK(!posix_spawn(&child, cat[0], &a, NULL, cat, none));
  close(p[1]);
  read_all(p[0], child, n, how == RESET);
  posix_spawn_file_actions_destroy(&a);
  close(p[0]), close(fd);
}
static void vforked(int lfd, size_t n, int how) {
  int fd = over(lfd, n, how), p[2];
  CHECK(!pipe2(p, O_CLOEXEC));
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  pid_t child = vfork();
  if (child == 0) {
    dup2(fd, 0), dup2(p[1], 1);
    execve(cat[0], cat, none);
    _exit(9);
  }
  close(p[1]);
  read_all(p[0], child, n, how == RESET);
  close(p[0]), close(fd);
}
static void forked(int lfd, size_t n, int how) {
  int fd = over(lfd, n, how), p[2];
  CHECK(!pipe2(p, O_CLOEXEC));
  pid_t child = fork();
  if (child == 0) {
    dup2(fd, 0), dup2(p[1], 1);
    execve(cat[0], cat, none);
    _exit(9);
  }
  close(p[1]);
  read_all(p[0], child, n, how == RESET);
  close(p[0]), close(fd);
}
#define KINDS(way) \
  static void way##_after_close(int lfd) { way(lfd, 3000, CLOSED), way(lfd, 60000, CLOSED); } \
  static void way##_after_reset(int lfd) { way(lfd, 3000, RESET); } \
  static void way##_after_shutdown(int lfd) { way(lfd, 3000, SHUT); }
KINDS(spawned)
KINDS(vforked)
KINDS(forked)
// Both have ended: the kernel has nothing of the connection any more.
static void spawned_after_both(int lfd) {
  int s[2], p[2];
  posix_spawn_file_actions_t a;
  pid_t child;
  two(lfd, s);
  fill(x, 3000, 4, 0);
  put(s[0], x, 3000);
  CHECK(!shutdown(s[0], SHUT_WR) && !shutdown(s[1], SHUT_WR));
  until(s[1], POLLIN | POLLRDHUP, POLLIN | POLLRDHUP | POLLHUP);
  CHECK(!pipe2(p, O_CLOEXEC) && !posix_spawn_file_actions_init(&a));
  CHECK(!posix_spawn_file_actions_adddup2(&a, s[1], 0) && !posix_spawn_file_actions_adddup2(&a, p[1], 1));
  CHECK(!posix_spawn(&child, cat[0], &a, NULL, cat, none));
  close(p[1]);
  read_all(p[0], child, 3000, 0);
  posix_spawn_file_actions_destroy(&a);
  close(p[0]), close(s[0]), close(s[1]);
}

#define CASE(name) {#name, name, NULL, SOLO | NOSHM}
#define THREE(way) CASE(way##_after_close), CASE(way##_after_reset), CASE(way##_after_shutdown)
const test_case CASES[] = {
    THREE(spawned), THREE(vforked), THREE(forked), CASE(spawned_after_both), {0},
};
