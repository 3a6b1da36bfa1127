// The shared model of stress.c, and one process's own view of it. It says which connections there
// are, how far each stream is, which descriptor this process has for each.
#pragma once
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

enum { CONNS = 6, WORKERS = 5, THREADS = 2, MODEL = 40, MAIL = 41, FIRST = 50, PLACES = 300, PIECE = 70000, OPEN_AT_ONCE = 100000, DEEPEST = 2 };

typedef struct {
  pthread_mutex_t writer, reader;
  _Atomic uint64_t sent, received;
  uint64_t writing, reading;  // at most so many more, while a thread is inside
  uint64_t slack;  // bytes beyond `sent` that a killed writer may have sent
  int cut;         // a writer was killed, and the next one has not shut the direction down yet
  uint64_t lost;   // bytes beyond `received` that a killed reader may have taken
  _Atomic int shut, ended;    // by the sender; seen by the receiver
  _Atomic uint64_t key;
} stream;
typedef struct {
  stream way[2];  // from side 0, from side 1
  _Atomic uint32_t generation;
  _Atomic int open[2];  // each anchor has it
  _Atomic int back;     // 1 + the side that gives it to programs without the library
} conn;
typedef struct {
  conn conns[CONNS];
  _Atomic int over, failed, port;
  _Atomic uint64_t progress, done[12];
  _Atomic pid_t pids[2][WORKERS];
  char why[400], library[300];
} model;
enum { READ, WRITE, FORK, EXEC, EXEC_BARE, DUP, PASS, SHUT, KILL, SPAWN, RETIRED, TAKEN };
static const char *const NAMES[] = {"reads", "writes", "forks", "execs", "bare execs", "dups", "passed", "shut down", "kills", "spawned", "connections", "taken"};
static model *M;
static int side, bare, ticking;
// Forks since the worker; beyond DEEPEST there are none, or they would multiply for ever.
static int depth;
static char **ARGV;

// ---------------------------------------------------------------- one process's descriptors

typedef struct {
  int fd, busy;
  uint32_t generation;
} holding;
static holding held[CONNS];
static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;
static __thread uint64_t dice;

static uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
  x = (x ^ x >> 27) * 0x94d049bb133111ebu;
  return x ^ x >> 31;
}
static uint32_t roll(uint32_t n) { return (dice = mix(dice)) % n; }

__attribute__((format(printf, 1, 2))) static void wrong(const char *form, ...) {
  int zero = 0;
  if (atomic_compare_exchange_strong(&M->failed, &zero, 1)) {
    va_list list;
    va_start(list, form);
    int n = snprintf(M->why, sizeof M->why, "side %d%s pid %d: ", side, bare ? " bare" : "", getpid());
    vsnprintf(M->why + n, sizeof M->why - n, form, list);
    va_end(list);
  }
  M->over = 1;
}
static void count(int what) {
  M->progress++;
  M->done[what]++;
}
static unsigned char byte_at(uint64_t key, uint64_t p) { return mix(key ^ mix(p >> 3)) >> (8 * (p & 7)); }
static void fill(unsigned char *b, size_t n, uint64_t key, uint64_t p) {
  for (size_t i = 0; i < n; i++) b[i] = byte_at(key, p + i);
}
static int matches(const unsigned char *b, size_t n, uint64_t key, uint64_t p) {
  for (size_t i = 0; i < n; i++)
    if (b[i] != byte_at(key, p + i)) return 0;
  return 1;
}

// Where bytes of a stream are that are not where they should be: how many of them are right, and
// where the others belong.
static void place(char *said, size_t room, const unsigned char *b, size_t n, uint64_t from) {
  size_t right = 0;
  enum { ENOUGH = 24 };
  for (int c = 0; c < CONNS; c++)
    for (int way = 0; way < 2; way++) {
      stream *s = &M->conns[c].way[way];
      size_t same = 0;
      while (same < n && b[same] == byte_at(s->key, from + same)) same++;
      if (same > right) right = same;
    }
  int told = snprintf(said, room, "%zu of %zu right at %ju", right, n, (uintmax_t)from);
  if (right + ENOUGH > n) return;
  for (int c = 0; c < CONNS; c++)
    for (int way = 0; way < 2; way++) {
      stream *s = &M->conns[c].way[way];
      for (uint64_t p = 0; p < s->sent + PIECE && told < (int)room; p++)
        if (matches(b + right, ENOUGH, s->key, p)) told += snprintf(said + told, room - told, ", then %d/%d at %ju", c, way, (uintmax_t)p);
    }
}

// A descriptor for the connection, if this process has one for the present generation; not to be
// closed until let_go.
static int hold(int c) {
  int fd = -1;
  pthread_mutex_lock(&table);
  if (held[c].fd >= 0 && held[c].generation == M->conns[c].generation) fd = held[c].fd, held[c].busy++;
  pthread_mutex_unlock(&table);
  return fd;
}
static void let_go(int c) {
  pthread_mutex_lock(&table);
  held[c].busy--;
  pthread_mutex_unlock(&table);
}
// Closes what is out of date, unless it is in use.
static void tidy(void) {
  pthread_mutex_lock(&table);
  for (int c = 0; c < CONNS; c++)
    if (held[c].fd >= 0 && !held[c].busy && held[c].generation != M->conns[c].generation) {
      close(held[c].fd);
      held[c].fd = -1;
    }
  pthread_mutex_unlock(&table);
}
// True if it was free at once. `died` says whether its last owner was killed.
static int lock(pthread_mutex_t *m, int *died) {
  int r = pthread_mutex_trylock(m);
  *died = r == EOWNERDEAD;
  if (*died) pthread_mutex_consistent(m);
  return r == 0 || *died;
}
