// A peer that does one thing wrong, and says how the other end took it.
//
//   peer ADDRESS PORT MISDEED
//       exits 0 if it was refused or thrown out as it had to be, else 1; says which
//   peer list
//       all misdeeds that can be named
//
// Plain librdmacm and libibverbs: none of the code under test.
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <rdma/rdma_cma.h>

enum { SPACE = 131072, TABLE = 0, BUFFER = 4096, OUT = 65536, SLOTS = 65536 + 4096, QUEUE = 128, RECEIVES = 256, SECONDS = 15 };
enum outcome { REFUSED, ENDED, DEATH };

// The 40 bytes of private data.
struct offer {
    uint8_t version, flags;
    uint16_t credits;
    uint8_t reserved[3], iomap;
    uint64_t table;
    uint32_t table_key, table_length;
    uint64_t buffer;
    uint32_t buffer_key, buffer_length;
} __attribute__((packed));

static struct rdma_cm_id *id;
static struct ibv_mr *memory;
static unsigned char *space;
static struct offer ours, theirs;
static int iwarp, posted, failed;

static void give_up(const char *what) {
    fprintf(stderr, "peer: %s: %s\n", what, strerror(errno));
    exit(2);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

// ------------------------------------------------------------ what goes over the wire

// Takes what the queue has to say; a failure is how being thrown out looks.
static void reap(void) {
    struct ibv_wc wc;
    while (ibv_poll_cq(id->send_cq, 1, &wc) > 0) {
        posted--;
        if (wc.status != IBV_WC_SUCCESS) failed = 1;
    }
    while (ibv_poll_cq(id->recv_cq, 1, &wc) > 0) {
        if (wc.status != IBV_WC_SUCCESS) {
            failed = 1;
            continue;
        }
        struct ibv_sge slot = {.addr = (uintptr_t)space + SLOTS, .length = 64, .lkey = memory->lkey};
        struct ibv_recv_wr again = {.sg_list = &slot, .num_sge = 1}, *bad;
        if (ibv_post_recv(id->qp, &again, &bad) != 0) failed = 1;
    }
}

// Hears for so many milliseconds whether it was thrown out: by a failed request, or by the
// connection manager. (Soft-RoCE takes the seven retries that every peer asks for as endless: there
// no request ever fails.)
static void listen_up(int milliseconds) {
    struct pollfd events = {.fd = id->channel->fd, .events = POLLIN};
    struct rdma_cm_event *event;
    reap();
    if (failed || poll(&events, 1, milliseconds) != 1 || rdma_get_cm_event(id->channel, &event) != 0) return;
    if (event->event == RDMA_CM_EVENT_DISCONNECTED) failed = 1;
    rdma_ack_cm_event(event);
}

static void post(struct ibv_send_wr *wr) {
    struct ibv_send_wr *bad;
    double end = now() + SECONDS;
    while (posted >= QUEUE - 2 && !failed && now() < end) listen_up(1);
    wr->send_flags = IBV_SEND_SIGNALED;
    if (ibv_post_send(id->qp, wr, &bad) == 0) posted++;
    else failed = 1;
}

static void write_at(uint64_t address, uint32_t key, uint32_t length) {
    struct ibv_sge from = {.addr = (uintptr_t)space + OUT, .length = length, .lkey = memory->lkey};
    struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .sg_list = &from, .num_sge = length != 0};
    wr.wr.rdma.remote_addr = address;
    wr.wr.rdma.rkey = key;
    post(&wr);
}

// A word, with bytes that are placed before it.
static void message(uint64_t address, uint32_t key, uint32_t length, uint32_t value) {
    struct ibv_sge from = {.addr = (uintptr_t)space + OUT, .length = length, .lkey = memory->lkey};
    struct ibv_send_wr wr = {.sg_list = &from, .num_sge = length != 0};
    if (iwarp) {
        if (length != 0) write_at(address, key, length);
        memcpy(space + OUT + 1024, &value, 4);
        from = (struct ibv_sge){.addr = (uintptr_t)space + OUT + 1024, .length = 4, .lkey = memory->lkey};
        wr.opcode = IBV_WR_SEND;
        wr.num_sge = 1;
    } else {
        wr.opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
        wr.imm_data = htonl(value);
        wr.wr.rdma.remote_addr = address;
        wr.wr.rdma.rkey = key;
    }
    post(&wr);
}

static void word(uint32_t value) { message(0, 0, 0, value); }

// A message of `length` bytes, placed `offset` bytes into the peer's first buffer.
static void data(uint32_t offset, uint32_t length) {
    message(be64toh(theirs.buffer) + offset, ntohl(theirs.buffer_key), length, length);
}

// ------------------------------------------------------------ the misdeeds

static void good(void) {}
static void version(void) { ours.version = 2; }
static void no_credits(void) { ours.credits = 0; }
static void no_table(void) { ours.table_length = 0; }
static void small_table(void) { ours.table_length = htonl(1); }
static void table_wraps(void) { ours.table = htobe64(UINT64_MAX - 15), ours.table_length = htonl(1000); }
static void table_huge(void) { ours.table = htobe64(UINT64_MAX / 2 * 2 - 100000), ours.table_length = htonl(UINT32_MAX); }
static void no_buffer(void) { ours.buffer_length = 0; }
static void buffer_wraps(void) { ours.buffer = htobe64(UINT64_MAX - 1000), ours.buffer_length = htonl(65536); }
static void table_elsewhere(void) { ours.table = htobe64(4096), ours.table_key = htonl(0x5a5a5a); }
static void buffer_elsewhere(void) { ours.buffer = htobe64(4096), ours.buffer_key = htonl(0x5a5a5a); }

static void say_hello(void) { data(0, 5); }
static void reserved_1(void) { word(1u << 29 | 5); }
static void reserved_3(void) { word(3u << 29 | 5); }
static void reserved_5(void) { word(5u << 29 | 5); }
static void empty_data(void) { word(0); }
static void data_beyond(void) { word(ntohl(theirs.buffer_length) + 1); }
static void data_huge(void) { word(0x1fffffff); }
static void credit_backwards(void) { word(4u << 29 | 1); }
static void outside(void) { write_at(be64toh(theirs.buffer) + (64u << 20), ntohl(theirs.buffer_key), 64); }
static void wrong_key(void) { write_at(be64toh(theirs.buffer), ntohl(theirs.buffer_key) ^ 0xffff00, 64); }
static void after_end(void) { word(7u << 29 | 2), data(0, 5); }
static void entry_in_use(void) {
    // The entry of the peer's table that it still sends from.
    for (int i = 0; i < 2; i++) {
        struct { uint64_t address; uint32_t key, length; } *entry = (void *)(space + OUT);
        entry->address = (uintptr_t)space + BUFFER, entry->key = memory->rkey, entry->length = 4096;
        message(be64toh(theirs.table) + 16, ntohl(theirs.table_key), 16, 4u << 29 | 384);
    }
}
// More than the channel, the credits and every receive can hold, to a server that does not read.
static void too_many(void) {
    for (uint32_t i = 0; i < 12000 && !failed; i++) data(i, 1), listen_up(0);
}
static void iomap_index(void) { word(6u << 29 | 77); }
// That a mapping is gone which never was, from one that says it is of ours.
static void knows_notes(void) { ours.flags |= 8; }
static void unmap_nothing(void) { word(7u << 29 | 1u << 28 | 3u << 24 | 5); }

static void prepare(const char *address, const char *port);
static int stands(void);
static char **target;
// Into the memory of another connection to the same server, with the right key: that is not this
// one's to write.
static void next_door(void) {
    struct rdma_cm_id *first = id;
    struct ibv_mr *first_memory = memory;
    unsigned char *first_space = space;
    prepare(target[1], target[2]);
    if (!stands()) give_up("the second connection");
    struct rdma_cm_id *second = id;
    id = first, memory = first_memory, space = first_space;
    write_at(be64toh(theirs.buffer) + 60000, ntohl(theirs.buffer_key), 64);
    for (double end = now() + SECONDS; !failed && now() < end;) listen_up(20);
    int thrown_out = failed;
    id = second, failed = 0;
    listen_up(500);
    if (failed) give_up("the other connection suffers");
    id = first, failed = thrown_out;
}
static void die(void) { _exit(0); }
static void die_in_the_middle(void) {
    data(0, 5);
    word(1000);
    kill(getpid(), SIGKILL);
}

static const struct {
    const char *name;
    void (*offer)(void), (*then)(void);
    enum outcome expected;
    size_t length;
} misdeeds[] = {
    {"version", version, good, REFUSED, 40},
    {"no-credits", no_credits, good, REFUSED, 40},
    {"no-table", no_table, good, REFUSED, 40},
    {"small-table", small_table, good, REFUSED, 40},
    {"table-wraps", table_wraps, good, REFUSED, 40},
    {"table-huge", table_huge, good, REFUSED, 40},
    {"no-buffer", no_buffer, good, REFUSED, 40},
    {"buffer-wraps", buffer_wraps, good, REFUSED, 40},
    {"short", good, good, REFUSED, 12},
    {"nothing", good, good, REFUSED, 0},
    {"table-elsewhere", table_elsewhere, say_hello, ENDED, 40},
    {"buffer-elsewhere", buffer_elsewhere, say_hello, ENDED, 40},
    {"reserved-1", good, reserved_1, ENDED, 40},
    {"reserved-3", good, reserved_3, ENDED, 40},
    {"reserved-5", good, reserved_5, ENDED, 40},
    {"empty-data", good, empty_data, ENDED, 40},
    {"data-beyond", good, data_beyond, ENDED, 40},
    {"data-huge", good, data_huge, ENDED, 40},
    {"credit-backwards", good, credit_backwards, ENDED, 40},
    {"outside", good, outside, ENDED, 40},
    {"wrong-key", good, wrong_key, ENDED, 40},
    {"after-end", good, after_end, ENDED, 40},
    {"entry-in-use", good, entry_in_use, ENDED, 40},
    {"iomap-index", good, iomap_index, ENDED, 40},
    {"unmap-nothing", knows_notes, unmap_nothing, ENDED, 40},
    {"next-door", good, next_door, ENDED, 40},
    {"too-many", good, too_many, ENDED, 40},
    {"die", good, die, DEATH, 40},
    {"die-in-the-middle", good, die_in_the_middle, DEATH, 40},
};
enum { MISDEEDS = sizeof misdeeds / sizeof *misdeeds };

// ------------------------------------------------------------ connecting, and what becomes of it

static void prepare(const char *address, const char *port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    if (inet_pton(AF_INET, address, &to.sin_addr) != 1) give_up("address");
    if (rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) != 0) give_up("rdma_create_id");
    if (rdma_resolve_addr(id, NULL, (struct sockaddr *)&to, 5000) != 0) give_up("rdma_resolve_addr");
    if (rdma_resolve_route(id, 5000) != 0) give_up("rdma_resolve_route");
    iwarp = id->verbs->device->transport_type == IBV_TRANSPORT_IWARP;
    struct ibv_qp_init_attr attributes = {
        .cap = {.max_send_wr = QUEUE, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1},
        .qp_type = IBV_QPT_RC,
    };
    if (rdma_create_qp(id, NULL, &attributes) != 0) give_up("rdma_create_qp");
    space = aligned_alloc(4096, SPACE);
    if (space == NULL) give_up("memory");
    memset(space, 0, SPACE);
    memory = ibv_reg_mr(id->pd, space, SPACE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
    if (memory == NULL) give_up("ibv_reg_mr");
    for (int i = 0; i < RECEIVES; i++) {
        struct ibv_sge slot = {.addr = (uintptr_t)space + SLOTS, .length = 64, .lkey = memory->lkey};
        struct ibv_recv_wr wr = {.sg_list = &slot, .num_sge = 1}, *bad;
        if (ibv_post_recv(id->qp, &wr, &bad) != 0) give_up("ibv_post_recv");
    }
    ours = (struct offer){
        .version = 1,
        .credits = htons(200),
        .table = htobe64((uintptr_t)space + TABLE),
        .table_key = htonl(memory->rkey),
        .table_length = htonl(2),
        .buffer = htobe64((uintptr_t)space + BUFFER),
        .buffer_key = htonl(memory->rkey),
        .buffer_length = htonl(16384),
    };
}

// Whether the other end lets the connection stand.
static int stands(void) {
    struct rdma_conn_param parameters = {
        .private_data = &ours,
        .initiator_depth = (uint8_t)iwarp,
        .flow_control = 1,
        .retry_count = 7,
        .rnr_retry_count = 7,
    };
    extern size_t offered;
    parameters.private_data_len = (uint8_t)offered;
    if (rdma_connect(id, &parameters) != 0) {
        if (errno != ECONNREFUSED && errno != ECONNRESET) give_up("rdma_connect");
        return 0;
    }
    if (id->event == NULL || id->event->param.conn.private_data_len < sizeof theirs) give_up("no private data");
    memcpy(&theirs, id->event->param.conn.private_data, sizeof theirs);
    return 1;
}
size_t offered;

// Whether it is thrown out soon.
static int over(void) {
    for (double end = now() + SECONDS; !failed && now() < end;) listen_up(20);
    return failed;
}

int main(int argc, char **argv) {
    static const char *const said[] = {"refused", "ended", "died"};
    if (argc == 2 && strcmp(argv[1], "list") == 0) {
        for (int i = 0; i < MISDEEDS; i++) puts(misdeeds[i].name);
        return 0;
    }
    if (argc != 4) return 2;
    for (int i = 0; i < MISDEEDS; i++) {
        if (strcmp(misdeeds[i].name, argv[3]) != 0) continue;
        target = argv;
        prepare(argv[1], argv[2]);
        misdeeds[i].offer();
        offered = misdeeds[i].length;
        const char *what = "allowed";
        if (!stands()) what = said[REFUSED];
        else {
            misdeeds[i].then();
            if (over()) what = said[ENDED];
        }
        printf("%s\n", what);
        return strcmp(what, said[misdeeds[i].expected]) == 0 ? 0 : 1;
    }
    fprintf(stderr, "peer: no such misdeed: %s\n", argv[3]);
    return 2;
}
