// The harness of the tests of librsocket.so's calls. One file per topic holds a table of cases. A
// case is what a server and a client do with one connection, each in a process of its own. The
// process that starts them makes no socket, so that the two are strangers.
//
//   topic [-6] [case...]    one line each: "ok name" or "FAIL name: why"
//
// RS_ADDRESS and RS_ADDRESS6 are addresses of this host in place of the loopback interface's.
// RS_SLOW is how many times longer than usual everything may take. Built with -DPLAIN the calls are
// the kernel's own: the specification.
#ifndef RS_H
#define RS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#ifdef PLAIN
#include "plain.h"
#else
#include <rdma/rsocket.h>
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum {
  RAW = 1,   // the server gets the listening rsocket, the client gets -1 and dials for itself
  SOLO = 2,  // one process: only `server` runs, with the listening rsocket
};

typedef struct {
  const char *name;
  void (*server)(int fd);
  void (*client)(int fd);
  unsigned flags;
} rs_case;

extern const rs_case CASES[];  // ends with {0}
extern int family, port;       // of the case's listener
extern int seconds;            // that a case may take: RS_SECONDS, or 30

void fail_at(const char *file, int line, const char *fmt, ...) __attribute__((noreturn, format(printf, 3, 4)));
#define FAIL(...) fail_at(__FILE__, __LINE__, __VA_ARGS__)
#define CHECK(e) \
  do { \
    if (!(e)) FAIL("%s is false (errno %d %s)", #e, errno, strerror(errno)); \
  } while (0)
#define EQ(e, want) \
  do { \
    errno = 0; \
    long long got_ = (long long)(e), want_ = (long long)(want); \
    if (got_ != want_) FAIL("%s is %lld, not %lld (errno %d %s)", #e, got_, want_, errno, strerror(errno)); \
  } while (0)
#define FAILS(e, err) \
  do { \
    errno = 0; \
    long long got_ = (long long)(e); \
    int errno_ = errno; \
    if (got_ != -1 || errno_ != (err)) \
      FAIL("%s is %lld with %s, not -1 with %s", #e, got_, strerror(errno_), strerror(err)); \
  } while (0)

// The two sides agree on an order of events over a pair of pipes.
void tell(char c);
void hear(char c);

int fresh(void);                                             // a blocking stream rsocket
// A blocking connection to the server of this case.
int dial(void);
// Another listening rsocket on the same address.
int listener(int *to_port);
// Of this host: RS_ADDRESS, or the loopback interface's.
socklen_t address(struct sockaddr_storage *a, int to_port);
// Both ends of a connection to a listener of our own.
void pair(int at, int ends[2]);
void nonblock(int fd, int on);
short ready(int fd, short events, int ms);                   // rpoll of one; revents, or 0
int option(int fd, int level, int name);                     // an integer option
void set_option(int fd, int level, int name, int value);
double now(void);
void nap(int ms);
double cpu_used(void);
// In seconds; `most` is stretched by RS_SLOW.
void took(double since, double least, double most);
double slow(void);                                           // RS_SLOW

// Bytes whose value is a function of their position.
void fill(void *buf, size_t n, uint64_t seed, uint64_t pos);
void verify(const void *buf, size_t n, uint64_t seed, uint64_t pos);
void put(int fd, const void *buf, size_t n);
void get(int fd, void *buf, size_t n);
void touch(int fd, int first);  // a byte goes to and fro; `first` says that this end sends it
void put_stream(int fd, uint64_t seed, uint64_t n, size_t chunk);
void get_stream(int fd, uint64_t seed, uint64_t n, size_t chunk);
void get_eof(int fd);
#endif
