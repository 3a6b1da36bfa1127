/* Every call that is hooked, each in a thread of its own with the smallest stack that there is.
 * First the process's first socket, then the connection's whole life, then one call after the other
 * on a connection that is on a device. */
#include <dlfcn.h>
#include "net.h"
#include <aio.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <dirent.h>
#include <sys/sendfile.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <sys/wait.h>

extern char **environ;
static int fds[2], listener, set, null, file;
static struct sockaddr_in name = {.sin_family = AF_INET};
static socklen_t length = sizeof name;
static char out[40000], in[40000];
static struct iovec piece = {in, 4}, from = {"ping", 4};
static const struct timespec moment = {0, 1000000};

static void small(void (*f)(void)) {
    pthread_attr_t a;
    pthread_t t;
    MUST(pthread_attr_init(&a) == 0);
    MUST(pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN) == 0);
    MUST(pthread_create(&t, &a, (void *(*)(void *))(void *)f, NULL) == 0);
    MUST(pthread_join(t, NULL) == 0);
}
/* A call that takes four bytes which fds[0] has sent, one that sends four to fds[1], and any
 * other. */
#define TAKES(c) \
    { \
        MUST(send(fds[0], "ping", 4, 0) == 4); \
        MUST((c) == 4); \
    }
#define SENDS(c) \
    { \
        MUST((c) == 4); \
        MUST(recv(fds[1], in, 4, MSG_WAITALL) == 4); \
    }
#define CALL(n, ...) \
    static void call_##n(void) { __VA_ARGS__; }

CALL(socket, MUST((listener = socket(AF_INET, SOCK_STREAM, 0)) >= 0))
CALL(bind, name.sin_addr.s_addr = htonl(INADDR_LOOPBACK); MUST(bind(listener, (void *)&name, length) == 0))
CALL(listen, MUST(listen(listener, 9) == 0))
CALL(getsockname, MUST(getsockname(listener, (void *)&name, &length) == 0))
CALL(connect, MUST((fds[0] = socket(AF_INET, SOCK_STREAM, 0)) >= 0 && connect(fds[0], (void *)&name, length) == 0))
CALL(accept, MUST((fds[1] = accept(listener, NULL, NULL)) >= 0))
CALL(accept4, int c = socket(AF_INET, SOCK_STREAM, 0); MUST(connect(c, (void *)&name, length) == 0);
     int a = accept4(listener, NULL, NULL, SOCK_CLOEXEC); MUST(a >= 0 && close(a) == 0 && close(c) == 0))
CALL(warm, warm(fds))
CALL(getpeername, MUST(getpeername(fds[0], (void *)&name, &length) == 0))
CALL(large, for (int i = 0; i < 100; i++) {
    MUST(send(fds[0], out, sizeof out, 0) == sizeof out);
    MUST(recv(fds[1], in, sizeof in, MSG_WAITALL) == sizeof in);
})
CALL(read, TAKES(read(fds[1], in, 4)))
CALL(readv, TAKES(readv(fds[1], &piece, 1)))
CALL(recv, TAKES(recv(fds[1], in, 4, 0)))
CALL(recv_trunc, TAKES(recv(fds[1], in, 4, MSG_TRUNC)))
CALL(recvfrom, TAKES(recvfrom(fds[1], in, 4, 0, NULL, NULL)))
CALL(recvmsg, struct msghdr m = {.msg_iov = &piece, .msg_iovlen = 1}; TAKES(recvmsg(fds[1], &m, 0)))
CALL(recvmmsg, struct mmsghdr m = {.msg_hdr = {.msg_iov = &piece, .msg_iovlen = 1}}; MUST(write(fds[0], "ping", 4) == 4);
     MUST(recvmmsg(fds[1], &m, 1, 0, NULL) == 1 && m.msg_len == 4))
CALL(preadv2, TAKES(preadv2(fds[1], &piece, 1, -1, 0)))
CALL(write, SENDS(write(fds[0], "ping", 4)))
CALL(writev, SENDS(writev(fds[0], &from, 1)))
CALL(send, SENDS(send(fds[0], "ping", 4, MSG_NOSIGNAL)))
CALL(sendto, SENDS(sendto(fds[0], "ping", 4, 0, NULL, 0)))
CALL(sendmsg, struct msghdr m = {.msg_iov = &from, .msg_iovlen = 1}; SENDS(sendmsg(fds[0], &m, 0)))
CALL(sendmmsg, struct mmsghdr m = {.msg_hdr = {.msg_iov = &from, .msg_iovlen = 1}}; MUST(sendmmsg(fds[0], &m, 1, 0) == 1);
     MUST(recv(fds[1], in, 4, MSG_WAITALL) == 4))
CALL(pwritev2, SENDS(pwritev2(fds[0], &from, 1, -1, 0)))
CALL(sendfile, off_t at = 0; MUST(sendfile(fds[0], file, &at, sizeof out) == sizeof out);
     MUST(recv(fds[1], in, sizeof in, MSG_WAITALL) == sizeof in))
CALL(getsockopt, int v; socklen_t n = sizeof v; MUST(getsockopt(fds[0], SOL_SOCKET, SO_ERROR, &v, &n) == 0))
CALL(setsockopt, int v = 1; MUST(setsockopt(fds[0], IPPROTO_TCP, TCP_NODELAY, &v, sizeof v) == 0))
CALL(ioctl, int n; MUST(ioctl(fds[1], FIONREAD, &n) == 0 && n == 0))
CALL(fcntl, MUST(fcntl(fds[0], F_GETFL) >= 0); int d = fcntl(fds[0], F_DUPFD_CLOEXEC, 50); MUST(d >= 50 && close(d) == 0))
CALL(dup, int d = dup(fds[0]); MUST(d >= 0 && close(d) == 0))
CALL(dup2, MUST(dup2(fds[0], 60) == 60 && close(60) == 0))
CALL(dup3, MUST(dup3(fds[0], 60, O_CLOEXEC) == 60 && close(60) == 0))
CALL(poll, struct pollfd p = {fds[1], POLLIN, 0}; MUST(poll(&p, 1, 1) == 0))
CALL(many_poll, static struct pollfd p[300]; for (int i = 0; i < 300; i++) p[i] = (struct pollfd){fds[1], POLLIN, 0};
     MUST(poll(p, 300, 1) == 0))
CALL(ppoll, struct pollfd p = {fds[1], POLLIN, 0}; MUST(ppoll(&p, 1, &moment, NULL) == 0))
CALL(select, fd_set s; FD_ZERO(&s); FD_SET(fds[1], &s); struct timeval t = {0, 1000};
     MUST(select(fds[1] + 1, &s, NULL, NULL, &t) == 0))
CALL(pselect, fd_set s; FD_ZERO(&s); FD_SET(fds[1], &s); MUST(pselect(fds[1] + 1, &s, NULL, NULL, &moment, NULL) == 0))
CALL(epoll_create, int e = epoll_create(1); MUST(e >= 0 && close(e) == 0))
CALL(epoll_create1, MUST((set = epoll_create1(0)) >= 0))
CALL(epoll_ctl, struct epoll_event e = {.events = EPOLLIN}; MUST(epoll_ctl(set, EPOLL_CTL_ADD, fds[1], &e) == 0))
CALL(epoll_wait, static struct epoll_event e[64]; MUST(epoll_wait(set, e, 64, 1) == 0);
     MUST(write(fds[0], "ping", 4) == 4); MUST(epoll_wait(set, e, 64, 1000) == 1); MUST(read(fds[1], in, 4) == 4))
CALL(epoll_pwait, static struct epoll_event e[64]; MUST(epoll_pwait(set, e, 64, 1, NULL) == 0))
CALL(epoll_pwait2, static struct epoll_event e[64]; MUST(epoll_pwait2(set, e, 64, &moment, NULL) == 0))
CALL(epoll_once, struct epoll_event e = {.events = EPOLLIN | EPOLLONESHOT}; MUST(epoll_ctl(set, EPOLL_CTL_MOD, fds[1], &e) == 0);
     MUST(epoll_ctl(set, EPOLL_CTL_DEL, fds[1], NULL) == 0 && close(set) == 0))
CALL(socketpair, int p[2]; MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, p) == 0 && close(p[0]) == 0 && close(p[1]) == 0))
CALL(pipe, int p[2]; MUST(pipe(p) == 0 && close(p[0]) == 0 && close(p[1]) == 0))
CALL(pipe2, int p[2]; MUST(pipe2(p, O_CLOEXEC) == 0 && close(p[0]) == 0 && close(p[1]) == 0))
CALL(eventfd, int e = eventfd(0, 0); MUST(e >= 0 && close(e) == 0))
CALL(timerfd_create, int e = timerfd_create(CLOCK_MONOTONIC, 0); MUST(e >= 0 && close(e) == 0))
CALL(signalfd, sigset_t s; sigemptyset(&s); int e = signalfd(-1, &s, 0); MUST(e >= 0 && close(e) == 0))
CALL(openat, int f = openat(AT_FDCWD, "/dev/null", O_RDONLY); MUST(f >= 0 && close(f) == 0))
CALL(opendir, DIR *d = opendir("/"); MUST(d && closedir(d) == 0))
CALL(sockatmark, MUST(sockatmark(fds[0]) == 0))
CALL(mlockall, if (mlockall(MCL_CURRENT | MCL_ONFAULT) == 0) MUST(munlockall() == 0))
CALL(close_range, int d = dup(null); MUST(close_range((unsigned)d, (unsigned)d, 0) == 0))
static void handler(int n) { (void)n; }
CALL(sigaction, struct sigaction s = {.sa_handler = handler}; MUST(sigaction(SIGUSR1, &s, NULL) == 0); MUST(raise(SIGUSR1) == 0))
CALL(signal, MUST(signal(SIGUSR2, handler) != SIG_ERR); MUST(raise(SIGUSR2) == 0))
CALL(ssignal, MUST(ssignal(SIGUSR2, handler) != SIG_ERR))
CALL(syscall, MUST(syscall(SYS_getpid) == getpid()))
CALL(prctl, MUST(prctl(PR_GET_DUMPABLE) >= 0))
static void ends(pid_t child) {
    int status;
    MUST(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
}
static char *args[] = {"sh", "-c", "exit 3", NULL};
CALL(fork, pid_t c = fork(); if (c == 0) { MUST(write(fds[0], "ping", 4) == 4); _exit(3); }
     MUST(recv(fds[1], in, 4, MSG_WAITALL) == 4); ends(c))
#define EXECS(n, ...) CALL(n, pid_t c = fork(); if (c == 0) { __VA_ARGS__; _exit(4); } ends(c))
EXECS(execv, execv("/bin/sh", args))
EXECS(execve, execve("/bin/sh", args, environ))
EXECS(execvp, execvp("sh", args))
EXECS(execvpe, execvpe("sh", args, environ))
EXECS(execl, execl("/bin/sh", "sh", "-c", "exit 3", NULL))
EXECS(execlp, execlp("sh", "sh", "-c", "exit 3", NULL))
EXECS(execle, execle("/bin/sh", "sh", "-c", "exit 3", NULL, environ))
EXECS(execveat, execveat(AT_FDCWD, "/bin/sh", args, environ, 0))
EXECS(fexecve, fexecve(open("/bin/sh", O_RDONLY | O_CLOEXEC), args, environ))
EXECS(_Exit, _Exit(3))
CALL(posix_spawn, pid_t c; MUST(posix_spawn(&c, "/bin/sh", NULL, NULL, args, environ) == 0); ends(c))
CALL(posix_spawnp, pid_t c; posix_spawn_file_actions_t a; MUST(posix_spawn_file_actions_init(&a) == 0);
     MUST(posix_spawn_file_actions_adddup2(&a, null, 70) == 0); MUST(posix_spawnp(&c, "sh", &a, NULL, args, environ) == 0); ends(c))
CALL(system, MUST(WEXITSTATUS(system("exit 3")) == 3))
CALL(popen, FILE *f = popen("exit 3", "r"); MUST(f && WEXITSTATUS(pclose(f)) == 3))
CALL(daemon, pid_t c = fork(); if (c == 0) { if (daemon(1, 1) == 0) _exit(0); _exit(4); } int status; MUST(waitpid(c, &status, 0) == c))
CALL(shutdown, MUST(shutdown(fds[0], SHUT_WR) == 0); MUST(read(fds[1], in, 4) == 0))
CALL(close, MUST(close(fds[0]) == 0 && close(fds[1]) == 0))
/* What brings a connection back to TCP first. */
CALL(again, tcp_pair(fds))
CALL(splice, int p[2]; MUST(pipe(p) == 0 && write(p[1], "ping", 4) == 4); SENDS(splice(p[0], NULL, fds[0], NULL, 4, 0));
     MUST(close(p[0]) == 0 && close(p[1]) == 0))
CALL(dprintf, SENDS(dprintf(fds[0], "%s", "ping")))
CALL(aio_write, static struct aiocb a; a = (struct aiocb){.aio_fildes = fds[0], .aio_buf = "ping", .aio_nbytes = 4};
     MUST(aio_write(&a) == 0); while (aio_error(&a) == EINPROGRESS) aio_suspend((const struct aiocb *[]){&a}, 1, NULL);
     SENDS(aio_return(&a)))
CALL(aio_read, static struct aiocb a; a = (struct aiocb){.aio_fildes = fds[1], .aio_buf = in, .aio_nbytes = 4};
     MUST(write(fds[0], "ping", 4) == 4 && aio_read(&a) == 0);
     while (aio_error(&a) == EINPROGRESS) aio_suspend((const struct aiocb *[]){&a}, 1, NULL); MUST(aio_return(&a) == 4))
CALL(lio_listio, static struct aiocb a; a = (struct aiocb){.aio_fildes = fds[0], .aio_buf = "ping", .aio_nbytes = 4,
     .aio_lio_opcode = LIO_WRITE}; MUST(lio_listio(LIO_WAIT, (struct aiocb *[]){&a}, 1, NULL) == 0); SENDS(aio_return(&a)))
CALL(fdopen, FILE *f = fdopen(dup(fds[0]), "w"); MUST(f); SENDS(fputs("ping", f) >= 0 && fflush(f) == 0 ? 4 : 0); MUST(fclose(f) == 0))
CALL(freopen, FILE *f = fopen("/dev/null", "r"); MUST(f && freopen("/dev/zero", "r", f)); MUST(fclose(f) == 0))
/* The linker itself is content with what is left of the smallest stack, for a library of libc's
 * own. */
CALL(dlopen, void *h = dlopen("libresolv.so.2", RTLD_NOW | RTLD_DEEPBIND); MUST(h && dlclose(h) == 0))
CALL(dlmopen, void *h = dlmopen(LM_ID_BASE, "libresolv.so.2", RTLD_NOW); MUST(h && dlclose(h) == 0))
CALL(closefrom, pid_t c = fork(); if (c == 0) { closefrom(3); _exit(3); } ends(c))

#define RUN(n) small(call_##n)
int main(void) {
    alarm(50);
    MUST((null = open("/dev/null", O_RDWR)) >= 0);
    MUST((file = memfd_create("file", 0)) >= 0 && write(file, out, sizeof out) == sizeof out);
    RUN(socket), RUN(bind), RUN(listen), RUN(getsockname), RUN(connect), RUN(accept), RUN(accept4), RUN(warm), RUN(large);
    RUN(getpeername), RUN(read), RUN(readv), RUN(recv), RUN(recv_trunc), RUN(recvfrom), RUN(recvmsg), RUN(recvmmsg), RUN(preadv2);
    RUN(write), RUN(writev), RUN(send), RUN(sendto), RUN(sendmsg), RUN(sendmmsg), RUN(pwritev2), RUN(sendfile);
    RUN(getsockopt), RUN(setsockopt), RUN(ioctl), RUN(fcntl), RUN(dup), RUN(dup2), RUN(dup3);
    RUN(poll), RUN(many_poll), RUN(ppoll), RUN(select), RUN(pselect), RUN(epoll_create), RUN(epoll_create1), RUN(epoll_ctl);
    RUN(epoll_wait), RUN(epoll_pwait), RUN(epoll_pwait2), RUN(epoll_once);
    RUN(socketpair), RUN(pipe), RUN(pipe2), RUN(eventfd), RUN(timerfd_create), RUN(signalfd), RUN(openat), RUN(opendir), RUN(sockatmark), RUN(mlockall), RUN(close_range);
    RUN(sigaction), RUN(signal), RUN(ssignal), RUN(syscall), RUN(prctl);
    RUN(fork), RUN(execv), RUN(execve), RUN(execvp), RUN(execvpe), RUN(execl), RUN(execlp), RUN(execle), RUN(execveat), RUN(fexecve);
    RUN(_Exit), RUN(posix_spawn), RUN(posix_spawnp), RUN(system), RUN(popen), RUN(daemon), RUN(shutdown), RUN(close);
    RUN(again), RUN(splice), RUN(again), RUN(dprintf), RUN(again), RUN(aio_write), RUN(aio_read), RUN(lio_listio);
    RUN(again), RUN(fdopen), RUN(freopen), RUN(dlopen), RUN(dlmopen), RUN(closefrom), RUN(shutdown), RUN(close);
    if (write(1, "all of them\n", 12) != 12) return 1;
    return 0;
}
