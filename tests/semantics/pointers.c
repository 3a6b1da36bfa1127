// Bad pointers: the kernel answers with EFAULT, and kills no process. On sockets that have nothing
// to do with the library, in a program that has a connection as well. Also headers, lists, names
// and times of calls on the connection itself, and names of programs that are to take over.
#include "pair.h"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/un.h>

static void *bad, *volatile low = (void *)16;
static int udp, un[2], own, peer;
static struct iovec one_byte;
static char c;

static long m_recvmmsg(void) { return recvmmsg(udp, bad, 1, MSG_DONTWAIT, NULL); }
static long m_sendmmsg(void) { return sendmmsg(udp, bad, 1, 0); }
static long m_sendmsg(void) { return sendmsg(un[0], bad, 0); }
static long m_recvmsg(void) { return recvmsg(un[0], bad, MSG_DONTWAIT); }
static long m_send_control(void) {
  struct msghdr m = {.msg_iov = &one_byte, .msg_iovlen = 1, .msg_control = bad, .msg_controllen = 24};
  return sendmsg(un[0], &m, 0);
}
static long m_send_vectors(void) {
  struct msghdr m = {.msg_iov = bad, .msg_iovlen = 1};
  return sendmsg(un[0], &m, 0);
}
static long m_recv_vectors(void) {
  struct mmsghdr m = {.msg_hdr = {.msg_iov = bad, .msg_iovlen = 1}};
  return recvmmsg(udp, &m, 1, MSG_DONTWAIT, NULL);
}
// A list whose first header is good, and whose second lies behind the end of what is mapped.
static long m_across(void) {
  struct mmsghdr *list = (struct mmsghdr *)((char *)bad - sizeof *list);
  memset(list, 0, sizeof *list);
  list->msg_hdr = (struct msghdr){.msg_iov = &one_byte, .msg_iovlen = 1};
  EQ(sendmmsg(un[0], list, 2, 0), 1);
  return sendmmsg(un[0], list + 1, 1, 0);
}
static long m_epoll_ctl(void) { return epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, udp, bad); }
static long m_epoll_wait(void) {
  int e = epoll_create1(0);
  struct epoll_event v = {.events = EPOLLOUT};
  CHECK(!epoll_ctl(e, EPOLL_CTL_ADD, un[0], &v));
  return epoll_wait(e, bad, 1, 0);
}
static long m_connect(void) { return connect(udp, bad, 16); }
static long m_bind(void) { return bind(socket(AF_INET, SOCK_DGRAM, 0), bad, 16); }
static long m_name(void) {
  socklen_t l = 16;
  return getsockname(udp, bad, &l);
}
static long m_option(void) { return setsockopt(udp, SOL_SOCKET, SO_RCVBUF, bad, 4); }
static long m_option_back(void) {
  socklen_t l = 4;
  return getsockopt(udp, SOL_SOCKET, SO_ERROR, bad, &l);
}
static long m_readv(void) { return readv(un[0], bad, 1); }
static long m_writev(void) { return writev(un[0], bad, 1); }
static long m_sendto(void) {
  struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = 9, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  return sendto(udp, bad, 4, 0, (void *)&to, sizeof to);
}
static long m_sendfile(void) {
  int f = open("/proc/self/exe", O_RDONLY);
  return sendfile(un[0], f, bad, 10);
}
static long m_ioctl(void) { return ioctl(udp, FIONREAD, bad); }
static long m_pipe(void) { return pipe(bad); }
static long m_pair(void) { return socketpair(AF_UNIX, SOCK_STREAM, 0, bad); }

#define OWN(name, call) \
  static long m_own_##name(void) { return call; }
#define WITH_BAD_LIST(m) struct msghdr m = {.msg_iov = bad, .msg_iovlen = 1}
OWN(recvmsg, recvmsg(own, bad, MSG_DONTWAIT))
OWN(sendmsg, sendmsg(own, bad, 0))
OWN(recvmmsg, recvmmsg(own, bad, 1, MSG_DONTWAIT, NULL))
OWN(sendmmsg, sendmmsg(own, bad, 1, 0))
OWN(readv, readv(own, bad, 1))
OWN(writev, writev(own, bad, 1))
OWN(poll, poll(bad, 1, 0))
OWN(select, select(own + 1, bad, NULL, NULL, &(struct timeval){0, 0}))
OWN(poll_low, poll(low, 1, 0))
OWN(select_low, select(own + 1, low, NULL, NULL, &(struct timeval){0, 0}))
OWN(writev_low, writev(own, low, 1))
OWN(select_write, select(own + 1, NULL, bad, NULL, &(struct timeval){0, 0}))
static long m_own_recv_list(void) {
  WITH_BAD_LIST(m);
  return recvmsg(own, &m, MSG_DONTWAIT);
}
static long m_own_send_list(void) {
  WITH_BAD_LIST(m);
  return sendmsg(own, &m, 0);
}
static long m_own_recv_lists(void) {
  struct mmsghdr m = {.msg_hdr = {.msg_iov = bad, .msg_iovlen = 1}};
  return recvmmsg(own, &m, 1, MSG_DONTWAIT, NULL);
}
static long m_own_send_lists(void) {
  struct mmsghdr m = {.msg_hdr = {.msg_iov = bad, .msg_iovlen = 1}};
  return sendmmsg(own, &m, 1, 0);
}
// The second header is nowhere: the first message goes all the same.
static long m_own_second(void) {
  struct mmsghdr *m = (struct mmsghdr *)((char *)bad - sizeof *m);
  m->msg_hdr = (struct msghdr){.msg_iov = &one_byte, .msg_iovlen = 1};
  if (sendmmsg(own, m, 2, 0) != 1) return 0;
  m->msg_hdr = (struct msghdr){.msg_iov = &one_byte, .msg_iovlen = 1};
  if (send(peer, "xy", 2, 0) != 2 || recvmmsg(own, m, 2, MSG_WAITALL, NULL) != 1) return 0;
  errno = EFAULT;
  return -1;
}

// Names, times, offsets and sets of signals that a call reads beside the bytes. (libc itself reads
// the times of select and ppoll.)
#define AN_EVENT struct epoll_event event = {.events = EPOLLOUT}
#define NO_TIME struct timespec at_once = {0}
OWN(sendto_name, sendto(own, &c, 1, 0, bad, 16))
OWN(connect, connect(socket(AF_INET, SOCK_STREAM, 0), bad, 16))
OWN(option, setsockopt(own, IPPROTO_TCP, TCP_NODELAY, bad, 4))
OWN(epoll_add, epoll_ctl(epoll_create1(0), EPOLL_CTL_ADD, own, bad))
static long m_own_send_name(void) {
  struct msghdr m = {.msg_iov = &one_byte, .msg_iovlen = 1, .msg_name = bad, .msg_namelen = 16};
  return sendmsg(own, &m, 0);
}
static long m_own_send_names(void) {
  struct mmsghdr m = {.msg_hdr = {.msg_iov = &one_byte, .msg_iovlen = 1, .msg_name = bad, .msg_namelen = 16}};
  return sendmmsg(own, &m, 1, 0);
}
static long m_own_name_room(void) {
  struct sockaddr_in from;
  if (send(peer, "x", 1, 0) != 1) return 0;
  return recvfrom(own, &c, 1, 0, (void *)&from, bad);
}
static long m_own_recv_time(void) {
  struct mmsghdr m = {.msg_hdr = {.msg_iov = &one_byte, .msg_iovlen = 1}};
  return recvmmsg(own, &m, 1, MSG_DONTWAIT, bad);
}
static long m_own_poll_signals(void) {
  struct pollfd p = {own, POLLOUT, 0};
  NO_TIME;
  return ppoll(&p, 1, &at_once, bad);
}
static long m_own_select_signals(void) {
  fd_set set;
  FD_ZERO(&set);
  FD_SET(own, &set);
  NO_TIME;
  return pselect(own + 1, NULL, &set, NULL, &at_once, bad);
}
static int with_own(void) {
  int set = epoll_create1(0);
  AN_EVENT;
  CHECK(set >= 0 && !epoll_ctl(set, EPOLL_CTL_ADD, own, &event));
  return set;
}
OWN(epoll_change, epoll_ctl(with_own(), EPOLL_CTL_MOD, own, bad))
OWN(epoll_events, epoll_wait(with_own(), bad, 1, 0))
OWN(epoll_low, epoll_wait(with_own(), low, 1, 0))
static long m_own_epoll_signals(void) {
  AN_EVENT;
  return epoll_pwait(with_own(), &event, 1, 0, bad);
}
static long m_own_epoll_time(void) {
  AN_EVENT;
  return epoll_pwait2(with_own(), &event, 1, bad, NULL);
}
static long m_own_sendfile(void) {
  int f = open("/proc/self/exe", O_RDONLY);
  return sendfile(own, f, bad, 10);
}
// Of a program that is to take over.
extern char **environ;
static char *words[] = {"true", NULL};
OWN(exec_path, execve(bad, words, environ))
OWN(exec_path_at, execveat(AT_FDCWD, bad, words, environ, 0))
OWN(exec_path_own, execv(bad, words))
OWN(exec_words, execve("/bin/true", bad, environ))
OWN(exec_environment, execve("/bin/true", words, bad))
OWN(exec_open, fexecve(open("/bin/true", O_RDONLY), words, bad))
static long m_own_exec_string(void) {
  char *strings[] = {"A=1", bad, NULL};
  return execve("/bin/true", words, strings);
}
// The string begins on a page that is there, and has no end on it.
static long m_own_exec_endless(void) {
  char *path = (char *)bad - 4;
  memcpy(path, "/bin", 4);
  return execve(path, words, environ);
}

static void answers_efault(int lfd) {
  static const struct {
    const char *name;
    long (*call)(void);
  } all[] = {
#define C(f) {#f, m_##f}
    C(recvmmsg), C(sendmmsg), C(sendmsg), C(recvmsg), C(send_control), C(send_vectors), C(recv_vectors), C(across),
    C(epoll_ctl), C(epoll_wait), C(connect), C(bind),
    C(name), C(option), C(option_back), C(readv), C(writev), C(sendto), C(sendfile), C(ioctl), C(pipe), C(pair),
    C(own_recvmsg), C(own_sendmsg), C(own_recvmmsg), C(own_sendmmsg), C(own_readv), C(own_writev), C(own_poll),
    C(own_select), C(own_select_write), C(own_recv_list), C(own_send_list), C(own_recv_lists), C(own_send_lists),
    C(own_second), C(own_poll_low), C(own_select_low), C(own_writev_low), C(own_sendto_name), C(own_connect),
    C(own_option), C(own_epoll_add), C(own_send_name), C(own_send_names),
    C(own_name_room), C(own_recv_time), C(own_poll_signals), C(own_select_signals),
    C(own_epoll_change), C(own_epoll_events), C(own_epoll_low), C(own_epoll_signals), C(own_epoll_time),
    C(own_sendfile), C(own_exec_path), C(own_exec_path_at), C(own_exec_path_own), C(own_exec_words),
    C(own_exec_environment), C(own_exec_open), C(own_exec_string), C(own_exec_endless),
  };
  int s[2];
  two(lfd, s);
  own = s[0], peer = s[1];
  char *two_pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(two_pages != MAP_FAILED);
  bad = two_pages + 4096;
  CHECK(!mprotect(bad, 4096, PROT_NONE));
  one_byte = (struct iovec){&c, 1};
  udp = socket(AF_INET, SOCK_DGRAM, 0);
  CHECK(udp >= 0 && !socketpair(AF_UNIX, SOCK_STREAM, 0, un));
  struct sockaddr_in any = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  CHECK(!bind(udp, (void *)&any, sizeof any));
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
    // The parent's own calls would be judged by what an earlier one left.
    pid_t p = fork();
    if (!p) {
      errno = 0;
      long r = all[i].call();
      _exit(r == -1 && errno == EFAULT ? 0 : r == -1 ? errno : 200);
    }
    int status = exit_status(p);
    if (status) FAIL("%s: %d, not EFAULT", all[i].name, status);
  }
}

const test_case CASES[] = {{"answers_efault", answers_efault, NULL, SOLO}, {0}};
