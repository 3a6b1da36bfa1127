// Frames that make no sense, straight to the queue pair of a datagram rsocket: they must be
// ignored, and honest ones received between them. The library under test is loaded by path, beside
// librdmacm, which this program uses itself.
//
//   strange_frames ADDRESS LIBRSOCKET
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define CHECK(e) \
  do { \
    if (!(e)) { \
      printf("line %d: %s is false (%s)\n", __LINE__, #e, strerror(errno)); \
      exit(1); \
    } \
  } while (0)

static int (*our_socket)(int, int, int);
static int (*our_bind)(int, const struct sockaddr *, socklen_t);
static int (*our_close)(int);
static ssize_t (*our_recvfrom)(int, void *, size_t, int, struct sockaddr *, socklen_t *);
static ssize_t (*our_sendto)(int, const void *, size_t, int, const struct sockaddr *, socklen_t);

enum { SLOT = 4096 };
static struct rdma_cm_id *id;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static unsigned char *memory;

static void next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type want) {
  struct rdma_cm_event *event;
  CHECK(rdma_get_cm_event(channel, &event) == 0);
  if (event->event != want) printf("%s\n", rdma_event_str(event->event));
  CHECK(event->event == want);
  rdma_ack_cm_event(event);
}

// A queue pair of our own, and the way to the address.
static void open_pair(struct sockaddr_in *to) {
  struct rdma_event_channel *channel = rdma_create_event_channel();
  CHECK(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_UDP) == 0);
  CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000) == 0);
  next_event(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
  CHECK(rdma_resolve_route(id, 2000) == 0);
  next_event(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);
  struct ibv_pd *pd = ibv_alloc_pd(id->verbs);
  cq = ibv_create_cq(id->verbs, 32, NULL, NULL, 0);
  CHECK(pd && cq);
  struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_UD, .sq_sig_all = 1};
  attr.cap.max_send_wr = attr.cap.max_recv_wr = 16, attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  CHECK(rdma_create_qp(id, pd, &attr) == 0);
  memory = calloc(1, SLOT);
  mr = ibv_reg_mr(pd, memory, SLOT, IBV_ACCESS_LOCAL_WRITE);
  CHECK(mr);
  union ibv_gid gid;
  struct ibv_ah_attr path = {.is_global = 1, .port_num = id->port_num};
  path.grh.dgid = id->route.path_rec->dgid, path.grh.hop_limit = 64;
  for (int i = 0;; i++) {
    CHECK(ibv_query_gid(id->verbs, id->port_num, i, &gid) == 0);
    if (memcmp(&gid, &id->route.path_rec->sgid, sizeof gid) == 0) {
      path.grh.sgid_index = i;
      break;
    }
  }
  ah = ibv_create_ah(pd, &path);
  CHECK(ah);
}

static void send_frame(unsigned qpn, unsigned qkey, const void *bytes, size_t n) {
  struct ibv_sge sge = {(uintptr_t)memory, n, mr->lkey};
  struct ibv_send_wr wr = {.opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = n ? 1 : 0, .send_flags = IBV_SEND_SIGNALED};
  struct ibv_send_wr *bad;
  struct ibv_wc wc;
  memcpy(memory, bytes, n);
  wr.wr.ud.ah = ah, wr.wr.ud.remote_qpn = qpn, wr.wr.ud.remote_qkey = qkey;
  CHECK(ibv_post_send(id->qp, &wr, &bad) == 0);
  for (int got = 0; got == 0;) {
    got = ibv_poll_cq(cq, 1, &wc);
    CHECK(got >= 0);
  }
  CHECK(wc.status == IBV_WC_SUCCESS);
}

int main(int argc, char **argv) {
  CHECK(argc == 3);
  setvbuf(stdout, NULL, _IOLBF, 0);
  alarm(90);
  void *ours = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
  if (!ours) printf("%s\n", dlerror());
  CHECK(ours);
  our_socket = dlsym(ours, "rsocket"), our_bind = dlsym(ours, "rbind"), our_close = dlsym(ours, "rclose");
  our_recvfrom = dlsym(ours, "rrecvfrom"), our_sendto = dlsym(ours, "rsendto");
  struct sockaddr_in a = {.sin_family = AF_INET}, from;
  a.sin_addr.s_addr = inet_addr(argv[1]);
  socklen_t len = sizeof a;
  int fd = our_socket(AF_INET, SOCK_DGRAM, 0);
  CHECK(fd >= 0 && our_bind(fd, (struct sockaddr *)&a, len) == 0);
  CHECK(getsockname(fd, (struct sockaddr *)&a, &len) == 0);
  open_pair(&a);

  // Its queue pair is told to the process that sends a packet of the exchange: `wire-protocol` 9.3.
  int udp = socket(AF_INET, SOCK_DGRAM, 0);
  struct sockaddr_in mine = {.sin_family = AF_INET, .sin_addr = a.sin_addr};
  CHECK(bind(udp, (struct sockaddr *)&mine, sizeof mine) == 0);
  len = sizeof mine;
  CHECK(getsockname(udp, (struct sockaddr *)&mine, &len) == 0);
  unsigned char p[64] = {0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0}, got[4096];
  unsigned own = htonl(id->qp->qp_num);
  memcpy(p + 8, &own, 4), memcpy(p + 12, &mine.sin_addr, 4), memcpy(p + 16, "hello", 5);
  CHECK(sendto(udp, p, 21, 0, (struct sockaddr *)&a, sizeof a) == 21);
  len = sizeof from;
  CHECK(our_recvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&from, &len) == 5 && memcmp(got, "hello", 5) == 0);
  CHECK(from.sin_port == mine.sin_port && from.sin_addr.s_addr == mine.sin_addr.s_addr);
  CHECK(recv(udp, got, sizeof got, 0) == 16 && got[4] == 4 && got[5] == 7 && got[6] == 16);
  unsigned qpn;
  memcpy(&qpn, got + 8, 4);
  qpn = ntohl(qpn);
  CHECK(qpn > 1);

  unsigned char frame[1024];
  for (int round = 0; round < 4; round++) {
    for (int v = 0; v < 10; v++)
      for (int n = 0; n < 30; n += 3) {
        memset(frame, 0xee, sizeof frame);
        frame[0] = v, frame[1] = v == 4 ? 24 : 8;
        send_frame(qpn, 0x01234567, frame, n);
        // Before the queue is full of them.
        CHECK(our_recvfrom(fd, got, sizeof got, MSG_DONTWAIT, NULL, NULL) == -1 && errno == EAGAIN);
      }
    // Right, but with another key: the device's own business.
    frame[0] = 4, frame[1] = 8;
    send_frame(qpn, 0x7654321, frame, 100);
    // Honest ones.
    for (int i = 0; i < 40; i++) {
      frame[0] = 4, frame[1] = 8;
      memcpy(frame + 2, &mine.sin_port, 2), memcpy(frame + 4, &mine.sin_addr, 4);
      memset(frame + 8, i, 200);
      send_frame(qpn, 0x01234567, frame, 8 + 200);
      len = sizeof from;
      CHECK(our_recvfrom(fd, got, sizeof got, 0, (struct sockaddr *)&from, &len) == 200 && got[0] == i && got[199] == i);
      CHECK(from.sin_port == mine.sin_port && from.sin_addr.s_addr == mine.sin_addr.s_addr);
    }
    CHECK(our_recvfrom(fd, got, sizeof got, MSG_DONTWAIT, NULL, NULL) == -1 && errno == EAGAIN);
  }
  CHECK(our_close(fd) == 0);
  ibv_destroy_ah(ah);
  rdma_destroy_qp(id);
  printf("done\n");
  return 0;
}
