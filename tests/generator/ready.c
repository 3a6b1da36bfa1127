// Calls that ask: readiness in all spellings and sets, options, and other sockets with pointers
// that lead nowhere.
#include "generator.h"

static void by_poll(int end) {
  static const short sets[] = {POLLIN | POLLOUT | POLLRDHUP | POLLPRI, POLLIN, POLLOUT, POLLPRI, POLLRDHUP, 0,
                               POLLRDNORM | POLLWRNORM, POLLRDBAND | POLLWRBAND, POLLIN | POLLRDHUP};
  struct pollfd p[3] = {{g.s[end], sets[pick(9)], 0}, {-1, POLLIN, 0}, {g.s[end], sets[pick(9)], 0}};
  struct timespec none = {0, 0};
  int both = (int)pick(2), other = !end;
  if (both && g.s[other] >= 0 && !g.closed[other]) p[1].fd = g.s[other];
  int r = pick(2) ? poll(p, 3, 0) : ppoll(p, 3, &none, NULL);
  SAY("%d poll %#x %#x = %d %#x %#x %#x", end, (unsigned)p[0].events, (unsigned)p[2].events, r,
      (unsigned)p[0].revents, (unsigned)p[1].revents, (unsigned)p[2].revents);
}

static void by_select(int end) {
  fd_set sets[3], *asked[3];
  unsigned which = pick(8);
  for (int i = 0; i < 3; i++) {
    FD_ZERO(&sets[i]);
    FD_SET(g.s[end], &sets[i]);
    asked[i] = which >> i & 1 ? &sets[i] : NULL;
  }
  struct timeval t = {0, 0};
  struct timespec none = {0, 0};
  int r = pick(2) ? select(g.s[end] + 1, asked[0], asked[1], asked[2], &t)
                  : pselect(g.s[end] + 1, asked[0], asked[1], asked[2], &none, NULL);
  char seen[4] = "---";
  for (int i = 0; i < 3; i++)
    if (asked[i] && FD_ISSET(g.s[end], &sets[i])) seen[i] = "rwe"[i];
  SAY("%d select %u = %d %s", end, which, r, seen);
}

static void by_epoll(int end) {
  static const unsigned kinds[] = {EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLET, EPOLLIN | EPOLLOUT | EPOLLONESHOT, EPOLLPRI,
                                   EPOLLIN | EPOLLRDHUP, 0, EPOLLRDHUP | EPOLLET, EPOLLIN | EPOLLPRI,
                                   EPOLLRDNORM | EPOLLWRNORM};
  struct epoll_event e = {.events = kinds[pick(10)], .data.u32 = (unsigned)end};
  unsigned wanted = e.events;
  int op = 1 + (int)pick(3), r = epoll_ctl(g.set, op, g.s[end], &e);
  if (r == 0) {
    g.edge[end] = op != EPOLL_CTL_DEL && wanted == (EPOLLIN | EPOLLET);
    g.told[end] = UINT64_MAX;
  }
  SAY("%d epoll_ctl %d %#x = %d %s", end, op, wanted, r, error(r));
}

// TCP may tell again of unread bytes that were told of. One case is when the peer acknowledges our
// own end, which it does at once or some time later, as the last segments were. The other is where
// the bytes come again, since the connection goes back to TCP.
static int may_be_told_again(int end) {
  return g.edge[end] && g.s[end] >= 0 && g.told[end] == g.sent[!end] && (g.ended[end] || g.back[!end] || g.back[end]) &&
         waiting(end) > 0;
}

// Twice: a call that finds one thing ready need not look for others, as long as the next call finds
// them.
static void by_wait(void) {
  struct epoll_event e[4];
  unsigned seen[2] = {0, 0}, spelling = pick(2);
  for (int call = 0; call < 2; call++) {
    int r = spelling ? epoll_wait(g.set, e, 4, 0) : epoll_pwait(g.set, e, 4, 0, NULL);
    for (int i = 0; i < r; i++) seen[e[i].data.u32 & 1] |= e[i].events;
  }
  for (int end = 0; end < 2; end++) {
    if (may_be_told_again(end)) seen[end] &= ~(unsigned)EPOLLIN;
    if (seen[end] & EPOLLIN) g.told[end] = g.sent[!end];
  }
  SAY("epoll_wait = %#x %#x", seen[0], seen[1]);
}

void do_ready(int end) {
  switch (pick(4)) {
    case 0: by_poll(end); break;
    case 1: by_select(end); break;
    case 2: by_epoll(end); break;
    default: by_wait();
  }
}

// Blocking and not, in both spellings, with a call that does not wait in between.
static void modes(int end) {
  int off = 0, on = 1, s = g.s[end], spelling = (int)pick(2);
  if (spelling) ioctl(s, FIONBIO, &off);
  else fcntl(s, F_SETFL, fcntl(s, F_GETFL) & ~O_NONBLOCK);
  int without = !!(fcntl(s, F_GETFL) & O_NONBLOCK);
  char c;
  ssize_t r = recv(s, &c, 1, MSG_PEEK | MSG_DONTWAIT);
  int e = errno;
  ioctl(s, FIONBIO, &on);
  int with = !!(fcntl(s, F_GETFL) & O_NONBLOCK);
  errno = e;
  SAY("%d modes/%d = %d, %zd %s, %d", end, spelling, without, r, error(r), with);
}

void do_option(int end) {
  static const struct { int level, name, most; } options[] = {
      {SOL_SOCKET, SO_KEEPALIVE, 2}, {SOL_SOCKET, SO_RCVLOWAT, 50}, {IPPROTO_TCP, TCP_NODELAY, 2},
      {IPPROTO_TCP, TCP_QUICKACK, 2}, {SOL_SOCKET, SO_OOBINLINE, 2}, {SOL_SOCKET, SO_PRIORITY, 4}};
  unsigned how = pick(5);
  if (how < 2) {
    unsigned i = pick(6);
    int v = (int)pick((unsigned)options[i].most);
    int r = setsockopt(g.s[end], options[i].level, options[i].name, &v, sizeof v);
    if (r == 0 && options[i].name == TCP_NODELAY && options[i].level == IPPROTO_TCP) g.nagle[end] = !v;
    SAY("%d setsockopt %d %d = %d = %d %s", end, options[i].level, options[i].name, v, r, error(r));
  } else if (how == 2) {
    int v = -1;
    socklen_t n = sizeof v;
    int r = getsockopt(g.s[end], SOL_SOCKET, SO_ERROR, &v, &n);
    SAY("%d SO_ERROR = %d %d", end, r, v);
  } else if (how == 3) SAY("%d FIONREAD = %ld", end, waiting(end));
  else modes(end);
}

// Sockets that are none of TCP's, with pointers that lead nowhere, and the connection with none at
// all.
void do_foreign(void) {
  static void *const nowhere[] = {NULL, (void *)16, (void *)-4096L};
  int udp = pick(2), s = socket(udp ? AF_INET : AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0), how = (int)pick(7);
  void *bad = nowhere[pick(3)];
  long r = 0;
  errno = 0;
  if (how == 0) r = recvmsg(s, bad, 0);
  if (how == 1) r = sendmsg(s, bad, 0);
  if (how == 2) r = recvmmsg(s, bad, 1, 0, NULL);
  if (how == 3) r = sendmmsg(s, bad, 1, 0);
  if (how == 4) r = readv(s, bad, 2);
  if (how == 5) r = writev(s, bad, 2);
  if (how == 6) r = recv(s, bad, 10, 0);
  SAY("foreign/%d %d %p = %ld %s", how, udp, bad, r, error(r));
  close(s);
}
