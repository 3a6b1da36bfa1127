// Attempts to connect that come to nothing, and connections that no server accepts. Over a device
// (tests/vm/rsocket.sh): it is RDMA's manager that brings the two together, and RS_ADDRESS is one
// of an otherwise empty network.
#include "rs.h"

#include <dirent.h>
#include <grp.h>

// How many sockets this process has, the library's own with them.
static int sockets(void) {
  int n = 0;
  char what[64];
  DIR *d = opendir("/proc/self/fd");
  CHECK(d != NULL);
  for (struct dirent *e; (e = readdir(d)) != NULL;)
    n += readlinkat(dirfd(d), e->d_name, what, sizeof what) > 7 && strncmp(what, "socket:", 7) == 0;
  closedir(d);
  return n;
}

// More connections than the library has places for such that wait to be accepted: peers that are
// killed before give theirs back.
enum { CROWDS = 11, CROWD = 100 };

static void killed_server(int l) {
  char buf[100];
  // Whatever is opened with the first of all is open.
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get_eof(fd);
  EQ(rclose(fd), 0);
  nap(1000);
  int before = sockets();
  tell('b');
  nonblock(l, 1);
  for (int i = 0; i < CROWDS; i++) {
    hear('k');
    nap(500);
    // A connection that is known to be over has no socket any more.
    for (double since = now(); sockets() > before; nap(50)) took(since, 0, 1);
    FAILS(raccept(l, NULL, NULL), EAGAIN);
    tell('n');
  }
  nonblock(l, 0);
  fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get(fd, buf, sizeof buf);
  verify(buf, sizeof buf, 1, 0);
  put(fd, "!", 1);
  get_eof(fd);
}
static void killed_client(int fd) {
  EQ(rclose(dial()), 0);
  hear('b');
  for (int i = 0; i < CROWDS; i++) {
    int status;
    pid_t crowd = fork();
    if (crowd == 0) {
      for (int n = 0; n < CROWD; n++) dial();
      raise(SIGKILL);
    }
    EQ(waitpid(crowd, &status, 0), crowd);
    CHECK(WIFSIGNALED(status));
    tell('k');
    hear('n');
  }
  char c;
  fd = dial();
  put_stream(fd, 1, 100, 100);
  get(fd, &c, 1);
  EQ(rclose(fd), 0);
}

static void *to_nobody(void *arg) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, 9);
  // No host has this address.
  unsigned char *last = family == AF_INET ? (unsigned char *)&((struct sockaddr_in *)&a)->sin_addr + 3
                                          : ((struct sockaddr_in6 *)&a)->sin6_addr.s6_addr + 15;
  *last += 77;
  double since = now();
  EQ(rconnect(*(int *)arg, (struct sockaddr *)&a, len), -1);
  took(since, 1, 15);
  return NULL;
}

// A descriptor is closed while another thread connects by it, and its number given to a socket of
// the kernel's. That socket is no business of the thread's.
static void closed_meanwhile_solo(int l) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t len = sizeof a;
  int one = socket(AF_INET, SOCK_STREAM, 0), other = socket(AF_INET, SOCK_STREAM, 0), fd = rsocket(family, SOCK_STREAM, 0);
  CHECK(listen(one, 1) == 0 && getsockname(one, (struct sockaddr *)&a, &len) == 0);
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EQ(connect(other, (struct sockaddr *)&a, len), 0);
  pthread_t thread;
  EQ(pthread_create(&thread, NULL, to_nobody, &fd), 0);
  nap(300);
  EQ(rclose(fd), 0);
  EQ(dup2(other, fd), fd);
  EQ(pthread_join(thread, NULL), 0);
  EQ(getpeername(fd, (struct sockaddr *)&a, &len), 0);
  (void)l;
}

// A process that changes its credentials is a stranger to RDMA's manager, and begins anew.
static void credentials_server(int l) {
  for (int i = 0; i < 2; i++) {
    int fd = raccept(l, NULL, NULL);
    CHECK(fd >= 0);
    get_stream(fd, i, 10, 10);
    put(fd, "!", 1);
    get_eof(fd);
    EQ(rclose(fd), 0);
  }
  hear('d');
}
// What may go wrong goes wrong in the same way twice.
static int connected(void) {
  struct sockaddr_storage a;
  socklen_t len = address(&a, port);
  int fd = rsocket(family, SOCK_STREAM, 0);
  CHECK(fd >= 0);
  if (rconnect(fd, (struct sockaddr *)&a, len) == 0) return fd;
  int first = errno;
  if (rconnect(fd, (struct sockaddr *)&a, len) == 0) return fd;
  int second = errno;
  if (second != first) FAIL("%s, and then %s", strerror(first), strerror(second));
  EQ(rclose(fd), 0);
  return -1;
}
static void asks(int fd, int seed) {
  char c;
  put_stream(fd, seed, 10, 10);
  get(fd, &c, 1);
  EQ(rclose(fd), 0);
  nap(1000);
}
static void credentials_client(int fd) {
  asks(dial(), 0);
  EQ(setgroups(0, NULL), 0);
  fd = connected();
  if (fd < 0) FAIL("rconnect: %s", strerror(errno));
  asks(fd, 1);
  EQ(setgroups(0, NULL), 0);
  int other;
  EQ(rclose(listener(&other)), 0);
  EQ(setuid(65534), 0);
  connected();
  tell('d');
}

const rs_case CASES[] = {
    {"killed", killed_server, killed_client, RAW},
    {"closed_meanwhile", closed_meanwhile_solo, NULL, SOLO},
    {"credentials", credentials_server, credentials_client, RAW},
    {0},
};
