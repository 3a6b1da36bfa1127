/* Functions whose arguments have no fixed number, through hooks that have: every argument
 * arrives. */
#include "net.h"
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/wait.h>

static void print(int fd, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vdprintf(fd, format, list);
    va_end(list);
}

static void child(void (*body)(void)) {
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(1);
    }
    MUST(waitpid(pid, &status, 0) == pid && status == 0);
}

static void list(void) {
    execl("/bin/echo", "echo", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", (char *)NULL);
}
static void search(void) { execlp("echo", "echo", "a", "b", "c", "d", "e", "f", "g", (char *)NULL); }
static void environment(void) {
    char *const only[] = {"ONLY=this", NULL};
    execle("/usr/bin/env", "env", "-u", "A", "-u", "B", "-u", "C", (char *)NULL, only);
}
static void failing(void) {
    if (execl("/nonexistent", "a", "b", "c", "d", "e", "f", "g", "h", (char *)NULL) != -1 || errno != ENOENT) return;
    if (execlp("./nonexistent", "a", (char *)NULL) != -1) return;
    if (execle("/nonexistent", "a", (char *)NULL, (char **)NULL) != -1) return;
    list();
}
static void vector(void) {
    char *const argv[] = {"echo", "v", NULL};
    execvp("echo", argv);
}

int main(void) {
    int tcp[2], n = -1, on = 1;
    char line[200] = {0};
    tcp_pair(tcp);
    dprintf(1, "%d %s %.2f %c %ld %g %s %d %.1f %.1f %.1f %.1f %.1f %.1f %.1f\n", 1, "two", 3.0, '4', 5L, 6.5,
            "seven", 8, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0);
    print(1, "%s %d %.3f\n", "va", 2, 3.5);
    MUST(dprintf(tcp[0], "%s %.1f\n", "over tcp", 1.5) == 13);
    MUST(ioctl(tcp[1], FIONREAD, &n) == 0 && n == 13);
    MUST(read(tcp[1], line, sizeof line) == 13);
    fputs(line, stdout);
    MUST(ioctl(tcp[1], FIONBIO, &on) == 0);
    MUST(read(tcp[1], line, 1) == -1 && errno == EAGAIN);
    MUST(fcntl(tcp[0], F_SETFL, O_NONBLOCK) == 0 && (fcntl(tcp[0], F_GETFL) & O_NONBLOCK));
    int other = fcntl(tcp[0], F_DUPFD_CLOEXEC, 50);
    MUST(other == 50 && fcntl(other, F_GETFD) == FD_CLOEXEC);
    MUST(close(tcp[0]) == 0 && write(other, "z", 1) == 1);
    MUST(prctl(PR_SET_NAME, "edge", 0, 0, 0) == 0);
    MUST(prctl(PR_GET_NAME, line, 0, 0, 0) == 0);
    puts(line);
    fflush(stdout);
    child(list);
    child(search);
    child(environment);
    child(vector);
    child(failing);
    return 0;
}
