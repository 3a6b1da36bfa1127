// Direct placement for interop.sh: linked with upstream's library, and run with it or with ours in
// its place.
//
//   iomaps server|client ADDRESS PORT rounds N
//       one mapping after the other, on a connection with a short queue
//   iomaps server|client ADDRESS PORT several N
//       several at a time: writes at offsets within them, unmapping, mapping anew
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
// Both ends have come so far.
static void meet(char c) { say(c), hear(c); }

static void set(int name, int value) { CHECK(rsetsockopt(fd, SOL_RDMA, name, &value, sizeof value) == 0); }

static void one_by_one(int rounds) {
    static unsigned char in[3000], out[3000];
    for (int i = 0; i < rounds; i++) {
        off_t at = i * 10000L;
        memset(in, 0, sizeof in);
        memset(out, i + 1, sizeof out);
        CHECK(riomap(fd, in, sizeof in, PROT_WRITE, 0, at) == at);
        meet('m');
        CHECK(riowrite(fd, out, sizeof out, at, 0) == sizeof out);
        meet('w');
        for (size_t k = 0; k < sizeof in; k++) CHECK(in[k] == (unsigned char)(i + 1));
        CHECK(riounmap(fd, in, sizeof in) == 0);
    }
    printf("%d rounds\n", rounds);
}

// Area i is mapped at AT(i, g), where g counts how often it was mapped; a band on both sides of it
// is not.
enum { AREAS = 6, BAND = 64, MOST = 70000 };
static const size_t lengths[AREAS] = {1, 100, 4096, 5000, 65536, MOST};
#define AT(i, g) ((off_t)((AREAS - (i)) * 1000003L + (g) * 100000000L + 7))
static unsigned char areas[AREAS][BAND + MOST + BAND], wanted[MOST], out[MOST];
static int generation[AREAS];

static unsigned char value(int i, int round, size_t k) { return (unsigned char)(k * 31 + (k >> 8) + round * 7 + i + 1); }

// Some pieces of the peer's area, of all sizes, in an order that is not theirs: which ones depends
// on `round` only.
static void pieces(int i, int round, void (*each)(int i, int round, size_t at, size_t n)) {
    size_t len = lengths[i], sizes[] = {1, 7, 64, 999, 4097, len};
    for (int k = 5; k >= 0; k--) {
        size_t n = sizes[k] < len ? sizes[k] : len;
        each(i, round + k, (size_t)(round * 37 + k * 1009) % (len - n + 1), n);
    }
}
static void write_there(int i, int round, size_t at, size_t n) {
    for (size_t k = 0; k < n; k++) out[k] = value(i, round, at + k);
    CHECK(riowrite(fd, out, n, AT(i, generation[i]) + (off_t)at, 0) == n);
}
static void expect_here(int i, int round, size_t at, size_t n) {
    for (size_t k = 0; k < n; k++) wanted[at + k] = value(i, round, at + k);
}
static void compare(int i, int round) {
    unsigned char *band = areas[i], *area = band + BAND;
    memset(wanted, 0, lengths[i]);
    if (round >= 0) pieces(i, round, expect_here);
    CHECK(memcmp(area, wanted, lengths[i]) == 0);
    for (size_t k = 0; k < BAND; k++) CHECK(band[k] == 0xbb && area[lengths[i] + k] == 0xbb);
    memset(area, 0, lengths[i]);
}
static void map(int i) {
    off_t at = AT(i, generation[i]);
    CHECK(riomap(fd, areas[i] + BAND, lengths[i], PROT_WRITE, 0, at) == at);
}

static void several(int rounds) {
    // An end that unmaps with upstream's library does not tell its peer, which must then not write
    // there.
    char ours = getenv("LD_PRELOAD") ? 'o' : 'u', theirs = 0;
    say(ours);
    CHECK(rrecv(fd, &theirs, 1, MSG_WAITALL) == 1);
    for (int i = 0; i < AREAS; i++) {
        memset(areas[i], 0xbb, sizeof areas[i]);
        memset(areas[i] + BAND, 0, lengths[i]);
        map(i);
    }
    meet('m');
    for (int round = 0; round < rounds; round++) {
        for (int i = 0; i < AREAS; i++) pieces(i, round, write_there);
        meet('w');
        for (int i = 0; i < AREAS; i++) compare(i, round);
        meet('c');
        // Two are taken back; the others stay what and where they are.
        int gone[2] = {round % AREAS, (round + 3) % AREAS};
        for (int k = 0; k < 2; k++) CHECK(riounmap(fd, areas[gone[k]] + BAND, lengths[gone[k]]) == 0);
        meet('u');
        for (int i = 0; i < AREAS; i++) {
            int is_gone = i == gone[0] || i == gone[1];
            if (!is_gone) pieces(i, round + 50, write_there);
            // Ours says an error, upstream's that it has written nothing.
            else if (theirs == 'o') CHECK((ssize_t)riowrite(fd, out, 1, AT(i, generation[i]), 0) == (ours == 'o' ? -1 : 0));
        }
        meet('v');
        for (int i = 0; i < AREAS; i++) compare(i, i == gone[0] || i == gone[1] ? -1 : round + 50);
        // They come back at other offsets.
        for (int k = 0; k < 2; k++) generation[gone[k]]++, map(gone[k]);
        meet('n');
    }
    for (int i = 0; i < AREAS; i++) CHECK(riounmap(fd, areas[i] + BAND, lengths[i]) == 0);
    printf("%d rounds of %d mappings\n", rounds, AREAS);
}

int main(int argc, char **argv) {
    struct sockaddr_in a = {.sin_family = AF_INET};
    CHECK(argc == 6);
    int serves = strcmp(argv[1], "server") == 0, many = strcmp(argv[4], "several") == 0, rounds = atoi(argv[5]), on = 1;
    CHECK(inet_pton(AF_INET, argv[2], &a.sin_addr) == 1);
    a.sin_port = htons(atoi(argv[3]));
    fd = rsocket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    set(RDMA_IOMAPSIZE, many ? AREAS : 2);
    if (!many) set(RDMA_RQSIZE, 16);
    if (serves) {
        rsetsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        CHECK(rbind(fd, (struct sockaddr *)&a, sizeof a) == 0 && rlisten(fd, 1) == 0);
        fd = raccept(fd, NULL, NULL);
        CHECK(fd >= 0);
    } else {
        CHECK(rconnect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    }
    if (many) several(rounds);
    else one_by_one(rounds);
    meet('e');
    CHECK(rclose(fd) == 0);
    return 0;
}
