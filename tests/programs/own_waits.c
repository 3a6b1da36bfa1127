/* An echo server that waits past libc's functions: `own_waits PORT-FILE HOW`. Its bytes go through
 * libc.
 *   aio, aio-block  io_submit(2) with IOCB_CMD_POLL, as Seastar does; the socket does not block, or
 *                   does
 *   epoll           epoll_wait by number, on a set that libc's functions have made
 *   mix             every second wait by libc's epoll_wait or poll, on a socket that blocks
 *   late            libc's epoll_wait for the first LATE waits, then by number
 * System calls by number are instructions of its own, or with -DBY_LIBC libc's syscall. Ends when
 * its first connection has. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LATE = 200 };
static aio_context_t context;
static const char *how;
static int set = -1;
static long waits;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static long number(long n, long a, long b, long c, long d, long e) {
#if defined BY_LIBC
    return syscall(n, a, b, c, d, e, 0L);
#elif defined __x86_64__
    long r;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall"
                     : "=a"(r)
                     : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                     : "rcx", "r11", "memory");
    return r;
#elif defined __aarch64__
    register long x8 __asm__("x8") = n, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}

static void wait_by_aio(int fd, short events) {
    static uint64_t cookie;
    struct iocb cb = {.aio_lio_opcode = IOCB_CMD_POLL,
                      .aio_fildes = (uint32_t)fd,
                      .aio_buf = (uint64_t)events,
                      .aio_data = ++cookie};
    struct iocb *list[] = {&cb};
    struct io_event event;
    if (number(SYS_io_submit, (long)context, 1, (long)list, 0, 0) != 1) die("io_submit");
    if (number(SYS_io_getevents, (long)context, 1, 1, (long)&event, 0) != 1) die("io_getevents");
    if (event.data != cookie) {
        fprintf(stderr, "an event for %llu, which nobody asked for\n", (unsigned long long)event.data);
        exit(1);
    }
}

static void wait_by_epoll(int fd, uint32_t events) {
    struct epoll_event e = {.events = events | EPOLLONESHOT, .data.fd = fd}, got;
    if (set < 0) set = epoll_create1(EPOLL_CLOEXEC);
    if (epoll_ctl(set, EPOLL_CTL_MOD, fd, &e) && (errno != ENOENT || epoll_ctl(set, EPOLL_CTL_ADD, fd, &e)))
        die("epoll_ctl");
    waits++;
    int by_libc = !strcmp(how, "late") ? waits < LATE : !strcmp(how, "mix") && waits % 2;
    if (by_libc && waits % 3 == 0) {
        struct pollfd p = {.fd = fd, .events = (short)events};
        if (poll(&p, 1, -1) != 1) die("poll");
        return;
    }
    long n = by_libc ? epoll_wait(set, &got, 1, -1) : number(SYS_epoll_pwait, set, (long)&got, 1, -1, 0);
    if (n != 1) die("epoll_wait");
    if (got.data.fd != fd || got.data.u64 >> 32) {
        fprintf(stderr, "an event for %llx, which nobody asked for\n", (unsigned long long)got.data.u64);
        exit(1);
    }
}

/* Until the socket is readable, or, where said, writable. */
static void wait_for(int fd, short events) {
    if (context) wait_by_aio(fd, events);
    else wait_by_epoll(fd, (uint32_t)events);
}

static void announce(const char *path, int listener) {
    struct sockaddr_in a;
    socklen_t n = sizeof a;
    char fresh[4096];
    getsockname(listener, (struct sockaddr *)&a, &n);
    snprintf(fresh, sizeof fresh, "%s.new", path);
    FILE *f = fopen(fresh, "w");
    if (!f || fprintf(f, "%d", ntohs(a.sin_port)) < 0 || fclose(f) || rename(fresh, path)) die(path);
}

static void send_all(int fd, const char *p, size_t n) {
    while (n) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN) die("send");
        if (k < 0) wait_for(fd, POLLOUT);
        else p += k, n -= (size_t)k;
    }
}

int main(int argc, char **argv) {
    static char buffer[65536];
    if (argc != 3) return 2;
    how = argv[2];
    int flags = !strcmp(how, "aio-block") || !strcmp(how, "mix") ? 0 : SOCK_NONBLOCK;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), fd;
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (!strncmp(how, "aio", 3) && number(SYS_io_setup, 16, (long)&context, 0, 0, 0)) die("io_setup");
    if (bind(listener, (struct sockaddr *)&a, sizeof a) || listen(listener, 5)) die("listen");
    announce(argv[1], listener);
    do {
        wait_for(listener, POLLIN);
        fd = accept4(listener, NULL, NULL, flags);
    } while (fd < 0 && errno == EAGAIN);
    if (fd < 0) die("accept");
    for (;;) {
        wait_for(fd, POLLIN);
        ssize_t n = recv(fd, buffer, sizeof buffer, 0);
        if (n == 0) return 0;
        if (n < 0 && errno != EAGAIN) die("recv");
        if (n > 0) send_all(fd, buffer, (size_t)n);
    }
}
