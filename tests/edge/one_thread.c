/* One thread holds both ends and writes before it reads. TCP takes what fits its buffers without
 * the peer's help; so must whatever carries the connection instead. */
#include "net.h"

int main(void) {
    static char out[65536], in[65536];
    int tcp[2];
    alarm(20);
    tcp_pair(tcp);
    for (size_t n = 4096; n <= sizeof out; n *= 2) {
        for (int side = 0; side < 2; side++) {
            memset(out, (int)(n >> 8) + side, n);
            MUST(write(tcp[side], out, n) == (ssize_t)n);
            MUST(recv(tcp[1 - side], in, n, MSG_WAITALL) == (ssize_t)n);
            MUST(memcmp(in, out, n) == 0);
        }
    }
    puts("both ends");
    return 0;
}
