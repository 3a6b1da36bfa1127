// What starting a program costs: fork, exec, wait of /bin/true.
//
//   execs NUMBER [LIBRARY]: prints "us N", the median, with LIBRARY in LD_PRELOAD.
#include "bench.h"

#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
int main(int argc, char **argv) {
  int number = argc > 1 ? atoi(argv[1]) : 200;
  char preload[4096], *with[] = {preload, NULL}, *without[] = {NULL}, *command[] = {"true", NULL};
  snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argc > 2 ? argv[2] : "");
  uint32_t *t = calloc(number + 1, sizeof *t);
  for (int i = 0; i < number; i++) {
    uint64_t t0 = ns();
    pid_t p;
    int st;
    if (posix_spawn(&p, "/bin/true", NULL, NULL, command, argc > 2 ? with : without)) return 3;
    if (waitpid(p, &st, 0) != p || st) return 4;
    t[i] = ns() - t0;
  }
  qsort(t, number, sizeof *t, by_value);
  printf("us %.1f\n", t[number / 2] / 1e3);
  return 0;
}
