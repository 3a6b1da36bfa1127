// What the data path, and attaching, cost in system calls. Both ends of a connection in one thread;
// a write to descriptor -1 marks where a stage begins, for the tracer (tests/syscalls.rs).
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SIZE = 1024 };
static char buffer[SIZE];

static void stage(const char *name) {
  if (write(-1, name, strlen(name)) >= 0) _exit(3);
}
static int move(int from, int to) {
  if (send(from, buffer, SIZE, MSG_NOSIGNAL) != SIZE) return 0;
  return recv(to, buffer, SIZE, 0) == SIZE;
}
int main(void) {
  struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  socklen_t length = sizeof a;
  int p[2], listener = socket(AF_INET, SOCK_STREAM, 0), c = socket(AF_INET, SOCK_STREAM, 0);
  if (bind(listener, (void *)&a, length) || listen(listener, 1) || getsockname(listener, (void *)&a, &length)) return 1;
  if (connect(c, (void *)&a, length) || pipe(p)) return 1;
  int s = accept(listener, NULL, NULL);
  stage("foreign");
  for (int i = 0; i < 100; i++)
    if (write(p[1], buffer, 1) != 1 || read(p[0], buffer, 1) != 1) return 2;
  stage("young");
  for (int i = 0; i < 2; i++)
    if (!move(c, s) || !move(s, c)) return 2;
  stage("warm");
  for (int i = 0; i < 200; i++)
    if (!move(c, s) || !move(s, c)) return 2;
  stage("awake");
  for (int i = 0; i < 3000; i++)
    if (!move(c, s) || !move(s, c)) return 2;
  stage("empty");
  for (int i = 0; i < 20; i++)
    if (recv(c, buffer, SIZE, MSG_DONTWAIT) != -1 || errno != EAGAIN) return 2;
  stage("other");
  int c2 = socket(AF_INET, SOCK_STREAM, 0);
  if (connect(c2, (void *)&a, length)) return 1;
  int s2 = accept(listener, NULL, NULL);
  stage("attach");
  for (int i = 0; i < 60; i++)
    if (!move(c2, s2) || !move(s2, c2)) return 2;
  stage("end");
  puts("done");
  return 0;
}
