// How a connection ends, for interop.sh: linked with upstream's library, and run with it or with
// ours in its place. The server ends it in one way, and the client must hear of that within
// SECONDS, although the server's process goes on.
//
//   ends server|client ADDRESS PORT WAY SECONDS
//
//   unread    closes with bytes unread; the client sleeps in rrecv
//   reset     closes with SO_LINGER 0; the client sleeps in rrecv
//   both      shuts both directions, and does not close; the client sends until it is told
//   turns     the same, one direction after the other
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#define CHECK(e) \
    do { \
        if (!(e)) fprintf(stderr, "ends: line %d: %s: %s\n", __LINE__, #e, strerror(errno)), exit(1); \
    } while (0)

static const char *way;

static int is(const char *name) { return strcmp(way, name) == 0; }
static void say(int fd, char c) { CHECK(rsend(fd, &c, 1, 0) == 1); }
static void hear(int fd, char c) {
    char got = 0;
    CHECK(rrecv(fd, &got, 1, MSG_WAITALL) == 1 && got == c);
}
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void end(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    // The client is asleep by then.
    usleep(300000);
    struct linger at_once = {1, 0};
    if (is("unread")) CHECK(rpoll(&p, 1, 10000) == 1);
    if (is("reset")) CHECK(rsetsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
    if (is("turns")) CHECK(rshutdown(fd, SHUT_RD) == 0);
    if (is("turns")) CHECK(rshutdown(fd, SHUT_WR) == 0);
    if (is("both")) CHECK(rshutdown(fd, SHUT_RDWR) == 0);
    if (is("unread") || is("reset")) CHECK(rclose(fd) == 0);
}

static void hear_of_it(int fd) {
    static char much[65536];
    char byte;
    if (is("unread")) CHECK(rsend(fd, "hello", 5, 0) == 5);
    while ((is("both") || is("turns")) && rsend(fd, much, sizeof much, MSG_NOSIGNAL) > 0)
        ;
    CHECK(rrecv(fd, &byte, 1, 0) <= 0);
}

static int connection(const struct sockaddr_in *to) {
    int fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0 && rconnect(fd, (const struct sockaddr *)to, sizeof *to) == 0);
    return fd;
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((unsigned short)atoi(argv[3]))};
    CHECK(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1);
    way = argv[4];
    // The other connection stays: by it the client says when the server may go.
    if (strcmp(argv[1], "server") == 0) {
        int listener = rsocket(AF_INET, SOCK_STREAM, 0);
        CHECK(listener >= 0 && rbind(listener, (struct sockaddr *)&at, sizeof at) == 0 && rlisten(listener, 4) == 0);
        int fd = raccept(listener, NULL, NULL), other = raccept(listener, NULL, NULL);
        CHECK(fd >= 0 && other >= 0);
        hear(fd, 'c'), say(fd, 's'), hear(other, 'c');
        end(fd);
        hear(other, 'e'), say(other, 'e');
        CHECK(rclose(other) == 0);
        return 0;
    }
    int fd = connection(&at), other = connection(&at);
    say(fd, 'c'), hear(fd, 's'), say(other, 'c');
    double before = now();
    alarm((unsigned)atoi(argv[5]));
    hear_of_it(fd);
    alarm(0);
    printf("%s: heard after %.1f s\n", way, now() - before);
    say(other, 'e'), hear(other, 'e');
    CHECK(rclose(fd) == 0 && rclose(other) == 0);
    return 0;
}
