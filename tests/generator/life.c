// Calls that change which process has the connection and under what number, and those that end it.
#include "generator.h"

// The connection is about to go to a process that may have the kernel alone. What lies unread in a
// device cannot be put before what TCP has brought behind it. Nor can it come by TCP to an end that
// takes nothing more: the library resets the connection then. False: this is left alone.
static int may_give_away(int end) {
  if (g.closed[!end] || g.ended[!end] || g.back[!end] || (g.deaf[end] && g.ended[end])) {
    if (waiting(end) > 0) {
      if (pick(8)) return 0;
      kind("given_away_unread");
    }
  }
  g.back[end] = 1;
  return 1;
}

// By a message to ourselves.
static int passed(int fd) {
  int p[2], other = -1;
  char c = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {&c, 1};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, p)) die("socketpair");
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  if (sendmsg(p[0], &m, 0) == 1 && recvmsg(p[1], &m, 0) == 1) memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof other);
  close(p[0]), close(p[1]);
  return other;
}

// Another number for the connection, by dup and its kin, by a message.
void do_number(int end) {
  int other = -1, how = (int)pick(5), s = g.s[end];
  if (how == 4 && !may_give_away(end)) return;
  if (how == 0) other = dup(s);
  if (how == 1) other = fcntl(s, F_DUPFD_CLOEXEC, 50);
  if (how == 2) other = dup2(s, 60 + end);  // perhaps where it is
  if (how == 3) other = dup3(s, s == 70 + end ? 80 + end : 70 + end, 0);
  if (how == 4) other = passed(s);
  if (how == 1) fcntl(other, F_SETFD, 0);  // it is to live through exec
  // A registration stays with its old number: it is taken away first, so that the old number means
  // nothing any more.
  epoll_ctl(g.set, EPOLL_CTL_DEL, s, NULL);
  g.edge[end] = 0;
  if (other != s) close(s);
  g.s[end] = other;
  SAY("%d number/%d = %s", end, how, other < 0 ? "none" : "ok");
}

static char program[64];
static const char *self(void) {
  if (!*program) {
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n > 0) program[n] = 0;
  }
  return "/proc/self/exe";
}

// A child that writes, that reads, or a program that does; perhaps one without the library.
int act(int argc, char **argv) {
  if (argc < 6) return 9;
  int fd = atoi(argv[2]);
  size_t n = strtoul(argv[4], NULL, 10);
  ssize_t r;
  if (*argv[3] == 'w') {
    if (read(atoi(argv[5]), buffer, n) != (ssize_t)n) return 8;
    r = write(fd, buffer, n);
  } else {
    r = recv(fd, buffer, n, 0);
    if (r > 0 && write(atoi(argv[5]), buffer, (size_t)r) != r) return 7;
  }
  return r < 0 ? 1 : 0;
}

static void in_child(int end, size_t n, int reads, int how, int pipe_end) {
  char fd[16], size[16], by[16];
  // A program without the library is given what stands on 0 to 2.
  int number = how == 2 ? dup2(g.s[end], 0) : g.s[end];
  snprintf(fd, sizeof fd, "%d", number);
  snprintf(size, sizeof size, "%zu", n);
  snprintf(by, sizeof by, "%d", pipe_end);
  char *args[] = {"generator", "act", fd, reads ? "r" : "w", size, by, NULL};
  if (how == 0) _exit(act(6, args));
  if (how == 2) unsetenv("LD_PRELOAD");
  execv(self(), args);
  _exit(99);
}

// A child that reads or writes, itself or as another program.
static void child(int end, int how) {
  size_t n = 1 + pick(LARGEST);
  int reads = (int)pick(2) && how != 2, p[2], q[2], status = -1;
  // A program without the library cannot use what TCP does not carry.
  if (how == 2 && (g.strict || !may_give_away(end))) return;
  if (pipe(p) || pipe(q)) die("pipe");
  write_out(end, n);
  if (!reads && write(p[1], buffer, n) != (ssize_t)n) die("pipe");
  pid_t kid = fork();
  if (kid == 0) in_child(end, n, reads, how, reads ? q[1] : p[0]);
  close(q[1]), close(p[0]), close(p[1]);
  ssize_t got = 0, k;
  while ((k = read(q[0], buffer + got, sizeof buffer - (size_t)got)) > 0) got += k;
  close(q[0]);
  waitpid(kid, &status, 0);
  if (!reads && status == 0) was_sent(end, (ssize_t)n);
  const char *right = reads ? read_back(end, got, 1) : "";
  SAY("%d child/%d %s %zu = %#x %zd%s", end, how, reads ? "reads" : "writes", n, status, got, right);
}

// -- this program again, with all that it knows in an argument
void restore(const char *text) {
  unsigned char *to = (void *)&g;
  for (size_t i = 0; i < sizeof g && text[2 * i]; i++) {
    unsigned v;
    sscanf(text + 2 * i, "%2x", &v);
    to[i] = (unsigned char)v;
  }
  // Registrations are gone with the old set.
  g.edge[0] = g.edge[1] = 0;
  g.set = epoll_create1(EPOLL_CLOEXEC);
}
void go_on(const char *role) {
  static char text[2 * sizeof g + 1];
  const unsigned char *from = (void *)&g;
  for (size_t i = 0; i < sizeof g; i++) snprintf(text + 2 * i, 3, "%02x", from[i]);
  fflush(stdout);
  execl(self(), "generator", "resume", role, text, NULL);
  die("exec");
}

void do_process(int end) {
  switch (pick(5)) {
    case 0: case 1: child(end, 0); break;
    case 2: child(end, 1); break;
    case 3: child(end, 2); break;
    default:
      SAY("%d exec", end);
      go_on(g.s[0] < 0 ? "other" : "this");
  }
}

// The end of a direction, of both, of the connection.
void do_end(int end) {
  struct linger now = {1, 0};
  unsigned how = pick(8);
  if (how < 5) {
    int which = how < 3 ? SHUT_WR : how == 3 ? SHUT_RD : SHUT_RDWR;
    int r = shutdown(g.s[end], which);
    if (r == 0 && which != SHUT_RD) g.ended[end] = 1;
    if (r == 0 && which != SHUT_WR) g.deaf[end] = 1;
    SAY("%d shutdown %d = %d %s", end, which, r, error(r));
    return;
  }
  if (how == 5) setsockopt(g.s[end], SOL_SOCKET, SO_LINGER, &now, sizeof now);
  // Unread bytes make a reset of it.
  if (how == 5 || waiting(end) > 0) g.reset[!end] = 1;
  int r = close(g.s[end]);
  g.ended[end] = g.closed[end] = 1;
  SAY("%d close%s = %d %s", end, how == 5 ? " by reset" : "", r, error(r));
}
