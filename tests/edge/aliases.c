/* dup in every spelling, fork, and the calls that move several messages or a file. */
#include "net.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>

static void names(void) {
    int tcp[2], b[2];
    tcp_pair(tcp);
    b[0] = dup(tcp[0]);
    b[1] = dup2(tcp[1], 40);
    talk(b);
    MUST(dup3(b[0], 41, O_CLOEXEC) == 41 && dup2(41, 41) == 41 && dup3(41, 41, 0) == -1 && errno == EINVAL);
    MUST(dup2(77, 41) == -1 && errno == EBADF);
    close(tcp[0]);
    close(tcp[1]);
    talk(b);
    close(b[0]);
    char c;
    MUST(recv(b[1], &c, 1, MSG_DONTWAIT) == -1 && errno == EAGAIN);
    int again[2] = {41, 40};
    talk(again);
    MUST(dup2(0, 41) == 41);
    MUST(recv(b[1], &c, 1, 0) == 0);
    MUST(send(b[1], &c, 1, MSG_NOSIGNAL) == 1);
    close(b[1]);
    puts("names");
}

static void relatives(void) {
    int tcp[2], status;
    tcp_pair(tcp);
    pid_t child = fork();
    if (child == 0) {
        talk(tcp);
        close(tcp[0]);
        close(tcp[1]);
        _exit(5);
    }
    MUST(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 5);
    talk(tcp);
    close(tcp[0]);
    close(tcp[1]);
    puts("relatives");
}

static void many(void) {
    int tcp[2];
    char in[6] = {0}, name[32];
    tcp_pair(tcp);
    struct iovec out[2] = {{"ab", 2}, {"cdef", 4}}, to[2] = {{in, 3}, {in + 3, 3}};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &out[0], .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = &out[1], .msg_iovlen = 1}}};
    MUST(sendmmsg(tcp[0], m, 2, 0) == 2 && m[0].msg_len == 2 && m[1].msg_len == 4);
    struct mmsghdr r[2] = {{.msg_hdr = {.msg_iov = &to[0], .msg_iovlen = 1, .msg_name = name, .msg_namelen = sizeof name}},
                           {.msg_hdr = {.msg_iov = &to[1], .msg_iovlen = 1}}};
    MUST(recvmmsg(tcp[1], r, 2, MSG_WAITFORONE, NULL) == 2 && r[0].msg_len == 3 && r[1].msg_len == 3);
    MUST(memcmp(in, "abcdef", 6) == 0 && r[0].msg_hdr.msg_namelen == 0);
    MUST(writev(tcp[0], out, 2) == 6);
    socklen_t len = sizeof name;
    MUST(recvfrom(tcp[1], in, 2, MSG_TRUNC, NULL, NULL) == 2);
    MUST(recvfrom(tcp[1], in, 4, 0, (struct sockaddr *)name, &len) == 4 && len == 0);
    MUST(memcmp(in, "cdef", 4) == 0);
    volatile int negative = -1;
    MUST(readv(tcp[1], out, negative) == -1 && errno == EINVAL);
    MUST(read(tcp[1], in, 0) == 0);
    puts("many");
}

static void file(void) {
    int tcp[2];
    char in[5] = {0};
    char path[] = "/tmp/edge-aliases-XXXXXX";
    int fd = mkstemp(path);
    MUST(fd >= 0 && unlink(path) == 0 && write(fd, "0123456789", 10) == 10 && lseek(fd, 0, SEEK_SET) == 0);
    tcp_pair(tcp);
    off_t at = 4;
    MUST(sendfile(tcp[0], fd, &at, 3) == 3 && at == 7 && lseek(fd, 0, SEEK_CUR) == 0);
    MUST(sendfile(tcp[0], fd, NULL, 2) == 2 && lseek(fd, 0, SEEK_CUR) == 2);
    MUST(recv(tcp[1], in, 5, MSG_WAITALL) == 5 && memcmp(in, "45601", 5) == 0);
    at = 9;
    MUST(sendfile(tcp[0], fd, &at, 100) == 1 && at == 10 && sendfile(tcp[0], fd, &at, 100) == 0);
    int ends[2];
    MUST(pipe2(ends, O_CLOEXEC) == 0 && write(ends[1], "splice", 6) == 6);
    MUST(read(tcp[1], in, 1) == 1);
    MUST(splice(ends[0], NULL, tcp[0], NULL, 6, 0) == 6);
    MUST(splice(tcp[1], NULL, ends[1], NULL, 6, 0) == 6);
    MUST(read(ends[0], in, 5) == 5 && memcmp(in, "splic", 5) == 0);
    puts("file");
}

static void passed(void) {
    int tcp[2], un[2], got = -1;
    tcp_pair(tcp);
    MUST(socketpair(AF_UNIX, SOCK_STREAM, 0, un) == 0);
    union { struct cmsghdr h; char room[CMSG_SPACE(sizeof(int))]; } c = {0};
    char b = 'x';
    struct iovec v = {&b, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = &c, .msg_controllen = sizeof c};
    c.h.cmsg_level = SOL_SOCKET, c.h.cmsg_type = SCM_RIGHTS, c.h.cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(&c.h), &tcp[0], sizeof(int));
    MUST(sendmsg(un[0], &m, 0) == 1);
    memset(&c, 0, sizeof c);
    MUST(recvmsg(un[1], &m, MSG_CMSG_CLOEXEC) == 1);
    memcpy(&got, CMSG_DATA(&c.h), sizeof(int));
    close(tcp[0]);
    int pair[2] = {got, tcp[1]};
    talk(pair);
    puts("passed");
}

static void stdio(void) {
    int tcp[2];
    char b[16] = {0};
    tcp_pair(tcp);
    FILE *f = fdopen(tcp[0], "w");
    MUST(f && fputs("buffered", f) >= 0 && fclose(f) == 0);
    MUST(recv(tcp[1], b, 15, MSG_WAITALL) == 8 && strcmp(b, "buffered") == 0);
    int next[2];
    tcp_pair(next);
    talk(next);
    puts("stdio");
}

static volatile int pipes;
static void count(int unused) { (void)unused; pipes++; }

static void broken(void) {
    int tcp[2];
    tcp_pair(tcp);
    struct linger hard = {1, 0};
    MUST(setsockopt(tcp[1], SOL_SOCKET, SO_LINGER, &hard, sizeof hard) == 0 && close(tcp[1]) == 0);
    usleep(20000);
    signal(SIGPIPE, count);
    char b;
    MUST(read(tcp[0], &b, 1) == -1 && errno == ECONNRESET);
    MUST(write(tcp[0], "x", 1) == -1 && errno == EPIPE && pipes == 1);
    MUST(send(tcp[0], "x", 1, MSG_NOSIGNAL) == -1 && errno == EPIPE && pipes == 1);
    puts("broken");
}

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    alarm(20);
    names();
    relatives();
    many();
    file();
    passed();
    stdio();
    broken();
    return 0;
}
