/* A connected pair of TCP sockets over the loopback, for the programs beside this file. It has
 * carried enough bytes both ways to be worth more than TCP. So what follows runs on a device, where
 * one can be had. */
#pragma once
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MUST(x)                                          \
    do {                                                 \
        if (!(x)) {                                      \
            char line[160];                              \
            int n = snprintf(line, sizeof line, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
            if (write(2, line, n) < 0) _exit(98);        \
            _exit(99);                                   \
        }                                                \
    } while (0)

static inline void warm(const int pair[2]) {
    static char out[4096], in[4096];
    for (int i = 0; i < 512; i++) {
        memset(out, i, sizeof out);
        MUST(write(pair[i % 2], out, sizeof out) == sizeof out);
        MUST(recv(pair[1 - i % 2], in, sizeof in, MSG_WAITALL) == sizeof in);
        MUST(memcmp(in, out, sizeof in) == 0);
    }
}

static inline void tcp_pair(int pair[2]) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    MUST(listener >= 0);
    MUST(bind(listener, (struct sockaddr *)&a, sizeof a) == 0);
    MUST(listen(listener, 8) == 0);
    MUST(getsockname(listener, (struct sockaddr *)&a, &len) == 0);
    MUST((pair[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
    MUST(connect(pair[0], (struct sockaddr *)&a, sizeof a) == 0);
    MUST((pair[1] = accept(listener, NULL, NULL)) >= 0);
    MUST(close(listener) == 0);
    int on = 1;
    for (int i = 0; i < 2; i++) MUST(setsockopt(pair[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0);
    warm(pair);
}

/* One message there and one back. */
static inline void talk(const int pair[2]) {
    char b[8] = {0};
    MUST(write(pair[0], "ping", 4) == 4);
    MUST(recv(pair[1], b, 4, MSG_WAITALL) == 4 && memcmp(b, "ping", 4) == 0);
    MUST(send(pair[1], "pong", 4, MSG_NOSIGNAL) == 4);
    MUST(read(pair[0], b, 4) == 4 && memcmp(b, "pong", 4) == 0);
}
