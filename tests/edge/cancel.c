/* pthread_cancel of a thread that is blocked inside a hooked call must unwind through the hook:
 * clean-up handlers run, the thread ends as cancelled, and the process lives. */
#include "net.h"
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/select.h>

static int cleaned;
static int tcp[2], ends[2], listener, set;

static void clean(void *unused) {
    (void)unused;
    cleaned++;
}

static void in_read(void) { char b; MUST(read(ends[0], &b, 1) < 0); }
static void in_recv(void) { char b; MUST(recv(tcp[0], &b, 1, 0) < 0); }
static void in_recvmsg(void) {
    char b;
    struct iovec v = {&b, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    MUST(recvmsg(tcp[1], &m, 0) < 0);
}
static void in_accept(void) { MUST(accept(listener, NULL, NULL) < 0); }
static void in_poll(void) { struct pollfd p = {tcp[0], POLLIN, 0}; MUST(poll(&p, 1, -1) < 0); }
static void in_select(void) {
    fd_set s;
    FD_ZERO(&s);
    FD_SET(tcp[0], &s);
    MUST(select(tcp[0] + 1, &s, NULL, NULL, NULL) < 0);
}
static void in_epoll(void) { struct epoll_event e; MUST(epoll_wait(set, &e, 1, -1) < 0); }
static void in_send(void) {
    static char big[1 << 16];
    while (send(tcp[0], big, sizeof big, 0) > 0) {
    }
}

static void *thread(void *call) {
    pthread_cleanup_push(clean, NULL);
    ((void (*)(void))call)();
    pthread_cleanup_pop(0);
    return NULL;
}

static void try(const char *name, void (*call)(void)) {
    pthread_t t;
    void *result;
    cleaned = 0;
    MUST(pthread_create(&t, NULL, thread, (void *)call) == 0);
    usleep(50000);
    MUST(pthread_cancel(t) == 0);
    MUST(pthread_join(t, &result) == 0);
    printf("%s: cancelled %d, cleaned %d\n", name, result == PTHREAD_CANCELED, cleaned);
}

int main(void) {
    alarm(20);
    tcp_pair(tcp);
    MUST(pipe(ends) == 0);
    MUST((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && listen(listener, 1) == 0);
    MUST((set = epoll_create1(0)) >= 0);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = tcp[0]};
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, tcp[0], &e) == 0);
    try("read", in_read);
    try("recv", in_recv);
    try("recvmsg", in_recvmsg);
    try("accept", in_accept);
    try("poll", in_poll);
    try("select", in_select);
    try("epoll_wait", in_epoll);
    try("send", in_send);
    return 0;
}
