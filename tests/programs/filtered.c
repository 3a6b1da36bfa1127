// A program under a seccomp filter of its caller's making.
//
//   filtered [-only] [-times N] ACTION CALL[:ARGUMENT=VALUE]... -- PROGRAM...
//       PROGRAM, under a filter that does ACTION for the calls that are named (by name or number),
//       with that argument (0 to 5) if one is given, and lets all others through. With -only it
//       lets those through and does ACTION for all others. ACTION: kill, kill-thread, trap, or an
//       error's number. With -times there are so many filters alike.
//
// It needs no library. The filter stands when PROGRAM begins, as a service manager's or a
// container's.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct { const char *name; long number; } CALLS[] = {
#include "filtered_calls.h"
    {NULL, -1},
};

static struct sock_filter code[4096];
static unsigned n;

static void put(unsigned short c, unsigned k, unsigned char t, unsigned char f) {
  if (n == sizeof code / sizeof *code) exit(99);
  code[n++] = (struct sock_filter){c, t, f, k};
}

static void load(size_t at) { put(BPF_LD | BPF_W | BPF_ABS, at, 0, 0); }

static long number(const char *name) {
  char *end;
  long k = strtol(name, &end, 10);
  if (end != name && !*end) return k;
  for (int i = 0; CALLS[i].name; i++)
    if (!strcmp(CALLS[i].name, name)) return CALLS[i].number;
  return -1;
}

int main(int argc, char **argv) {
  int a = 1, only = 0, times = 1;
  for (; a < argc && argv[a][0] == '-'; a++) {
    if (!strcmp(argv[a], "-only")) only = 1;
    else if (!strcmp(argv[a], "-times") && a + 1 < argc) times = atoi(argv[++a]);
    else return 98;
  }
  if (a >= argc) return 98;
  const char *how = argv[a++];
  unsigned action = !strcmp(how, "kill") ? SECCOMP_RET_KILL_PROCESS : !strcmp(how, "kill-thread") ? SECCOMP_RET_KILL_THREAD
                    : !strcmp(how, "trap") ? SECCOMP_RET_TRAP : SECCOMP_RET_ERRNO | (atoi(how) & 0xffff);
  unsigned hit = only ? SECCOMP_RET_ALLOW : action, miss = only ? action : SECCOMP_RET_ALLOW;
  load(offsetof(struct seccomp_data, nr));
  // Execution has to come through, whatever the filter says.
  put(BPF_JMP | BPF_JEQ | BPF_K, SYS_execve, 0, 1);
  put(BPF_RET | BPF_K, SECCOMP_RET_ALLOW, 0, 0);
  for (; a < argc && strcmp(argv[a], "--"); a++) {
    char *argument = strchr(argv[a], ':');
    if (argument) *argument++ = 0;
    long k = number(argv[a]);
    if (k < 0) {
      if (only) continue;  // of another architecture
      fprintf(stderr, "no such call: %s\n", argv[a]);
      return 97;
    }
    if (!argument) {
      put(BPF_JMP | BPF_JEQ | BPF_K, k, 0, 1);
      put(BPF_RET | BPF_K, hit, 0, 0);
    } else {
      unsigned i = atoi(argument), value = strtoul(strchr(argument, '=') + 1, NULL, 0);
      put(BPF_JMP | BPF_JEQ | BPF_K, k, 0, 4);
      load(offsetof(struct seccomp_data, args) + 8 * i);
      put(BPF_JMP | BPF_JEQ | BPF_K, value, 0, 1);
      put(BPF_RET | BPF_K, hit, 0, 0);
      load(offsetof(struct seccomp_data, nr));
    }
  }
  if (a + 1 >= argc) return 98;
  put(BPF_RET | BPF_K, miss, 0, 0);
  struct sock_fprog program = {n, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 96;
  while (times--)
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) return 95;
  execvp(argv[a + 1], argv + a + 1);
  return 94;
}
