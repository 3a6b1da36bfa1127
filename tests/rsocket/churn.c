// Connecting and closing, ten thousand times (or as often as RS_ROUNDS says): nothing grows.
#include "rs.h"

#include <dirent.h>

typedef struct {
  long descriptors, maps, resident;
} footprint;

static footprint measure(void) {
  footprint f = {0, 0, 0};
  char line[512];
  DIR *d = opendir("/proc/self/fd");
  while (readdir(d)) f.descriptors++;
  closedir(d);
  FILE *maps = fopen("/proc/self/maps", "r");
  while (fgets(line, sizeof line, maps)) f.maps++;
  fclose(maps);
  FILE *status = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof line, status))
    if (sscanf(line, "VmRSS: %ld", &f.resident) == 1) break;
  fclose(status);
  return f;
}

static void same_as(const footprint *before, const char *who) {
  footprint f = measure();
  if (f.descriptors > before->descriptors + 8 || f.maps > before->maps + 2 || f.resident > before->resident + 512)
    FAIL("%s: from %ld to %ld descriptors, %ld to %ld maps, %ld to %ld KiB", who, before->descriptors, f.descriptors,
         before->maps, f.maps, before->resident, f.resident);
}

static int rounds(void) {
  const char *n = getenv("RS_ROUNDS");
  return n ? atoi(n) : 10000;
}

// What is made with the first connections, and kept, is there after so many.
enum { FIRST = 300 };

static void server(int l) {
  footprint before = {0, 0, 0};
  char buf[100];
  for (int i = 0, n = rounds(); i < n; i++) {
    int fd = raccept(l, NULL, NULL);
    CHECK(fd >= 0);
    get(fd, buf, sizeof buf);
    verify(buf, sizeof buf, i, 0);
    put(fd, buf, sizeof buf);
    get_eof(fd);
    EQ(rclose(fd), 0);
    if (i == FIRST) before = measure();
  }
  same_as(&before, "the server");
}
static void client(int fd) {
  footprint before = {0, 0, 0};
  char buf[100];
  for (int i = 0, n = rounds(); i < n; i++) {
    fd = dial();
    fill(buf, sizeof buf, i, 0);
    put(fd, buf, sizeof buf);
    get(fd, buf, sizeof buf);
    EQ(rclose(fd), 0);
    if (i == FIRST) before = measure();
    alarm(60 * slow());
  }
  same_as(&before, "the client");
}
// The alarm of the other side goes by rounds too.
static void patient_server(int l) {
  alarm(0);
  server(l);
}

// Both ends in one process, and sets and unconnected sockets beside them.
static void alone(int l) {
  footprint before = {0, 0, 0};
  struct epoll_event e = {.events = EPOLLIN};
  alarm(0);
  for (int i = 0, n = rounds() / 4; i < n; i++) {
    int ends[2], set = repoll_create(0), idle = rsocket(family, SOCK_STREAM, 0);
    char c;
    CHECK(set >= 0 && idle >= 0);
    pair(l, ends);
    EQ(repoll_ctl(set, EPOLL_CTL_ADD, ends[1], &e), 0);
    EQ(repoll_ctl(set, EPOLL_CTL_ADD, idle, &e), 0);
    put(ends[0], "x", 1);
    do {
      EQ(repoll_wait(set, &e, 1, 10000), 1);
      e.events &= EPOLLIN;
    } while (!e.events);
    get(ends[1], &c, 1);
    // In all orders.
    EQ(rclose(i % 2 ? ends[0] : set), 0);
    EQ(rclose(i % 3 ? ends[1] : idle), 0);
    EQ(rclose(i % 2 ? set : ends[0]), 0);
    EQ(rclose(i % 3 ? idle : ends[1]), 0);
    if (i == FIRST) before = measure();
  }
  if (rounds() / 4 > FIRST) same_as(&before, "one process");
}

const rs_case CASES[] = {
    {"two_processes", patient_server, client, RAW},
    {"one_process", alone, NULL, SOLO},
    {0},
};
