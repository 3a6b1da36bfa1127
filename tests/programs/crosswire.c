// Many connections that say the same, but for the last message: an end that hears another
// connection's is on a wrong connection.
//
//   crosswire serve PORTFILE
//       a thread for each connection echoes 1000 bytes at a time, until a line comes by stdin
//   crosswire ask PORT COUNT THREADS
//       COUNT connections, THREADS at a time; prints how many were right; exit 1 at the first that
//       is not
//
// In the environment ADDRESS is where to listen, or to ask: 127.0.0.1 without it. PORT is where to
// listen, ROUNDS how often one asks.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// An end has reason to leave TCP after 17 of the rounds. 64 connections at once on two processors
// have the other rounds to find each other in.
enum { SIZE = 1000 };
static int rounds = 60;
static struct sockaddr_in6 at;
static socklen_t at_size;
static atomic_int left, right;

static void die(const char *what) {
  fprintf(stderr, "%s: %s\n", what, strerror(errno));
  exit(1);
}
// An IPv6 socket takes IPv4 connections, too.
static void address(int port) {
  const char *text = getenv("ADDRESS") ? getenv("ADDRESS") : "127.0.0.1";
  struct sockaddr_in *four = (void *)&at;
  at.sin6_port = htons((uint16_t)port); // In either family at the same place.
  if (inet_pton(AF_INET, text, &four->sin_addr) == 1)
    four->sin_family = AF_INET, at_size = sizeof *four;
  else if (inet_pton(AF_INET6, text, &at.sin6_addr) == 1)
    at.sin6_family = AF_INET6, at_size = sizeof at;
  else die(text);
}
static int whole(int fd, char *b, size_t n) {
  for (size_t k = 0; k < n;) {
    ssize_t r = recv(fd, b + k, n - k, 0);
    if (r <= 0) return k || r < 0 ? -1 : 0;
    k += (size_t)r;
  }
  return 1;
}
static void put(int fd, const char *b, size_t n) {
  for (size_t k = 0; k < n;) {
    ssize_t r = send(fd, b + k, n - k, MSG_NOSIGNAL);
    if (r <= 0) die("send");
    k += (size_t)r;
  }
}

static void *echoes(void *p) {
  int fd = (int)(intptr_t)p;
  char b[SIZE];
  while (whole(fd, b, SIZE) == 1) put(fd, b, SIZE);
  close(fd);
  return NULL;
}
static void *accepts(void *p) {
  int l = (int)(intptr_t)p;
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setdetachstate(&a, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&a, 65536);
  for (;;) {
    int fd = accept(l, NULL, NULL);
    if (fd < 0) continue;
    pthread_t t;
    if (pthread_create(&t, &a, echoes, (void *)(intptr_t)fd)) die("a thread");
  }
  return NULL;
}
static void serve(const char *file) {
  address(getenv("PORT") ? atoi(getenv("PORT")) : 0);
  socklen_t n = at_size;
  int l = socket(at.sin6_family, SOCK_STREAM, 0), one = 1;
  if (l < 0 || setsockopt(l, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) || bind(l, (void *)&at, n) || listen(l, 512) ||
      getsockname(l, (void *)&at, &n))
    die("listen");
  FILE *f = fopen(file, "w");
  if (!f) die(file);
  fprintf(f, "%d\n", ntohs(at.sin6_port));
  fclose(f);
  pthread_t t;
  if (pthread_create(&t, NULL, accepts, (void *)(intptr_t)l)) die("a thread");
  getchar();
}

static void *asks(void *p) {
  char same[SIZE], got[SIZE];
  (void)p;
  for (int k; (k = atomic_fetch_sub(&left, 1)) > 0;) {
    int fd = socket(at.sin6_family, SOCK_STREAM, 0);
    if (fd < 0) die("socket");
    // All ports that there are may be in use for a moment.
    while (connect(fd, (void *)&at, at_size))
      if (errno != EADDRNOTAVAIL || usleep(1000)) die("connect");
    memset(same, 'x', SIZE);
    for (int i = 0; i <= rounds; i++) {
      if (i == rounds)
        for (int j = 0; j < SIZE; j++) same[j] = (char)((unsigned)k * 2654435761u >> (j % 4 * 8));
      put(fd, same, SIZE);
      if (whole(fd, got, SIZE) != 1) die("the end of the stream");
      if (memcmp(got, same, SIZE)) die("another connection's bytes");
    }
    close(fd);
    atomic_fetch_add(&right, 1);
  }
  return NULL;
}
static void ask(int port, int count, int threads) {
  pthread_t t[256];
  address(port);
  if (getenv("ROUNDS")) rounds = atoi(getenv("ROUNDS"));
  left = count;
  if (threads > 256) threads = 256;
  for (int i = 0; i < threads; i++)
    if (pthread_create(&t[i], NULL, asks, NULL)) die("a thread");
  for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
  printf("%d\n", right);
}

int main(int n, char **v) {
  if (n == 3 && !strcmp(v[1], "serve")) serve(v[2]);
  else if (n == 5 && !strcmp(v[1], "ask")) ask(atoi(v[2]), atoi(v[3]), atoi(v[4]));
  else return 2;
}
