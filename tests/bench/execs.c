// What starting a program costs: fork, exec, wait of /bin/true, without a library and with one in
// turns.
//
//   execs NUMBER LIBRARY: prints "without N with N", microseconds, the quicker quartile of each,
//   with LIBRARY in LD_PRELOAD.
#include "bench.h"

#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>

static int by_value(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return x < y ? -1 : x > y;
}
int main(int argc, char **argv) {
  if (argc < 3) return 2;
  int number = atoi(argv[1]);
  char preload[4096], *environment[2][2] = {{NULL}, {preload, NULL}}, *command[] = {"true", NULL};
  snprintf(preload, sizeof preload, "LD_PRELOAD=%s", argv[2]);
  uint32_t *t[2] = {calloc(number + 1, sizeof **t), calloc(number + 1, sizeof **t)};
  for (int i = 0; i < number; i++) {
    for (int with = 0; with < 2; with++) {
      uint64_t t0 = ns();
      pid_t p;
      int st;
      if (posix_spawn(&p, "/bin/true", NULL, NULL, command, environment[with])) return 3;
      if (waitpid(p, &st, 0) != p || st) return 4;
      t[with][i] = ns() - t0;
    }
  }
  for (int with = 0; with < 2; with++) qsort(t[with], number, sizeof **t, by_value);
  printf("without %.1f with %.1f\n", t[0][number / 4] / 1e3, t[1][number / 4] / 1e3);
  return 0;
}
