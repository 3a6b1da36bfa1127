// A daemon as they were written for decades: forks twice, closes everything, becomes another user,
// then serves.
//
//   daemon PORT FILE : serves one echo connection after another until one begins with 'q'; writes
//   its ids to FILE.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1]))};
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = socket(AF_INET, SOCK_STREAM, 0), one = 1;
  setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(l, (void *)&a, sizeof a) || listen(l, 16)) return 3;
  if (fork()) _exit(0);
  setsid();
  if (fork()) _exit(0);
  int out = open(argv[2], O_WRONLY | O_CREAT | O_TRUNC, 0644);
  umask(022);
  if (chdir("/")) return 4;
  for (int fd = 0; fd < 1024; fd++)
    if (fd != l && fd != out) close(fd);
  open("/dev/null", O_RDWR);
  if (dup(0) != 1 || dup(0) != 2) return 5;
  // Not the user nobody, which is also the owner of all that has none here: such a process is never
  // trusted.
  struct passwd *p = getpwnam("daemon");
  if (geteuid() == 0 && (!p || setgroups(0, NULL) || setgid(p->pw_gid) || setuid(p->pw_uid))) return 6;
  dprintf(out, "uid %d euid %d gid %d groups %d root again %d\n", getuid() == p->pw_uid, geteuid() == p->pw_uid,
          getgid() == p->pw_gid, getgroups(0, NULL), setuid(0));
  close(out);
  // No process knows our id, should the test go wrong.
  alarm(120);
  for (;;) {
    int fd = accept(l, NULL, NULL);
    if (fd < 0) return 7;
    static char b[60000];
    ssize_t k;
    while ((k = read(fd, b, sizeof b)) > 0) {
      if (b[0] == 'q') return 0;
      for (ssize_t o = 0; o < k;) {
        ssize_t m = write(fd, b + o, k - o);
        if (m <= 0) return 8;
        o += m;
      }
    }
    close(fd);
  }
}
