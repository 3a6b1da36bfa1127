// A blocking echo server and its client, with no call that upstream's preload library does not know.
//
//   echo server ADDRESS PORT CONNECTIONS    serves so many, one after the other, then ends
//   echo client ADDRESS PORT BYTES          sends that much in pieces of many sizes, compares what comes back,
//                                           says that it sends no more, and waits for the end
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

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

static void serve(const struct sockaddr_in *at, int connections) {
    static char buffer[65536];
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    must(listener >= 0, "socket");
    must(bind(listener, (const struct sockaddr *)at, sizeof *at) == 0, "bind");
    must(listen(listener, 8) == 0, "listen");
    while (connections-- > 0) {
        struct sockaddr_in peer;
        socklen_t len = sizeof peer;
        int fd = accept(listener, (struct sockaddr *)&peer, &len);
        must(fd >= 0, "accept");
        for (ssize_t n; (n = read(fd, buffer, sizeof buffer)) != 0;) {
            must(n > 0, "read");
            send_all(fd, buffer, (size_t)n);
        }
        must(close(fd) == 0, "close");
    }
    must(close(listener) == 0, "close");
}

static void ask(const struct sockaddr_in *at, uint64_t total) {
    static const size_t sizes[] = {1, 64, 5, 4096, 70000, 200000, 17, 1000};
    static char out[200000], in[200000];
    uint64_t done = 0;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    must(fd >= 0, "socket");
    must(connect(fd, (const struct sockaddr *)at, sizeof *at) == 0, "connect");
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

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[3]))};
    must(inet_pton(AF_INET, argv[2], &at.sin_addr) == 1, "address");
    if (strcmp(argv[1], "server") == 0) serve(&at, atoi(argv[4]));
    else ask(&at, strtoull(argv[4], NULL, 10));
    return 0;
}
