// locked PORT FLAGS before|after N : mlockall(FLAGS) before or after N connections to an echo
// server are made. Each moves 40 KB, and as much again at the end. Prints what mlockall said, and
// the memory that is locked and resident, in KB.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

static void die(const char *what) {
  perror(what);
  exit(1);
}

static void echo(int fd) {
  char b[1000] = {0};
  for (int i = 0; i < 40; i++) {
    if (write(fd, b, sizeof b) != sizeof b) die("write");
    for (size_t n = 0; n < sizeof b;) {
      ssize_t k = read(fd, b, sizeof b - n);
      if (k <= 0) die("read");
      n += k;
    }
  }
}

static long status(const char *key) {
  char line[200];
  long value = -1;
  FILE *f = fopen("/proc/self/status", "r");
  if (!f) die("status");
  while (fgets(line, sizeof line, f))
    if (!strncmp(line, key, strlen(key))) value = atol(line + strlen(key) + 1);
  fclose(f);
  return value;
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  struct sockaddr_in a = {
      .sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int before = !strcmp(argv[3], "before"), n = atoi(argv[4]), r = 0, fds[100];
  if (n > 100) return 2;
  errno = 0;
  if (before) r = mlockall(atoi(argv[2]));
  int error = errno;
  for (int i = 0; i < n; i++) {
    fds[i] = socket(AF_INET, SOCK_STREAM, 0);
    if (fds[i] < 0 || connect(fds[i], (struct sockaddr *)&a, sizeof a)) die("connect");
    echo(fds[i]);
  }
  errno = 0;
  if (!before) r = mlockall(atoi(argv[2])), error = errno;
  for (int i = 0; i < n; i++) echo(fds[i]);
  printf("mlockall %d %d locked %ld resident %ld\n", r, error, status("VmLck"), status("VmRSS"));
  return 0;
}
