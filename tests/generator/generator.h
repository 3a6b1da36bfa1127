// What the files of the generator share: the world that its calls change, and the kinds of calls.
#ifndef GENERATOR_H
#define GENERATOR_H
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 20, LARGEST = 3000, WARM = 40, OUT = 240 };

// All that a sequence knows. It goes as it is to a program that goes on after exec, and to the
// other process and back.
typedef struct {
  uint64_t seed, last;      // the sequence under way; the first that is not made
  int step;                 // the call under way
  int s[2];                 // s[0] dialled, s[1] was accepted; -1 where the other process has it
  uint64_t sent[2];         // positions of the streams that s[i] sends,
  uint64_t received[2];     // and receives
  int ended[2], closed[2];  // s[i] sends no more; is closed
  int deaf[2];              // s[i] reads no more
  int back[2];              // what s[i] sends has gone by the kernel's hands (for `kinds`)
  int reset[2];             // s[i] gets a reset
  int nagle[2];             // TCP_NODELAY is off at s[i]
  int edge[2];              // the set is to tell of bytes for s[i] by edges,
  uint64_t told[2];         // and has, when s[!i] had sent so many
  int six, strict;          // addresses; whether what TCP alone can do is left out
  int listener, port, set, control;
  char keep[MOST + 4], out[OUT];
} world;
extern world g;
extern char buffer[LARGEST * 4];

// -- generator.c
unsigned pick(unsigned n);
void die(const char *what);
void address(struct sockaddr_storage *a, socklen_t *n);
long waiting(int end);
void begin_call(uint64_t seed, int step);
void step(void);
void finish_step(void);
void kind(const char *name);  // from here on results may differ as an exception says
#define SAY(...) snprintf(g.out, OUT, __VA_ARGS__)
static inline const char *error(ssize_t r) { return r < 0 ? strerrorname_np(errno) : ""; }

// -- bytes.c
void write_out(int end, size_t n);
const char *read_back(int end, ssize_t n, int moves);
void was_sent(int end, ssize_t n);
void do_send(int end, size_t n);
void do_receive(int end, size_t n);
void do_transfer(int end, size_t n);
void do_urgent(int end);
// -- ready.c
void do_ready(int end);
void do_option(int end);
void do_foreign(void);
// -- life.c
void do_number(int end);
void do_process(int end);
void do_end(int end);
int act(int argc, char **argv);
void go_on(const char *role);  // this program again
void restore(const char *text);
// -- other.c
int whole(int fd, void *p, size_t n, int writing);
void other_pair(void);
int other_settled(void);
void other_step(void);
void other_close(void);
void reply(void);
int serve(void);
int other_start(const char *path);
int other_begin(const char *path, int six);
#endif
