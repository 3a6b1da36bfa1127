// The harness of the semantics tests. One file per topic holds a table of cases. A case is what a
// server and a client do with one connection, each in a process of its own. So each can be
// preloaded or not.
//
//   topic list                 the names of its cases
//   topic run [-6] [case...]   run them; one line each: "ok name" or "FAIL name: why"
//
// `list` leaves out NOSHM and EARLY cases where policy excludes what they need, and SOLO cases if
// SEM_PAIRS is set.
//
// Environment. SEM_PRELOAD_SERVER, SEM_PRELOAD_CLIENT: library for that side, or empty. SEM_WARM:
// bytes that go to and fro before the case begins, so that the connection has had reason to leave
// TCP. SEM_LABEL: printed before the name. SEM_TIMEOUT: seconds for one case. SEM_ADDRESS and
// SEM_ADDRESS6: where cases meet, if not on the loopback interface.
//
// Linux TCP is the specification: every case passes there first.
#ifndef SEM_H
#define SEM_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  RAW = 1,    // the server gets the listening socket, the client gets -1 and dials for itself
  SOLO = 2,   // one process is both: only `server` runs, with the listening socket
  // One byte goes to and fro first even without SEM_WARM (always, where policy excludes TCP).
  TOUCH = 4,
  NOSHM = 8,  // needs the way back to TCP: not for a policy that excludes TCP
  // No warm-up, and no first byte: both sides are in calls on the connection from the start.
  COLD = 16,
  // Uses connections that no server has accepted yet: not for shared memory alone, to which both
  // ends must come.
  EARLY = 32,
};

typedef struct {
  const char *name;
  void (*server)(int fd);
  void (*client)(int fd);
  unsigned flags;
} test_case;

extern const test_case CASES[];  // ends with {0}

typedef struct {
  int family, port, is_client;
  long warm;
  const char *self;
} sem_ctx;
extern sem_ctx ctx;

// -- verdicts
void fail_at(const char *file, int line, const char *fmt, ...) __attribute__((noreturn, format(printf, 3, 4)));
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(e) \
  do { \
    if (!(e)) FAIL("%s is false (errno %d %s)", #e, errno, strerror(errno)); \
  } while (0)
// SAME compares, and EQ also wants that a call that succeeds has left errno alone, as the kernel's
// do: some programs look there first.
#define COMPARE_(e, want, and_errno) \
  do { \
    errno = 0; \
    long long got_ = (long long)(e); \
    int errno_ = errno; \
    long long want_ = (long long)(want); \
    if (got_ != want_) FAIL("%s is %lld, not %lld (errno %d %s)", #e, got_, want_, errno_, strerror(errno_)); \
    if (and_errno && got_ >= 0 && errno_) FAIL("%s sets errno: %s", #e, strerror(errno_)); \
  } while (0)
#define SAME(e, want) COMPARE_(e, want, 0)
#define EQ(e, want) COMPARE_(e, want, 1)
#define FAILS(e, err) \
  do { \
    errno = 0; \
    long long got_ = (long long)(e); \
    int errno_ = errno; \
    if (got_ != -1 || errno_ != (err)) \
      FAIL("%s is %lld with %s, not -1 with %s", #e, got_, strerror(errno_), strerror(err)); \
  } while (0)

// -- the two sides agree on an order of events over a pair of pipes
void tell(char c);
void hear(char c);
void tell_int(long v);
long hear_int(void);

// -- sockets
int dial(void);                             // a blocking connection to the server of this case
int dial_port(int port);                    // the same, to another port
int listener(int *port);                    // another listening socket on the same address
socklen_t address(struct sockaddr_storage *a, int port);
void nonblock(int fd, int on);
// Both ends are ours: where TCP is excluded, lets them attach first.
void settle(int a, int b);
int no_tcp(void);                           // policy excludes TCP
void warm(int fd, int i_start);             // to and fro, SEM_WARM bytes each way
// poll of one fd; revents, or 0. With patience from a second on.
short ready(int fd, short events, int ms);
double now(void);
void nap(int ms);
// As long, or as much longer as SEM_TIMEOUT is longer than 30 s. This is for bounds of what happens
// at once, and for naps in which what the other side has done arrives. Times that a case measures
// are not stretched. A wait of a second or more is for 20 at least: where others use the machine, a
// process may stand still for some seconds, and only what fails takes as long as that.
int patience(int ms);
// In seconds: what happens at once, and is timed, takes no longer on such a machine.
double most_at_once(void);
// On a machine of that kind: so many times, or as often as can be asked of it. And microseconds
// between the signals of a storm (10 kHz), or as many as leave it time for anything else.
int often(int n);
int storm_us(void);
double cpu_used(void);                      // user and system time of this process, seconds

// -- bytes whose value is a function of their position
void fill(void *buf, size_t n, uint64_t seed, uint64_t pos);
void verify(const void *buf, size_t n, uint64_t seed, uint64_t pos);
uint64_t rnd(uint64_t *state);
void put(int fd, const void *buf, size_t n);                // all of it, whatever it takes
void get(int fd, void *buf, size_t n);                      // exactly n
void put_stream(int fd, uint64_t seed, uint64_t from, uint64_t to, size_t max_chunk);
void get_stream(int fd, uint64_t seed, uint64_t from, uint64_t to, size_t max_chunk);
void get_eof(int fd);
// Both directions at once on a non-blocking socket: sends `n` of `out`, receives `n` of `in`.
void pump(int fd, uint64_t out, uint64_t in, uint64_t n, size_t max_chunk);

// -- processes
// exec of this program again.
pid_t spawn_self(int preloaded, const char *role, int fd0, const char *arg);
// Waits; 128+signal if killed.
int exit_status(pid_t pid);
// Of this process, by link target.
int count_fds(const char *prefix);
extern int (*extra_role)(const char *role, const char *arg);                  // for spawn_self
#endif
