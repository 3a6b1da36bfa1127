// What the machine allows at this moment, without any sockets: the ground that ratios stand on.
//
//   limits line [MILLISECONDS]
//       prints "line NS": the median round trip of one cache line between two cores
//   limits ring [MIB]
//       prints "ring MB/s": the best of three sizes of a ring between two cores and of two ways of
//       storing, two copies
#include "bench.h"

#include <emmintrin.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BATCH = 2000, MOST = 100000 };

typedef struct {
  _Alignas(256) atomic_ulong there;
  _Alignas(256) atomic_ulong back;
} lines;

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}
static pid_t answerer(lines *l) {
  pid_t p = fork();
  if (p) return p;
  pin(1);
  for (unsigned long seen = 0;;) {
    // Pairs with the asker's store.
    unsigned long now = atomic_load_explicit(&l->there, memory_order_acquire);
    if (now == seen) continue;
    if (now == ~0ul) _exit(0);
    atomic_store_explicit(&l->back, seen = now, memory_order_release);
  }
}
// Batches of round trips until the time is over; the median batch, so that a moment without a core
// does not count.
static double line_round_trip(lines *l, unsigned milliseconds) {
  static double batch[MOST];
  pid_t p = answerer(l);
  pin(0);
  unsigned long i = 0;
  int n = 0;
  for (uint64_t end = ns() + milliseconds * 1000000ull; ns() < end && n < MOST; n++) {
    uint64_t t = ns();
    for (int k = 0; k < BATCH; k++) {
      atomic_store_explicit(&l->there, ++i, memory_order_release);
      while (atomic_load_explicit(&l->back, memory_order_acquire) != i) {
      }
    }
    batch[n] = (double)(ns() - t) / BATCH;
  }
  atomic_store_explicit(&l->there, ~0ul, memory_order_release);
  waitpid(p, NULL, 0);
  qsort(batch, n, sizeof *batch, by_value);
  return n ? batch[n / 2] : 0;
}

static void streaming_copy(char *to, const char *from, size_t n) {
  for (size_t i = 0; i < n; i += 16) _mm_stream_si128((void *)(to + i), _mm_load_si128((const void *)(from + i)));
  _mm_sfence();
}
// One writer, one reader, each copies; `there` counts the bytes that were written, `back` those
// that were read.
static double ring(lines *l, size_t size, uint64_t total, int streams) {
  enum { PIECE = 64 << 10 };
  char *shared = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  char *own = aligned_alloc(4096, PIECE);
  if (shared == MAP_FAILED || !own) return 0;
  memset(shared, 0, size);
  memset(own, 1, PIECE);
  atomic_store(&l->there, 0);
  atomic_store(&l->back, 0);
  pid_t p = fork();
  if (!p) {
    pin(1);
    for (uint64_t at = 0; at < total; at += PIECE) {
      while (atomic_load_explicit(&l->there, memory_order_acquire) < at + PIECE) _mm_pause();
      memcpy(own, shared + at % size, PIECE);
      atomic_store_explicit(&l->back, at + PIECE, memory_order_release);
    }
    _exit(0);
  }
  pin(0);
  uint64_t t = ns();
  for (uint64_t at = 0; at < total; at += PIECE) {
    while (at + PIECE - atomic_load_explicit(&l->back, memory_order_acquire) > size) _mm_pause();
    if (streams) streaming_copy(shared + at % size, own, PIECE);
    else memcpy(shared + at % size, own, PIECE);
    atomic_store_explicit(&l->there, at + PIECE, memory_order_release);
  }
  waitpid(p, NULL, 0);
  double rate = total * 1e3 / (ns() - t);
  munmap(shared, size);
  free(own);
  return rate;
}

int main(int argc, char **argv) {
  lines *l = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (l == MAP_FAILED || argc < 2) return 2;
  unsigned long much = argc > 2 ? strtoul(argv[2], NULL, 10) : 0;
  if (!strcmp(argv[1], "line")) {
    printf("line %.1f\n", line_round_trip(l, much ? much : 50));
    return 0;
  }
  double best = 0;
  for (size_t size = 512 << 10; size <= 2 << 20; size *= 2) {
    for (int streams = 0; streams < 2; streams++) {
      double rate = ring(l, size, (much ? much : 512) << 20, streams);
      if (rate > best) best = rate;
    }
  }
  printf("ring %.0f\n", best);
  return 0;
}
