/* A plug-in that is loaded with RTLD_DEEPBIND goes on with both ends of the program's connection.
 * It does so by calls, by a pointer to a function, and by what dlsym finds; from several threads
 * that load and unload it. So does a second one that the first loads in the same way. argv[1] is
 * the plug-in, argv[2] a copy of it, argv[3] "lazy" or "now". */
#include "net.h"
#include <dlfcn.h>
#include <pthread.h>

#ifdef PLUG
/* Bound by a relocation of data. */
ssize_t (*volatile by_pointer)(int, const void *, size_t, int) = send;

/* As the linker finds it when it is asked: without a handle, and in libc. */
static ssize_t look_up(int way, int fd, void *b, size_t n) {
    static void *libc;
    if (!libc) libc = dlopen("libc.so.6", RTLD_LAZY);
    void *handle = way ? libc : RTLD_DEFAULT;
    ssize_t (*get)(int, void *, size_t, int) = (ssize_t (*)(int, void *, size_t, int))dlsym(handle, "recv");
    return get(fd, b, n, MSG_WAITALL);
}

int exchange(const int pair[2], const char *next, int mode) {
    char b[1000];
    for (int i = 0; i < 50; i++) {
        memset(b, 'a' + i % 26, sizeof b);
        if ((i % 2 ? send : by_pointer)(pair[i % 2], b, sizeof b, MSG_NOSIGNAL) != sizeof b) return 1;
        memset(b, 0, sizeof b);
        ssize_t n = i % 3 ? recv(pair[1 - i % 2], b, sizeof b, MSG_WAITALL) : look_up(i % 2, pair[1 - i % 2], b, sizeof b);
        if (n != sizeof b || b[999] != 'a' + i % 26) return 2;
    }
    if (next) {
        void *h = dlopen(next, mode);
        int (*exchange)(const int *, const char *, int) = h ? (int (*)(const int *, const char *, int))dlsym(h, "exchange") : NULL;
        return exchange ? exchange(pair, NULL, mode) : 3;
    }
    return 0;
}
#else
static char **names;
static int mode;

static void *load(void *tcp) {
    for (int i = 0; i < 20; i++) {
        void *h = dlopen(names[1], mode);
        MUST(h);
        int (*exchange)(const int *, const char *, int) = (int (*)(const int *, const char *, int))dlsym(h, "exchange");
        MUST(exchange(tcp, NULL, mode) == 0);
        MUST(dlclose(h) == 0);
    }
    return NULL;
}

int main(int argc, char **argv) {
    int tcp[2], more[3][2];
    pthread_t t[3];
    MUST(argc == 4);
    names = argv;
    mode = (strcmp(argv[3], "lazy") ? RTLD_NOW : RTLD_LAZY) | RTLD_DEEPBIND;
    /* What fails, fails as it does, and says so. */
    MUST(!dlopen("/nonexistent/plug.so", mode) && strstr(dlerror(), "/nonexistent/plug.so"));
    tcp_pair(tcp);
    void *h = dlopen(argv[1], mode);
    MUST(h);
    int (*exchange)(const int *, const char *, int) = (int (*)(const int *, const char *, int))dlsym(h, "exchange");
    MUST(exchange(tcp, argv[2], mode) == 0);
    MUST(dlclose(h) == 0);
    for (int i = 0; i < 3; i++) tcp_pair(more[i]);
    for (int i = 0; i < 3; i++) MUST(pthread_create(&t[i], NULL, load, more[i]) == 0);
    for (int i = 0; i < 3; i++) MUST(pthread_join(t[i], NULL) == 0);
    talk(tcp);
    return 0;
}
#endif
