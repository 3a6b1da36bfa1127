// What an edge-triggered set has told of an end is told once, whatever happens to the descriptor
// behind it. Beside members that are always ready it is told at once.
#include "pair.h"
#include "set.h"

#include <sys/syscall.h>
#include <sys/wait.h>

// The kernel has heard of the end: seen by a call of which the library does not learn.
static void over(int fd, int state, int or) {
  struct tcp_info info = {0};
  socklen_t l = sizeof info;
  for (double end = now() + 10; info.tcpi_state != state && info.tcpi_state != or;)
    CHECK(now() < end && !syscall(SYS_getsockopt, fd, IPPROTO_TCP, TCP_INFO, &info, &l));
}

// What has the descriptor: a program without the library, for a moment; a call that only the kernel
// can do.
static void by_a_program(int fd) {
  (void)fd;
  pid_t kid = fork();
  if (kid == 0) {
    unsetenv("LD_PRELOAD");
    execl("/bin/true", "true", NULL);
    _exit(9);
  }
  int status = -1;
  CHECK(waitpid(kid, &status, 0) == kid && status == 0);
}
static void by_a_call(int fd) { CHECK(dprintf(fd, "%s", "back") < 0); }

static const unsigned wanted[] = {EPOLLIN | EPOLLET, EPOLLIN | EPOLLRDHUP | EPOLLET,
                                  EPOLLRDHUP | EPOLLET, EPOLLET};
static void end_of_both(int lfd, void (*leaves)(int), int unread) {
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < 4; i++) {
    unsigned first = wanted[i] & (EPOLLIN | EPOLLRDHUP);
    int s[2];
    two(lfd, s);
    if (unread) put(s[0], "unread", 6), here(s[1], 6);
    int ep = set_of(s[1], wanted[i]);
    CHECK(!shutdown(s[0], SHUT_WR));
    over(s[1], TCP_CLOSE_WAIT, TCP_CLOSE_WAIT);
    EQ(said(ep, first ? patience(2000) : 0), first);
    CHECK(!shutdown(s[1], SHUT_WR));
    until(s[1], POLLRDHUP, POLLRDHUP | POLLHUP);
    EQ(said(ep, patience(2000)), first | EPOLLHUP);
    quiet(ep);
    leaves(s[1]);
    quiet(ep);
    close(ep), close(s[0]), close(s[1]);
  }
}
static void program_both(int lfd) {
  for (int unread = 0; unread < 2; unread++) end_of_both(lfd, by_a_program, unread);
}
static void call_both(int lfd) {
  for (int unread = 0; unread < 2; unread++) end_of_both(lfd, by_a_call, unread);
}

// A reset, told with its error.
static void reset_and(int lfd, void (*leaves)(int)) {
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < 4; i++) {
    unsigned all = (wanted[i] & (EPOLLIN | EPOLLRDHUP)) | EPOLLHUP | EPOLLERR;
    int s[2];
    two(lfd, s);
    int ep = set_of(s[1], wanted[i]);
    close(s[0]);
    over(s[1], TCP_CLOSE_WAIT, TCP_CLOSE_WAIT);
    EQ(send(s[1], "x", 1, MSG_NOSIGNAL), 1);
    over(s[1], TCP_CLOSE, TCP_CLOSE);
    EQ(said(ep, patience(2000)), all);
    quiet(ep);
    leaves(s[1]);
    quiet(ep);
    close(ep), close(s[1]);
  }
}
static void program_reset(int lfd) { reset_and(lfd, by_a_program); }
static void call_reset(int lfd) { reset_and(lfd, by_a_call); }

// Registered where the sender has gone back, with unread bytes before the end: what the reader's
// own way back finds in the kernel was told.
static void added_and_spliced(int lfd) {
  static char b[2000];
  signal(SIGPIPE, SIG_IGN);
  for (int i = 0; i < 2; i++) {
    int s[2], p[2];
    two(lfd, s);
    put(s[0], b, sizeof b);
    here(s[1], sizeof b);
    CHECK(!shutdown(s[0], SHUT_WR));
    over(s[1], TCP_CLOSE_WAIT, TCP_CLOSE_WAIT);
    FAILS(dprintf(s[0], "%s", "back"), EPIPE);
    int ep = set_of(s[1], wanted[i]);
    EQ(said(ep, patience(2000)), wanted[i] & (EPOLLIN | EPOLLRDHUP));
    quiet(ep);
    CHECK(!pipe(p));
    EQ(splice(s[1], NULL, p[1], NULL, 500, SPLICE_F_NONBLOCK), 500);
    quiet(ep);
    get(s[1], b, sizeof b - 500);
    EQ(recv(s[1], b, 1, MSG_DONTWAIT), 0);
    quiet(ep);
    close(ep), close(p[0]), close(p[1]), close(s[0]), close(s[1]);
  }
}

// An end that has shut its own reading has told so. What comes then is news for members that want
// bytes, and the peer's end for all.
static void own_reading_shut(int lfd) {
  static char b[100];
  for (int i = 0; i < 3; i++) {
    unsigned all = wanted[i] & (EPOLLIN | EPOLLRDHUP);
    int s[2];
    two(lfd, s);
    CHECK(!shutdown(s[1], SHUT_RD));
    int ep = set_of(s[1], wanted[i]);
    EQ(said(ep, patience(2000)), all);
    quiet(ep);
    for (int round = 1; round < 4; round++) {
      put(s[0], b, sizeof b);
      here(s[1], round * (int)sizeof b);
      EQ(said(ep, 0), all & EPOLLIN ? all : 0);
      quiet(ep);
    }
    CHECK(!shutdown(s[0], SHUT_WR));
    over(s[1], TCP_CLOSE_WAIT, TCP_CLOSE_WAIT);
    EQ(said(ep, patience(2000)), all);
    quiet(ep);
    close(ep), close(s[0]), close(s[1]);
  }
}

// One member is dead, and told by each wait. A reset of another one is told by the first wait
// behind it.
static void beside_the_dead(int lfd) {
  for (int i = 0; i < 12; i++) {
    int a[2], s[2];
    two(lfd, a);
    two(lfd, s);
    CHECK(!shutdown(a[0], SHUT_WR) && !shutdown(a[1], SHUT_WR));
    until(a[1], 0, POLLHUP);
    int ep = set_of(a[1], 0);
    struct epoll_event e = {.events = EPOLLRDHUP | EPOLLET, .data.u32 = 1}, seen[4];
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, s[1], &e));
    close(s[0]);
    over(s[1], TCP_CLOSE_WAIT, TCP_CLOSE_WAIT);
    int told = 0;
    for (double end = now() + 10; !told;) {
      int n = epoll_wait(ep, seen, 4, 0);
      CHECK(now() < end && n > 0);
      told = n > 1;
    }
    for (int k = 0; k < 1 + i; k++) EQ(epoll_wait(ep, seen, 4, 0), 1);
    EQ(send(s[1], "x", 1, MSG_NOSIGNAL), 1);
    over(s[1], TCP_CLOSE, TCP_CLOSE);
    EQ(epoll_wait(ep, seen, 4, 0), 2);
    unsigned all = 0;
    for (int k = 0; k < 2; k++) all |= seen[k].data.u32 == 1 ? seen[k].events : 0;
    EQ(all, EPOLLRDHUP | EPOLLHUP | EPOLLERR);
    close(ep), close(a[0]), close(a[1]), close(s[1]);
  }
}

// Another number for the connection, by a message.
static int passed(int fd) {
  int p[2], other = -1;
  char c = 'x', room[CMSG_SPACE(sizeof(int))] = {0};
  struct iovec v = {&c, 1};
  struct msghdr m = {
      .msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, p));
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof(int));
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  EQ(sendmsg(p[0], &m, 0), 1);
  EQ(recvmsg(p[1], &m, 0), 1);
  memcpy(&other, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof other);
  close(p[0]), close(p[1]);
  return other;
}
// Taken out of the set and closed, the number is no member's there when the file comes back under
// it.
static void back_under_its_number(int lfd) {
  for (int i = 0; i < 4; i++) {
    struct epoll_event e = {.events = EPOLLOUT};
    int s[2];
    two(lfd, s);
    int ep = set_of(s[1], EPOLLOUT);
    if (i & 1) by_a_program(s[1]);
    if (i & 2) EQ(said(ep, patience(2000)), EPOLLOUT);
    int other = passed(s[1]);
    CHECK(!epoll_ctl(ep, EPOLL_CTL_DEL, s[1], NULL) && !close(s[1]));
    EQ(dup2(other, s[1]), s[1]);
    CHECK(!close(other));
    FAILS(epoll_ctl(ep, EPOLL_CTL_MOD, s[1], &e), ENOENT);
    FAILS(epoll_ctl(ep, EPOLL_CTL_DEL, s[1], NULL), ENOENT);
    EQ(said(ep, 2), 0);
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, s[1], &e));
    EQ(said(ep, patience(2000)), EPOLLOUT);
    close(ep), close(s[0]), close(s[1]);
  }
}

const test_case CASES[] = {
    {"end_of_both_and_a_program", program_both, NULL, SOLO | NOSHM},
    {"end_of_both_and_a_call", call_both, NULL, SOLO | NOSHM},
    {"reset_and_a_program", program_reset, NULL, SOLO | NOSHM},
    {"reset_and_a_call", call_reset, NULL, SOLO | NOSHM},
    {"added_behind_the_way_back", added_and_spliced, NULL, SOLO | NOSHM},
    {"own_reading_shut", own_reading_shut, NULL, SOLO},
    {"beside_the_dead", beside_the_dead, NULL, SOLO},
    {"back_under_its_number", back_under_its_number, NULL, SOLO | NOSHM},
    {0},
};
