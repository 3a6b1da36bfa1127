/* Programs that close whatever might be open. What they made is gone then, and new things work. */
#include "net.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/syscall.h>

static void fresh(const char *after) {
    int tcp[2];
    tcp_pair(tcp);
    talk(tcp);
    int set = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event e = {.events = EPOLLIN, .data.fd = tcp[0]}, got;
    MUST(epoll_ctl(set, EPOLL_CTL_ADD, tcp[0], &e) == 0);
    MUST(epoll_wait(set, &got, 1, 0) == 0);
    MUST(write(tcp[1], "x", 1) == 1);
    MUST(epoll_wait(set, &got, 1, 1000) == 1 && got.data.fd == tcp[0]);
    printf("%s: %d %d %d\n", after, tcp[0], tcp[1], set);
}

int main(void) {
    fresh("nothing");
    for (int fd = 3; fd < 1024; fd++) close(fd);
    fresh("close");
    for (int fd = 3; fd < 1024; fd++) syscall(SYS_close, fd);
    fresh("close by number");
    MUST(close_range(3, ~0U, 0) == 0);
    fresh("close_range");
    MUST(syscall(SYS_close_range, 3, ~0U, 0) == 0);
    fresh("close_range by number");
    closefrom(3);
    fresh("closefrom");
    MUST(close_range(3, ~0U, 4 /* CLOEXEC */) == 0);
    MUST(fcntl(4, F_GETFD) == FD_CLOEXEC);
    MUST(close_range(5, 4, 0) == -1 && errno == EINVAL);
    MUST(close_range(3, ~0U, 2 /* UNSHARE */) == 0);
    fresh("close_range, unshared");
    MUST(close(4) == 0 && close(4) == -1 && errno == EBADF);
    return 0;
}
