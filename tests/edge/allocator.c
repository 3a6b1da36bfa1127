/* A malloc that opens, reads and closes a file when it is first used, as real ones do to learn
 * about the machine, and that dies if it is entered again meanwhile. */
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static char heap[64 << 20] __attribute__((aligned(64)));
static size_t used;
static int state;

static void start(void) {
    char b[64];
    if (state == 1) _exit(90);
    if (state == 2) return;
    state = 1;
    int fd = open("/proc/self/stat", O_RDONLY);
    if (fd < 0 || read(fd, b, sizeof b) <= 0 || close(fd) != 0) _exit(89);
    state = 2;
}

void *malloc(size_t n) {
    start();
    size_t at = __atomic_fetch_add(&used, (n + 16 + 63) & ~(size_t)63, __ATOMIC_RELAXED);
    if (at + n + 16 > sizeof heap) return NULL;
    *(size_t *)(heap + at) = n;
    return heap + at + 16;
}

void free(void *p) { (void)p; }

void *calloc(size_t n, size_t m) {
    return malloc(n * m);
}

void *realloc(void *p, size_t n) {
    void *q = malloc(n);
    if (p && q) {
        size_t old = *(size_t *)((char *)p - 16);
        memcpy(q, p, old < n ? old : n);
    }
    return q;
}
