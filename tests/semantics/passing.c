// Descriptors that go to another process in a message (SCM_RIGHTS): connections and listening sockets, used by the
// receiver, by both, by nobody; with the library and without it.
#include "sem.h"

#include <sys/un.h>

enum { MIB = 1 << 20, WAITING = 60000 };

static void echo_n(int fd, uint64_t n) {
  static char b[60000];
  for (uint64_t at = 0; at < n;) {
    ssize_t k = recv(fd, b, n - at < sizeof b ? n - at : sizeof b, 0);
    CHECK(k > 0);
    put(fd, b, k);
    at += k;
  }
}
static void echo_all(int fd) {
  static char b[60000];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
static void ask(int fd, uint64_t n) {
  static uint64_t seed;
  static char b[9000];
  seed++;
  for (uint64_t at = 0; at < n;) {
    size_t k = n - at < sizeof b ? n - at : sizeof b;
    fill(b, k, seed, at);
    put(fd, b, k);
    get(fd, b, k);
    verify(b, k, seed, at);
    at += k;
  }
}
static void finish(int fd) {
  CHECK(!shutdown(fd, SHUT_WR));
  get_eof(fd);
}

// -- messages
typedef struct {
  struct msghdr m;
  struct iovec v;
  char c;
  union {
    char b[CMSG_SPACE(2 * sizeof(int))];
    struct cmsghdr align;
  } u;
} letter;
static struct msghdr *letter_with(letter *l, int n, int a, int b) {
  memset(l, 0, sizeof *l);
  l->c = 'p';
  l->v = (struct iovec){&l->c, 1};
  l->m = (struct msghdr){.msg_iov = &l->v, .msg_iovlen = 1, .msg_control = l->u.b, .msg_controllen = CMSG_SPACE(n * sizeof(int))};
  struct cmsghdr *h = CMSG_FIRSTHDR(&l->m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(n * sizeof(int));
  memcpy(CMSG_DATA(h), (int[]){a, b}, n * sizeof(int));
  return &l->m;
}
static struct msghdr *empty_letter(letter *l) {
  memset(l, 0, sizeof *l);
  l->v = (struct iovec){&l->c, 1};
  l->m = (struct msghdr){.msg_iov = &l->v, .msg_iovlen = 1, .msg_control = l->u.b, .msg_controllen = sizeof l->u.b};
  return &l->m;
}
static int inside(const letter *l, int i) {
  int fd;
  struct cmsghdr *h = CMSG_FIRSTHDR(&l->m);
  CHECK(h && h->cmsg_type == SCM_RIGHTS && h->cmsg_len >= CMSG_LEN((i + 1) * sizeof(int)));
  memcpy(&fd, CMSG_DATA(h) + i * sizeof fd, sizeof fd);
  CHECK(fd >= 0);
  return fd;
}
static void pass(int via, int fd) {
  letter l;
  EQ(sendmsg(via, letter_with(&l, 1, fd, -1), 0), 1);
}
static int take(int via) {
  letter l;
  EQ(recvmsg(via, empty_letter(&l), MSG_CMSG_CLOEXEC), 1);
  return inside(&l, 0);
}

// -- the other programs: descriptor 0 brings the message
// Whether all of a stream that began at `arg` comes, or an error; but never an end before its time.
static int whole(int fd, uint64_t at) {
  static char b[9000];
  for (;;) {
    ssize_t k = recv(fd, b, sizeof b, 0);
    if (k < 0) return errno == ECONNRESET || errno == ENOTCONN ? 0 : 3;
    if (k == 0) return at == 2 * MIB + WAITING ? 0 : 4;
    verify(b, k, 1, at);
    at += k;
  }
}
static int role(const char *r, const char *arg) {
  int fd = take(0);
  if (!strcmp(r, "echo")) {
    echo_n(fd, atol(arg));
    return 0;
  }
  if (!strcmp(r, "accept")) {
    for (int n = atoi(arg); n > 0; n--) {
      int c = accept(fd, NULL, NULL);
      CHECK(c >= 0);
      echo_all(c);
      close(c);
    }
    return 0;
  }
  return whole(fd, atol(arg));
}
__attribute__((constructor)) static void set_role(void) { extra_role = role; }

// A program that waits for a message; it has nothing of ours but that.
static pid_t program(int preloaded, const char *what, const char *arg, int *via) {
  int s[2];
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, s));
  pid_t p = spawn_self(preloaded, what, s[1], arg);
  close(s[1]);
  *via = s[0];
  return p;
}

// The peer has sent, and ended, when the descriptor goes to a program without the library, with bytes unread. On TCP it
// gets them all. (What cannot be had is said: an error, never an end that comes too early.)
static void unread_server(int fd) {
  int via;
  pid_t p = program(0, "whole", "2097152", &via);
  static char b[60000];
  for (uint64_t at = 0; at < 2 * MIB;) {
    size_t n = 2 * MIB - at < sizeof b ? 2 * MIB - at : sizeof b;
    get(fd, b, n);
    verify(b, n, 1, at);
    at += n;
  }
  hear('e');
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pass(via, fd);
  close(fd);
  EQ(exit_status(p), 0);
}
static void unread_client(int fd, int how) {
  put_stream(fd, 1, 0, 2 * MIB + WAITING, 20000);
  switch (how) {
    case 0: break;
    case 1: CHECK(!shutdown(fd, SHUT_WR)); break;
    case 2: close(fd); break;
    default: {  // the last that has it is killed
      int p[2];
      CHECK(!pipe(p));
      pid_t kid = fork();
      if (!kid) pause();
      close(fd);
      kill(kid, SIGKILL);
      EQ(exit_status(kid), 128 + SIGKILL);
    }
  }
  tell('e');
  if (how == 0) {
    nap(20);
    CHECK(!shutdown(fd, SHUT_WR));
  }
  if (how < 2) {
    char c;
    ssize_t n = recv(fd, &c, 1, 0);
    CHECK(n == 0 || (n < 0 && errno == ECONNRESET));
  }
}
static void unread_open(int fd) { unread_client(fd, 0); }
static void unread_shut(int fd) { unread_client(fd, 1); }
static void unread_closed(int fd) { unread_client(fd, 2); }
static void unread_killed(int fd) { unread_client(fd, 3); }

// Both ends go at one time to programs without the library, with bytes unread on both sides.
static void both(int fd) {
  int via;
  pid_t p = program(0, "whole", "2097152", &via);
  CHECK(!fcntl(fd, F_SETFD, FD_CLOEXEC));
  pump(fd, 1, 1, 2 * MIB, 20000);
  put_stream(fd, 1, 2 * MIB, 2 * MIB + WAITING, 20000);
  tell('r');
  hear('r');
  pass(via, fd);
  tell('p');
  hear('p');
  shutdown(fd, SHUT_WR);  // both have it elsewhere by now
  close(fd);
  EQ(exit_status(p), 0);
}

const test_case CASES[] = {
    {"unread", unread_server, unread_open, NOSHM},
    {"unread_and_shut_down", unread_server, unread_shut, NOSHM},
    {"unread_and_closed", unread_server, unread_closed, NOSHM},
    {"unread_and_killed", unread_server, unread_killed, NOSHM},
    {"both_ends_at_a_time", both, both, NOSHM},
    {0},
};
