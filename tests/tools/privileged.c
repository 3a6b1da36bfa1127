// Exchanges with an echo server what is enough to leave TCP, as a stand-in for a setuid program
// (mount.nfs, sudo with LDAP).
//
//   privileged PORT serve
//       echoes one connection
//   privileged PORT
//       prints "secure 1" if the kernel gave it privileges, then "done"
//   privileged PORT PROGRAM
//       becomes the other user altogether, then executes PROGRAM PORT
//
// With -DRSOCKETS: makes an rsocket that finds no peer.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/socket.h>
#include <unistd.h>
#ifdef RSOCKETS
#include <rdma/rsocket.h>
#endif

#ifndef RSOCKETS
static int serve(struct sockaddr_in *a) {
  char block[65536];
  int on = 1, l = socket(AF_INET, SOCK_STREAM, 0);
  setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(l, (void *)a, sizeof *a) || listen(l, 1)) return 7;
  int c = accept(l, 0, 0);
  for (ssize_t n; (n = read(c, block, sizeof block)) > 0;) if (write(c, block, n) != n) return 8;
  return 0;
}
#endif

int main(int argc, char **argv) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  char block[1000] = "a line that the user has chosen\n";
  if (argc < 2) return 2;
  a.sin_port = htons(atoi(argv[1]));
#ifndef RSOCKETS
  if (argc > 2 && !strcmp(argv[2], "serve")) return serve(&a);
#endif
  printf("secure %lu\n", getauxval(AT_SECURE));
  fflush(stdout);
  if (argc > 2) {
    if (setresgid(getegid(), getegid(), getegid()) || setresuid(geteuid(), geteuid(), geteuid())) return 3;
    execl(argv[2], argv[2], argv[1], (char *)0);
    return 4;
  }
#ifdef RSOCKETS
  int s = rsocket(AF_INET, SOCK_STREAM, 0);
  if (s < 0 || rconnect(s, (void *)&a, sizeof a) == 0 || rclose(s)) return 5;
  (void)block;
#else
  int s = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(s, (void *)&a, sizeof a)) return 5;
  for (int i = 0; i < 60; i++) {
    if (write(s, block, sizeof block) != sizeof block || recv(s, block, sizeof block, MSG_WAITALL) != sizeof block) return 6;
  }
#endif
  puts("done");
  return 0;
}
