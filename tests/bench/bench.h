// What the two measuring programs share: a clock, a core to run on, and how long a process was kept
// from running.
#ifndef BENCH_H
#define BENCH_H
#define _GNU_SOURCE
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

static inline void pin(int cpu) {
  cpu_set_t s;
  CPU_ZERO(&s);
  CPU_SET(cpu, &s);
  sched_setaffinity(0, sizeof s, &s);  // a machine with one core stays as it is
}
static inline uint64_t ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ull + t.tv_nsec;
}
// Nanoseconds for which this process could have run, but others had its core (0 where the kernel
// does not count).
static inline uint64_t kept_waiting(void) {
  unsigned long long ran = 0, waited = 0;
  FILE *f = fopen("/proc/self/schedstat", "r");
  if (!f) return 0;
  if (fscanf(f, "%llu %llu", &ran, &waited) != 2) waited = 0;
  fclose(f);
  return waited;
}
// The share of its time, in percent, that a process was kept waiting; each writes its own, both see
// the two.
typedef struct {
  volatile uint64_t began[2], waited[2];
  volatile double percent[2];
  volatile int done;
} waits;
static inline waits *new_waits(void) {
  void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}
static inline void waits_begin(waits *w, int who) {
  w->waited[who] = kept_waiting();
  w->began[who] = ns();
}
static inline void waits_end(waits *w, int who) {
  w->percent[who] = 100.0 * (kept_waiting() - w->waited[who]) / (ns() - w->began[who] + 1);
}
static inline int most_waited(const waits *w) {
  return (int)((w->percent[0] > w->percent[1] ? w->percent[0] : w->percent[1]) + 0.5);
}
#endif
