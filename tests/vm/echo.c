// A blocking echo server and its client, with no call that upstream's preload library does not
// know.
//
//   echo server ADDRESS PORT CONNECTIONS
//       serves so many, one after the other, then ends
//   echo forking ADDRESS PORT CONNECTIONS
//       the same, each in a child of its own
//   echo client ADDRESS PORT BYTES
//       sends that much in pieces of many sizes, compares what comes back, says that it sends no
//       more, and waits for the end
//   echo crowd ADDRESS PORT 0
//       serves many at a time, whatever becomes of one, until it is stopped
//   echo mute ADDRESS PORT 0
//       the same, but reads nothing
//   echo steady ADDRESS PORT SECONDS
//       sends a little now and then, and compares
//
// With FIRST set in the environment `forking` speaks first, and `client` listens first.
//
// With -DRSOCKETS, of the functions of <rdma/rsocket.h> instead.
#include <arpa/inet.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef RSOCKETS
#include <rdma/rsocket.h>
#define socket rsocket
#define bind rbind
#define listen rlisten
#define accept raccept
#define connect rconnect
#define recv rrecv
#define read rread
#define write rwrite
#define shutdown rshutdown
#define close rclose
#endif

static void must(int ok, const char *what) {
    if (!ok) {
        perror(what);
        exit(1);
    }
}

// The byte at a position of the stream.
static unsigned char byte_at(uint64_t i) { return (unsigned char)((i * UINT64_C(0x9e3779b97f4a7c15)) >> 56); }

static void send_all(int fd, const char *from, size_t n) {
    while (n > 0) {
        ssize_t sent = write(fd, from, n);
        must(sent > 0, "write");
        from += sent;
        n -= (size_t)sent;
    }
}

static int listening(const struct sockaddr_in *at) {
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(listener >= 0, "socket");
    must(bind(listener, (const struct sockaddr *)at, sizeof *at) == 0, "bind");
    must(listen(listener, 8) == 0, "listen");
    return listener;
}

static int mute;

// One of a crowd.
static void *talk(void *argument) {
    int fd = (int)(intptr_t)argument;
    char buffer[4096];
    if (mute) sleep(20);
    else
        for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) > 0;)
            for (ssize_t sent = 0, k; sent < n; sent += k)
                if ((k = write(fd, buffer + sent, (size_t)(n - sent))) <= 0) goto over;
over:
    close(fd);
    return NULL;
}

static void serve_all(const struct sockaddr_in *at) {
    int listener = listening(at);
    for (;;) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        pthread_t thread;
        int fd = accept(listener, (struct sockaddr *)&peer, &len);
        // A peer may be gone before it is accepted.
        if (fd < 0) continue;
        must(pthread_create(&thread, NULL, talk, (void *)(intptr_t)fd) == 0, "pthread_create");
        pthread_detach(thread);
    }
}

static void echo(int fd) {
    static char buffer[65536];
    if (getenv("FIRST")) send_all(fd, "hello", 5);
    for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) != 0;) {
        must(n > 0, "read");
        send_all(fd, buffer, (size_t)n);
    }
}

static int accepted(int listener) {
    struct sockaddr_in peer;
    socklen_t len = sizeof peer;
    int fd = accept(listener, (struct sockaddr *)&peer, &len);
    must(fd >= 0, "accept");
    return fd;
}

static void serve(const struct sockaddr_in *at, int connections) {
    int listener = listening(at);
    while (connections-- > 0) {
        int fd = accepted(listener);
        echo(fd);
        must(close(fd) == 0, "close");
    }
    must(close(listener) == 0, "close");
}

static void serve_by_children(const struct sockaddr_in *at, int connections) {
    int listener = listening(at), bad = 0;
    for (int i = 0; i < connections; i++) {
        int fd = accepted(listener);
        pid_t child = fork();
        must(child >= 0, "fork");
        if (child == 0) {
            close(listener);
            echo(fd);
            must(close(fd) == 0, "close");
            exit(0);
        }
        must(close(fd) == 0, "close");
    }
    must(close(listener) == 0, "close");
    for (int status; wait(&status) > 0;) bad |= status;
    must(bad == 0, "a child");
}

static void ask(const struct sockaddr_in *at, uint64_t total) {
    static const size_t sizes[] = {1, 64, 5, 4096, 70000, 200000, 17, 1000};
    static char out[200000], in[200000];
    uint64_t done = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0, "socket");
    must(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0, "connect");
    for (ssize_t have = 0, got; getenv("FIRST") && have < 5; have += got)
        must((got = recv(fd, in + have, (size_t)(5 - have), 0)) > 0, "recv");
    must(!getenv("FIRST") || memcmp(in, "hello", 5) == 0, "hello");
    for (int turn = 0; done < total; turn++) {
        size_t n = sizes[turn % (int)(sizeof sizes / sizeof *sizes)];
        if (n > total - done) n = (size_t)(total - done);
        for (size_t i = 0; i < n; i++) out[i] = (char)byte_at(done + i);
        send_all(fd, out, n);
        for (size_t have = 0; have < n;) {
            ssize_t got = recv(fd, in + have, n - have, 0);
            must(got > 0, "recv");
            have += (size_t)got;
        }
        if (memcmp(in, out, n) != 0) {
            fprintf(stderr, "other bytes came back near %llu\n", (unsigned long long)done);
            exit(1);
        }
        done += n;
    }
    must(shutdown(fd, SHUT_WR) == 0, "shutdown");
    ssize_t got = read(fd, in, sizeof in);
    if (got != 0) {
        fprintf(stderr, "read gives %zd instead of the end\n", got);
        exit(1);
    }
    must(close(fd) == 0, "close");
    printf("%llu bytes came back\n", (unsigned long long)total);
}

static void keep_on(const struct sockaddr_in *at, int seconds) {
    char out[3000], in[3000];
    uint64_t done = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0, "socket");
    must(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0, "connect");
    for (int turn = 0; turn < seconds * 5; turn++, done += sizeof out) {
        for (size_t i = 0; i < sizeof out; i++) out[i] = (char)byte_at(done + i);
        send_all(fd, out, sizeof out);
        for (size_t have = 0; have < sizeof in;) {
            ssize_t got = recv(fd, in + have, sizeof in - have, 0);
            must(got > 0, "recv");
            have += (size_t)got;
        }
        must(memcmp(in, out, sizeof in) == 0, "other bytes came back");
        usleep(200000);
    }
    must(close(fd) == 0, "close");
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    must(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1, "address");
    if (strcmp(argv[1], "server") == 0) serve(&at, atoi(argv[4]));
    else if (strcmp(argv[1], "forking") == 0) serve_by_children(&at, atoi(argv[4]));
    else if (strcmp(argv[1], "steady") == 0) keep_on(&at, atoi(argv[4]));
    else if (strcmp(argv[1], "crowd") == 0 || strcmp(argv[1], "mute") == 0) {
        mute = argv[1][0] == 'm';
        serve_all(&at);
    }
    else ask(&at, strtoull(argv[4], NULL, 10));
    return 0;
}
