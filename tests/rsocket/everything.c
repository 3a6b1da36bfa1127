// Every function and every constant of the header, in one program that is C and C++: it compiles,
// it links, it runs. tests/programs/rsocket.sh looks whether any name that the library exports is
// missing here.
#include <rdma/rsocket.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static int bad;

static void expect(long got, long wanted, const char *what) {
  if (got == wanted) return;
  fprintf(stderr, "%s is %ld, not %ld (errno %d)\n", what, got, wanted, errno);
  bad = 1;
}
#define IS(e, wanted) expect((long)(e), (long)(wanted), #e)

int main(void) {
  struct sockaddr_in a;
  socklen_t len = sizeof a;
  char buf[64];
  struct iovec v;
  struct msghdr m;
  struct epoll_event event;
  struct pollfd p;
  struct timeval t;
  fd_set set;
  int value = 100;

  memset(&a, 0, sizeof a);
  a.sin_family = AF_INET;
  a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  int l = rsocket(AF_INET, SOCK_STREAM, 0);
  int ours = rsocket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP);
  IS(rsetsockopt(l, SOL_RDMA, RDMA_SQSIZE, &value, sizeof value), 0);
  IS(rsetsockopt(l, SOL_RDMA, RDMA_RQSIZE, &value, sizeof value), 0);
  IS(rsetsockopt(l, SOL_RDMA, RDMA_INLINE, &value, sizeof value), 0);
  IS(rsetsockopt(l, SOL_RDMA, RDMA_IOMAPSIZE, &value, sizeof value), 0);
  IS(rgetsockopt(l, SOL_RDMA, RDMA_ROUTE, &value, &len), -1);
  IS(rbind(l, (struct sockaddr *)&a, sizeof a), 0);
  IS(rlisten(l, 5), 0);
  len = sizeof a;
  IS(rgetsockname(l, (struct sockaddr *)&a, &len), 0);
  IS(rconnect(ours, (struct sockaddr *)&a, len), 0);
  int theirs = raccept(l, NULL, NULL);
  IS(theirs >= 0, 1);
  IS(rgetpeername(ours, (struct sockaddr *)&a, &len), 0);
  IS(rfcntl(ours, F_GETFD), FD_CLOEXEC);

  memset(buf, 'x', sizeof buf);
  memset(&m, 0, sizeof m);
  v.iov_base = buf;
  v.iov_len = 5;
  m.msg_iov = &v;
  m.msg_iovlen = 1;
  IS(rsend(ours, buf, 5, 0), 5);
  IS(rrecv(theirs, buf, 5, MSG_WAITALL), 5);
  IS(rsendto(ours, buf, 5, 0, NULL, 0), 5);
  IS(rrecvfrom(theirs, buf, 5, MSG_WAITALL, NULL, NULL), 5);
  IS(rsendmsg(ours, &m, 0), 5);
  IS(rrecvmsg(theirs, &m, MSG_WAITALL), 5);
  IS(rwrite(ours, buf, 5), 5);
  IS(rread(theirs, buf, 5), 5);
  IS(rwritev(ours, &v, 1), 5);
  IS(rreadv(theirs, &v, 1), 5);

  // Direct placement: what was mapped at one end is written at the other.
  static char place[64];
  off_t at = riomap(ours, place, sizeof place, PROT_WRITE, 0, -1);
  IS(at != -1, 1);
  IS(rwrite(ours, buf, 1), 1);
  IS(rread(theirs, buf, 1), 1);
  IS(riowrite(theirs, "placed", 6, at, 0), 6);
  IS(rwrite(theirs, buf, 1), 1);
  IS(rread(ours, buf, 1), 1);
  IS(memcmp(place, "placed", 6), 0);
  IS(riounmap(ours, place, sizeof place), 0);

  IS(rwrite(ours, buf, 1), 1);
  p.fd = theirs;
  p.events = POLLIN;
  IS(rpoll(&p, 1, 10000), 1);
  FD_ZERO(&set);
  FD_SET(theirs, &set);
  t.tv_sec = 10;
  t.tv_usec = 0;
  IS(rselect(theirs + 1, &set, NULL, NULL, &t), 1);
  int ready = repoll_create(EPOLL_CLOEXEC);
  IS(ready >= 0, 1);
  memset(&event, 0, sizeof event);
  event.events = EPOLLIN;
  IS(repoll_ctl(ready, EPOLL_CTL_ADD, theirs, &event), 0);
  IS(repoll_wait(ready, &event, 1, 10000), 1);
  IS(rclose(ready), 0);

  IS(rread(theirs, buf, 1), 1);
  IS(rshutdown(ours, SHUT_WR), 0);
  IS(rread(theirs, buf, 1), 0);
  IS(rclose(ours), 0);
  IS(rclose(theirs), 0);
  IS(rclose(l), 0);
  return bad;
}
