/* Writes from the destructor of a pthread key, which runs after the thread's own thread-locals are
 * gone. */
#include "net.h"
#include <pthread.h>

static pthread_key_t key;
static int tcp[2];

static void late(void *unused) {
    (void)unused;
    MUST(write(1, "late\n", 5) == 5);
    talk(tcp);
}

static void *thread(void *unused) {
    pthread_setspecific(key, &key);
    talk(tcp);
    MUST(write(1, "early\n", 6) == 6);
    return unused;
}

int main(void) {
    pthread_t t;
    tcp_pair(tcp);
    MUST(pthread_key_create(&key, late) == 0);
    MUST(pthread_create(&t, NULL, thread, NULL) == 0);
    MUST(pthread_join(t, NULL) == 0);
    return 0;
}
