// Flags, counts, buffers and errors of the calls that move bytes.
#include "sem.h"

#include <linux/sockios.h>

static void five_server(int fd) {
  put(fd, "12345", 5);
  hear('e');
  close(fd);
}
static void wait_bytes(int fd, int want) {
  double end = now() + 3;
  int n = -1;
  while (now() < end) {
    CHECK(!ioctl(fd, FIONREAD, &n));
    if (n == want) return;
    nap(1);
  }
  FAIL("FIONREAD is %d, not %d", n, want);
}
static void peek(int fd) {
  char b[10] = "";
  EQ(recv(fd, b, 3, MSG_PEEK), 3);
  CHECK(!memcmp(b, "123", 3));
  wait_bytes(fd, 5);
  EQ(recv(fd, b, sizeof b, MSG_PEEK), 5);
  EQ(recv(fd, b, sizeof b, MSG_PEEK | MSG_DONTWAIT), 5);
  EQ(recv(fd, b, 1, 0), 1);
  EQ(recv(fd, b, sizeof b, MSG_PEEK), 4);
  CHECK(!memcmp(b, "2345", 4));
  EQ(recv(fd, b, sizeof b, 0), 4);
  FAILS(recv(fd, b, 1, MSG_PEEK | MSG_DONTWAIT), EAGAIN);
  tell('e');
  EQ(recv(fd, b, 1, MSG_PEEK), 0);
  EQ(recv(fd, b, 1, 0), 0);
}
// Looking far ahead, over more than one buffer of TCP's or of a device's.
static void peek_far_server(int fd) {
  put_stream(fd, 1, 0, 60000, 1000);
  tell('p');
  hear('e');
}
static void peek_far(int fd) {
  static char b[60000];
  hear('p');
  wait_bytes(fd, 60000);
  EQ(recv(fd, b, sizeof b, MSG_PEEK), 60000);
  verify(b, sizeof b, 1, 0);
  get_stream(fd, 1, 0, 20000, 700);
  EQ(recv(fd, b, sizeof b, MSG_PEEK), 40000);
  verify(b, 40000, 1, 20000);
  get_stream(fd, 1, 20000, 60000, 50000);
  tell('e');
}
static void waitall_server(int fd) {
  for (uint64_t at = 0; at < 1 << 20; at += 1 << 18) {
    put_stream(fd, 2, at, at + (1 << 18), 5000);
    nap(5);
  }
  put(fd, "end", 3);
  close(fd);
}
static void waitall(int fd) {
  static char b[1 << 20];
  EQ(recv(fd, b, sizeof b, MSG_WAITALL), sizeof b);
  verify(b, sizeof b, 2, 0);
  EQ(recv(fd, b, 10, MSG_WAITALL), 3);  // the end of the stream ends the wait
  EQ(recv(fd, b, 10, MSG_WAITALL), 0);
}
static void waitall_nonblock(int fd) {
  char b[10];
  wait_bytes(fd, 5);
  EQ(recv(fd, b, 10, MSG_WAITALL | MSG_DONTWAIT), 5);
  nonblock(fd, 1);
  FAILS(recv(fd, b, 10, MSG_WAITALL), EAGAIN);
  tell('e');
}
static void dontwait(int fd) {
  char b[10];
  wait_bytes(fd, 5);
  EQ(recv(fd, b, 10, MSG_DONTWAIT), 5);
  FAILS(recv(fd, b, 10, MSG_DONTWAIT), EAGAIN);
  CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
  nonblock(fd, 1);
  CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
  FAILS(recv(fd, b, 10, 0), EAGAIN);
  FAILS(read(fd, b, 10), EAGAIN);
  int off = 0;
  CHECK(!ioctl(fd, FIONBIO, &off));
  CHECK(!(fcntl(fd, F_GETFL) & O_NONBLOCK));
  struct timeval t = {0, 50000};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
  double t0 = now();
  FAILS(recv(fd, b, 10, 0), EAGAIN);
  CHECK(now() - t0 > 0.04);
  tell('e');
}
// On TCP MSG_TRUNC throws bytes away.
static void truncate_msg(int fd) {
  char b[10] = "untouched";
  wait_bytes(fd, 5);
  EQ(recv(fd, b, 2, MSG_TRUNC), 2);
  CHECK(!memcmp(b, "untouched", 9));
  EQ(recv(fd, b, 10, 0), 3);
  CHECK(!memcmp(b, "345", 3));
  tell('e');
}
static void zero(int fd) {
  char b[10] = "";
  EQ(send(fd, b, 0, 0), 0);
  EQ(write(fd, b, 0), 0);
  EQ(read(fd, b, 0), 0);
  FAILS(recv(fd, b, 0, MSG_DONTWAIT), EAGAIN);
  struct iovec v = {b, 0};
  EQ(writev(fd, &v, 1), 0);
  EQ(writev(fd, &v, 0), 0);
  tell('z');
  wait_bytes(fd, 5);
  EQ(read(fd, b, 0), 0);
  EQ(recv(fd, b, 0, 0), 0);
  EQ(recv(fd, b, 10, 0), 5);
  tell('e');
  get_eof(fd);
}
static void zero_server(int fd) {
  hear('z');
  nap(20);
  EQ(ready(fd, POLLIN, 0), 0);  // nothing was sent
  put(fd, "12345", 5);
  hear('e');
}
static void counts_server(int fd) {
  put(fd, "1234567890", 10);
  hear('r');
  put_stream(fd, 3, 0, 30000, 999);
  hear('e');
}
static void counts(int fd) {
  char b[10];
  int n = -1;
  wait_bytes(fd, 10);
  EQ(recv(fd, b, 3, 0), 3);
  wait_bytes(fd, 7);
  EQ(recv(fd, b, 7, 0), 7);
  CHECK(!ioctl(fd, FIONREAD, &n) && n == 0);
  tell('r');
  wait_bytes(fd, 30000);
  get_stream(fd, 3, 0, 12345, 1000);
  wait_bytes(fd, 30000 - 12345);
  tell('e');
  get_stream(fd, 3, 12345, 30000, 1000);
  get_eof(fd);
  CHECK(!ioctl(fd, FIONREAD, &n) && n == 0);
}
static void outq_server(int fd) {
  get_stream(fd, 4, 0, 2 << 20, 50000);
  tell('r');
  hear('e');
}
static void outq(int fd) {
  int n = -1;
  put_stream(fd, 4, 0, 2 << 20, 50000);
  hear('r');
  double end = now() + 2;
  do CHECK(!ioctl(fd, SIOCOUTQ, &n) && n >= 0);
  while (n && now() < end);
  EQ(n, 0);
  tell('e');
}
static void lowat_server(int fd) {
  put(fd, "12345", 5);
  hear('m');
  put(fd, "67890", 5);
  hear('e');
}
static void lowat(int fd) {
  char b[20];
  int n = 10;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  wait_bytes(fd, 5);
  EQ(ready(fd, POLLIN, 50), 0);
  tell('m');
  EQ(ready(fd, POLLIN, 3000), POLLIN);
  EQ(recv(fd, b, 20, 0), 10);
  tell('e');
}
// More than a sender has room for in so many small writes: a reader that waits for all of it must
// not wait for ever.
enum { SMALL_WRITES = 4000, SMALL_WRITE = 16 };
static void small_writes_server(int fd) {
  hear('g');
  for (uint64_t at = 0; at < SMALL_WRITES * SMALL_WRITE; at += SMALL_WRITE) {
    char b[SMALL_WRITE];
    fill(b, sizeof b, 6, at);
    put(fd, b, sizeof b);
  }
  get_eof(fd);
}
static void lowat_small_writes(int fd) {
  int n = 60000;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  EQ(ready(fd, POLLIN, 20), 0);
  tell('g');
  EQ(ready(fd, POLLIN, 3000), POLLIN);
  get_stream(fd, 6, 0, 40000, 40000);
  n = 1;
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  get_stream(fd, 6, 40000, SMALL_WRITES * SMALL_WRITE, 50000);
}
static void peek_all_small_writes(int fd) {
  static char b[60000];
  struct timeval t = {patience(25000) / 1000, 0};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
  tell('g');
  double t0 = now();
  ssize_t k = recv(fd, b, sizeof b, MSG_PEEK | MSG_WAITALL);
  if (k <= 20000) FAIL("%zd bytes", k);  // all, or as much as there is room for
  if (now() - t0 > most_at_once()) FAIL("it took %.2f s", now() - t0);
  verify(b, k, 6, 0);
  get_stream(fd, 6, 0, SMALL_WRITES * SMALL_WRITE, 50000);
}
// The mark of the listening socket is that of the connections that come by it.
static void lowat_of_listener_server(int lfd) {
  int n = 10;
  CHECK(!setsockopt(lfd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n));
  tell('l');
  int fd = accept(lfd, NULL, NULL);
  CHECK(fd >= 0);
  warm(fd, 1);
  socklen_t len = sizeof n;
  CHECK(!getsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, &len));
  EQ(n, 10);
  put(fd, "1", 1);
  wait_bytes(fd, 5);
  EQ(ready(fd, POLLIN, 50), 0);
  tell('m');
  EQ(ready(fd, POLLIN, 3000), POLLIN);
  char b[20];
  EQ(recv(fd, b, 20, 0), 10);
  tell('e');
  get_eof(fd);
}
static void lowat_of_listener(int none) {
  (void)none;
  hear('l');
  int fd = dial();
  char b[1];
  warm(fd, 0);
  get(fd, b, 1);
  put(fd, "12345", 5);
  hear('m');
  put(fd, "67890", 5);
  hear('e');
  close(fd);
}
// Where no memory is; the compiler must not see through it.
static void *volatile nowhere = (void *)8;
static volatile int minus_one = -1, too_many = 1025;
static void errors_server(int fd) {
  put(fd, "12345", 5);
  hear('e');
  char b[10];
  get(fd, b, 2);
  CHECK(!memcmp(b, "ok", 2));
  get_eof(fd);
}
static void errors(int fd) {
  char b[10];
  struct iovec v = {b, 10}, bad = {nowhere, 10};
  wait_bytes(fd, 5);
  FAILS(recv(fd, nowhere, 10, 0), EFAULT);
  FAILS(read(fd, nowhere, 10), EFAULT);
  FAILS(send(fd, nowhere, 10, 0), EFAULT);
  FAILS(write(fd, nowhere, 10), EFAULT);
  FAILS(readv(fd, &bad, 1), EFAULT);
  FAILS(writev(fd, &bad, 1), EFAULT);
  FAILS(writev(fd, nowhere, 1), EFAULT);
  FAILS(sendmsg(fd, nowhere, 0), EFAULT);
  FAILS(recvmsg(fd, nowhere, 0), EFAULT);
  FAILS(readv(fd, &v, minus_one), EINVAL);
  FAILS(writev(fd, &v, too_many), EINVAL);
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1025};
  FAILS(sendmsg(fd, &m, 0), EMSGSIZE);
  FAILS(recvmsg(fd, &m, 0), EMSGSIZE);
  FAILS(pread(fd, b, 1, 0), ESPIPE);
  FAILS(pwrite(fd, b, 1, 0), ESPIPE);
  FAILS(lseek(fd, 0, SEEK_SET), ESPIPE);
  FAILS(recv(fd, b, 1, MSG_OOB | MSG_DONTWAIT), EINVAL);
  FAILS(accept(fd, NULL, NULL), EINVAL);
  FAILS(ftruncate(fd, 0), EINVAL);
  EQ(recv(fd, b, 10, 0), 5);  // and the bytes are still there
  put(fd, "ok", 2);
  tell('e');
}
// A page that ends in the middle of the buffer: what was moved before it counts.
static void fault_part_server(int fd) {
  static char b[4096];
  get(fd, b, 100);
  verify(b, 100, 5, 0);
  put(fd, b, 100);
  hear('e');
}
static void fault_part(int fd) {
  char *m = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(m != MAP_FAILED && !mprotect(m + 4096, 4096, PROT_NONE));
  fill(m + 3996, 100, 5, 0);
  EQ(send(fd, m + 3996, 100, 0), 100);
  wait_bytes(fd, 100);
  FAILS(recv(fd, m + 4096, 100, 0), EFAULT);
  EQ(recv(fd, m + 3996, 100, 0), 100);
  verify(m + 3996, 100, 5, 0);
  tell('e');
}
static void names_server(int fd) {
  put(fd, "12345", 5);
  char b[10];
  get(fd, b, 3);
  hear('e');
}
static void names(int fd) {
  char b[10];
  struct sockaddr_storage a;
  socklen_t n = sizeof a;
  EQ(recvfrom(fd, b, 2, MSG_WAITALL, (void *)&a, &n), 2);
  EQ(n, 0);  // a stream's bytes come from no address in particular
  struct iovec v = {b, 3};
  char control[64];
  struct msghdr m = {.msg_name = &a, .msg_namelen = sizeof a, .msg_iov = &v, .msg_iovlen = 1, .msg_control = control,
                     .msg_controllen = sizeof control, .msg_flags = -1};
  EQ(recvmsg(fd, &m, MSG_WAITALL), 3);
  EQ(m.msg_namelen, 0);
  EQ(m.msg_controllen, 0);
  EQ(m.msg_flags & ~MSG_CMSG_CLOEXEC, 0);
  socklen_t al = address(&a, 1);
  EQ(sendto(fd, "abc", 3, 0, (void *)&a, al), 3);  // the address is ignored on a connected stream
  tell('e');
}
static void more_server(int fd) {
  char b[10];
  get(fd, b, 6);
  CHECK(!memcmp(b, "abcdef", 6));
  hear('e');
}
static void more(int fd) {
  EQ(send(fd, "abc", 3, MSG_MORE), 3);
  EQ(send(fd, "def", 3, 0), 3);
  tell('e');
}
static void more_alone(int fd) {
  // Bytes held back by MSG_MORE go out after a while, or with the next ones.
  EQ(send(fd, "abcdef", 6, MSG_MORE), 6);
  tell('e');
}
const test_case CASES[] = {
    {"peek", five_server, peek, 0},
    {"peek_far", peek_far_server, peek_far, 0},
    {"waitall", waitall_server, waitall, 0},
    {"waitall_nonblocking", five_server, waitall_nonblock, 0},
    {"dontwait", five_server, dontwait, 0},
    {"trunc_discards", five_server, truncate_msg, 0},
    {"zero_length", zero_server, zero, 0},
    {"fionread", counts_server, counts, 0},
    {"siocoutq", outq_server, outq, 0},
    {"rcvlowat", lowat_server, lowat, 0},
    {"rcvlowat_small_writes", small_writes_server, lowat_small_writes, TOUCH},
    {"peek_all_small_writes", small_writes_server, peek_all_small_writes, TOUCH},
    {"rcvlowat_of_listener", lowat_of_listener_server, lowat_of_listener, RAW},
    {"errors", errors_server, errors, 0},
    {"fault_beside_buffer", fault_part_server, fault_part, 0},
    {"names_and_control", names_server, names, 0},
    {"msg_more", more_server, more, 0},
    {"msg_more_alone", more_server, more_alone, 0},
    {0},
};
