// Many mappings on one connection with a short queue, for interop.sh: linked with upstream's library, and run with it or
// with ours in its place.
//
//   iomaps server|client ADDRESS PORT ROUNDS
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <rdma/rsocket.h>

#define CHECK(e) \
    do { \
        if (!(e)) fprintf(stderr, "iomaps: line %d: %s: %s\n", __LINE__, #e, strerror(errno)), exit(1); \
    } while (0)

static int fd;

static void say(char c) { CHECK(rsend(fd, &c, 1, 0) == 1); }
static void hear(char c) {
    char got = 0;
    CHECK(rrecv(fd, &got, 1, MSG_WAITALL) == 1 && got == c);
}

static void set(int name, int value) { CHECK(rsetsockopt(fd, SOL_RDMA, name, &value, sizeof value) == 0); }

int main(int argc, char **argv) {
    static unsigned char in[3000], out[3000];
    struct sockaddr_in a = {.sin_family = AF_INET};
    CHECK(argc == 5);
    int serves = strcmp(argv[1], "server") == 0, rounds = atoi(argv[4]), on = 1;
    CHECK(inet_pton(AF_INET, argv[2], &a.sin_addr) == 1);
    a.sin_port = htons(atoi(argv[3]));
    fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    set(RDMA_IOMAPSIZE, 2);
    set(RDMA_RQSIZE, 16);
    if (serves) {
        rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        CHECK(rbind(fd, (struct sockaddr *)&a, sizeof a) == 0 && rlisten(fd, 1) == 0);
        fd = raccept(fd, NULL, NULL);
        CHECK(fd >= 0);
    } else {
        CHECK(rconnect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    }
    for (int i = 0; i < rounds; i++) {
        off_t at = i * 10000L;
        memset(in, 0, sizeof in);
        memset(out, i + 1, sizeof out);
        CHECK(riomap(fd, in, sizeof in, PROT_WRITE, 0, at) == at);
        say('m');
        hear('m');
        CHECK(riowrite(fd, out, sizeof out, at, 0) == sizeof out);
        say('w');
        hear('w');
        for (size_t k = 0; k < sizeof in; k++) CHECK(in[k] == (unsigned char)(i + 1));
        CHECK(riounmap(fd, in, sizeof in) == 0);
    }
    say('e');
    hear('e');
    CHECK(rclose(fd) == 0);
    printf("%d rounds\n", rounds);
    return 0;
}
