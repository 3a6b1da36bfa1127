/* A second interposer, to stand behind the library under test. Its `read` is an indirect function,
 * so that looking it up runs code of ours in the middle of the look-up. With -DSIGNAL a signal
 * arrives there. With -DSLEEP the look-up takes so long that another thread forks meanwhile.
 *
 * Its constructor runs before that of the library under test, so that the hooks still have to look
 * up. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static volatile int armed;
static int ends[2];

/* The resolver runs before this library can call others: straight to the kernel. */
static long kernel(long number, long a, long b, long c) {
    long result;
#if defined(__x86_64__)
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
    result = x0;
#endif
    return result;
}

static ssize_t plain_read(int fd, void *buffer, size_t n) {
    return kernel(SYS_read, fd, (long)buffer, (long)n);
}

static ssize_t (*choose(void))(int, void *, size_t) {
    if (armed) {
#ifdef SIGNAL
        kernel(SYS_tgkill, kernel(SYS_getpid, 0, 0, 0), kernel(SYS_gettid, 0, 0, 0), SIGUSR1);
#else
        struct timespec second = {1, 0};
        kernel(SYS_nanosleep, (long)&second, 0, 0);
#endif
    }
    return plain_read;
}

ssize_t read(int, void *, size_t) __attribute__((ifunc("choose")));

static void say(const char *what, size_t n) {
    if (write(1, what, n) < 0) _exit(97);
}

#ifdef SIGNAL
static void handler(int signal) {
    char b;
    (void)signal;
    if (read(ends[0], &b, 1) >= 0) _exit(96);
}

static void scenario(void) {
    char b;
    signal(SIGUSR1, handler);
    alarm(10);
    if (read(ends[0], &b, 1) >= 0) _exit(95);
    say("the read came back\n", 19);
}
#else
static void *reader(void *unused) {
    char b;
    if (read(ends[0], &b, 1) >= 0) _exit(94);
    return unused;
}

static void scenario(void) {
    pthread_t thread;
    struct timespec some = {0, 200000000};
    int status = 0;
    if (pthread_create(&thread, NULL, reader, NULL) != 0) _exit(93);
    nanosleep(&some, NULL);
    pid_t child = fork();
    if (child == 0) {
        char b;
        alarm(10);
        if (read(ends[0], &b, 1) >= 0) _exit(92);
        _exit(7);
    }
    waitpid(child, &status, 0);
    pthread_join(thread, NULL);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 7) say("the child came back\n", 20);
}
#endif

__attribute__((constructor)) static void before_main(void) {
    if (pipe(ends) != 0) _exit(91);
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    armed = 1;
    scenario();
    armed = 0;
}
