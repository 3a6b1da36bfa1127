// The scattered and the batched calls: readv, writev, sendmsg, recvmsg, sendmmsg, recvmmsg,
// sendfile, splice, stdio.
#include "sem.h"

enum { MIB = 1 << 20 };

static void vec_server(int fd) {
  get_stream(fd, 1, 0, 3 * MIB + 17, 60000);
  // Back, scattered by the reader.
  put_stream(fd, 2, 0, 2 * MIB, 100000);
  get_eof(fd);
}
// Cuts [from, from+n) of the stream into vectors of odd lengths, some of them empty.
static int cut(struct iovec *v, int max, char *b, size_t n, uint64_t *r) {
  int k = 0;
  for (size_t o = 0; o < n; k++) {
    size_t m = rnd(r) % 5 ? rnd(r) % 9000 : 0;
    if (m > n - o || k == max - 1) m = n - o;
    v[k] = (struct iovec){b + o, m};
    o += m;
  }
  return k;
}
static void vec_client(int fd, int msg) {
  static char b[200000];
  struct iovec v[64];
  uint64_t r = 7, at = 0, end = 3 * MIB + 17;
  while (at < end) {
    size_t n = sizeof b < end - at ? sizeof b : end - at;
    fill(b, n, 1, at);
    int k = cut(v, 64, b, n, &r);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = k};
    ssize_t w = msg ? sendmsg(fd, &m, MSG_NOSIGNAL) : writev(fd, v, k);
    EQ(w, n);  // blocking: everything
    at += n;
  }
  for (at = 0; at < 2 * MIB;) {
    size_t n = sizeof b < 2 * MIB - at ? sizeof b : 2 * MIB - at;
    int k = cut(v, 64, b, n, &r);
    struct msghdr m = {.msg_iov = v, .msg_iovlen = k};
    ssize_t w = msg ? recvmsg(fd, &m, 0) : readv(fd, v, k);
    CHECK(w > 0 && (size_t)w <= n);
    verify(b, w, 2, at);
    at += w;
  }
  close(fd);
}
static void vec_plain(int fd) { vec_client(fd, 0); }
static void vec_msg(int fd) { vec_client(fd, 1); }

static void many_server(int fd) {
  get_stream(fd, 3, 0, 1024 * 10, 10000);
  put_stream(fd, 3, 0, 1024 * 10, 10000);
}
// As many vectors as there may be.
static void many_client(int fd) {
  static char b[10240];
  static struct iovec v[1024];
  fill(b, sizeof b, 3, 0);
  for (int i = 0; i < 1024; i++) v[i] = (struct iovec){b + i * 10, 10};
  EQ(writev(fd, v, 1024), 10240);
  memset(b, 0, sizeof b);
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 1024};
  EQ(recvmsg(fd, &m, MSG_WAITALL), 10240);
  verify(b, sizeof b, 3, 0);
}
static void peekmsg_server(int fd) {
  put(fd, "0123456789", 10);
  hear('e');
}
static void peekmsg_client(int fd) {
  char a[4], b[20];
  struct iovec v[2] = {{a, 4}, {b, 20}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 2};
  ssize_t k;
  do k = recvmsg(fd, &m, MSG_PEEK);
  while (k > 0 && k < 10);
  EQ(k, 10);
  CHECK(!memcmp(a, "0123", 4) && !memcmp(b, "456789", 6));
  EQ(recvmsg(fd, &m, 0), 10);
  FAILS(recvmsg(fd, &m, MSG_DONTWAIT), EAGAIN);
  tell('e');
}
static void mmsg_server(int fd) {
  // Batches out of one stream of 50 * 20 * 400 bytes.
  enum { N = 20, L = 700 };
  static char b[N][L];
  struct mmsghdr m[N];
  struct iovec v[N];
  uint64_t at = 0;
  while (at < 50 * 20 * 400) {
    memset(m, 0, sizeof m);
    for (int i = 0; i < N; i++) {
      v[i] = (struct iovec){b[i], L};
      m[i].msg_hdr.msg_iov = &v[i];
      m[i].msg_hdr.msg_iovlen = 1;
    }
    int k = recvmmsg(fd, m, N, MSG_WAITFORONE, NULL);
    CHECK(k > 0);
    for (int i = 0; i < k; i++) {
      if (m[i].msg_len == 0) {
        CHECK(i == k - 1 || at == 50 * 20 * 400);
        break;
      }
      verify(b[i], m[i].msg_len, 4, at);
      at += m[i].msg_len;
    }
  }
  EQ(at, 50 * 20 * 400);
  tell('e');
}
static void mmsg_client(int fd) {
  static char b[20][400];
  struct mmsghdr m[20];
  struct iovec v[20];
  uint64_t at = 0;
  for (int n = 0; n < 50; n++) {
    memset(m, 0, sizeof m);
    for (int i = 0; i < 20; i++) {
      fill(b[i], 400, 4, at);
      at += 400;
      v[i] = (struct iovec){b[i], 400};
      m[i].msg_hdr.msg_iov = &v[i];
      m[i].msg_hdr.msg_iovlen = 1;
    }
    EQ(sendmmsg(fd, m, 20, 0), 20);
    for (int i = 0; i < 20; i++) EQ(m[i].msg_len, 400);
  }
  hear('e');
  close(fd);
}
// A long message and a short one in each call, without blocking. What is counted has gone whole,
// but for the last, so that the stream goes on where its length says.
enum { LONG = 90000, SHORT = 7, PAIRS_END = 32 * MIB };
static void mmsg_partial_server(int fd) {
  hear('f');
  get_stream(fd, 8, 0, PAIRS_END, 3000);
  get_eof(fd);
}
// Where the short one's buffer is written down comes late, when the reader has made room. (To the
// kernel it is a bad address, and the second message is not sent.)
static struct iovec *late;
static struct pollfd room;
static void comes_late(int number, siginfo_t *info, void *context) {
  (void)number, (void)context;
  if (info->si_addr < (void *)late || info->si_addr >= (void *)(late + 1)) _exit(90);
  poll(&room, 1, 20);
  if (mprotect(late, 4096, PROT_READ | PROT_WRITE)) _exit(91);
}
static void mmsg_partial_client(int fd) {
  static char b[LONG + SHORT];
  uint64_t at = 0;
  int full = 0, partial = 0;
  struct sigaction s = {.sa_sigaction = comes_late, .sa_flags = SA_SIGINFO};
  late = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(late != MAP_FAILED && !sigaction(SIGSEGV, &s, NULL));
  room = (struct pollfd){fd, POLLOUT, 0};
  nonblock(fd, 1);
  while (at + LONG + SHORT <= PAIRS_END) {
    struct iovec first = {b, LONG};
    struct mmsghdr m[2] = {{.msg_hdr = {.msg_iov = &first, .msg_iovlen = 1}}, {.msg_hdr = {.msg_iov = late, .msg_iovlen = 1}}};
    fill(b, sizeof b, 8, at);
    CHECK(!mprotect(late, 4096, PROT_READ | PROT_WRITE));
    *late = (struct iovec){b + LONG, SHORT};
    CHECK(!mprotect(late, 4096, PROT_NONE));
    int sent = sendmmsg(fd, m, 2, MSG_NOSIGNAL);
    if (sent < 0 && errno == EAGAIN) {
      // The reader has waited for that, so that one of the messages before it has not gone whole.
      if (!full++) tell('f');
      CHECK(ready(fd, POLLOUT, 15000));
      continue;
    }
    CHECK(sent > 0 && sent <= 2);
    CHECK(sent == 1 || m[0].msg_len == LONG);
    for (int i = 0; i < sent; i++) at += m[i].msg_len;
    partial += m[0].msg_len < LONG;
  }
  CHECK(partial);
  nonblock(fd, 0);
  put_stream(fd, 8, at, PAIRS_END, LONG);
  close(fd);
}
static int file_of(uint64_t seed, size_t n) {
  FILE *f = tmpfile();
  char *b = malloc(n);
  CHECK(f && b);
  fill(b, n, seed, 0);
  CHECK(fwrite(b, 1, n, f) == n && !fflush(f));
  free(b);
  lseek(fileno(f), 0, SEEK_SET);
  return fileno(f);
}
static void sendfile_server(int fd) {
  get_stream(fd, 5, 0, 5 * MIB, 70000);       // the whole file
  get_stream(fd, 5, 1000, 1000 + 300000, 70000);  // a part of it
  char b[4];
  get(fd, b, 4);
  CHECK(!memcmp(b, "tail", 4));
  get_eof(fd);
}
static void sendfile_client(int fd) {
  int f = file_of(5, 5 * MIB);
  size_t left = 5 * MIB;
  while (left) {
    ssize_t k = sendfile(fd, f, NULL, left);
    CHECK(k > 0);
    left -= k;
  }
  EQ(lseek(f, 0, SEEK_CUR), 5 * MIB);
  EQ(sendfile(fd, f, NULL, 100), 0);  // the file ends here
  off_t o = 1000;
  while (o < 301000) CHECK(sendfile(fd, f, &o, 301000 - o) > 0);
  EQ(o, 301000);
  EQ(lseek(f, 0, SEEK_CUR), 5 * MIB);  // untouched when an offset is given
  put(fd, "tail", 4);
  close(fd);
}
static void sendfile_nb_client(int fd) {
  int f = file_of(5, 5 * MIB);
  nonblock(fd, 1);
  for (int part = 0; part < 2; part++) {
    off_t o = part ? 1000 : 0, end = part ? 301000 : 5 * MIB;
    while (o < end) {
      off_t before = o;
      ssize_t k = sendfile(fd, f, &o, end - o);
      if (k < 0) {
        CHECK(errno == EAGAIN && o == before);
        CHECK(ready(fd, POLLOUT, 10000));
        continue;
      }
      CHECK(k > 0);
      EQ(o - before, k);
    }
  }
  put(fd, "tail", 4);
  close(fd);
}
static void splice_server(int fd) {
  int p[2], f = fileno(tmpfile());
  CHECK(!pipe(p));
  uint64_t n = 0;
  for (;;) {
    ssize_t k = splice(fd, NULL, p[1], NULL, 60000, SPLICE_F_MOVE);
    CHECK(k >= 0);
    if (!k) break;
    n += k;
    while (k > 0) {
      ssize_t m = splice(p[0], NULL, f, NULL, k, 0);
      CHECK(m > 0);
      k -= m;
    }
  }
  EQ(n, 3 * MIB);
  char *m = mmap(NULL, n, PROT_READ, MAP_SHARED, f, 0);
  CHECK(m != MAP_FAILED);
  verify(m, n, 6, 0);
}
static void splice_client(int fd) {
  int p[2], f = file_of(6, 3 * MIB);
  CHECK(!pipe(p));
  for (;;) {
    ssize_t k = splice(f, NULL, p[1], NULL, 60000, 0);
    CHECK(k >= 0);
    if (!k) break;
    while (k > 0) {
      ssize_t m = splice(p[0], NULL, fd, NULL, k, SPLICE_F_MORE);
      CHECK(m > 0);
      k -= m;
    }
  }
  close(fd);
}
// The reader goes back to TCP with much unread, and takes its time: the writer's calls wait, as on
// a full connection.
static void slow_tail_server(int fd) {
  int p[2], small = 32768;
  char b[1000];
  CHECK(!pipe(p) && !setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small));
  hear('w');
  EQ(splice(fd, NULL, p[1], NULL, sizeof b, 0), sizeof b);
  EQ(read(p[0], b, sizeof b), sizeof b);
  verify(b, sizeof b, 6, 0);
  nap(1500);
  get_stream(fd, 6, sizeof b, 3 * MIB, 70000);
  get_eof(fd);
}
static void slow_tail(int fd, int by_splice, int waits) {
  int p[2], f = file_of(6, 3 * MIB), small = 32768;
  static char b[60000];
  CHECK(!pipe(p) && !setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small));
  // What fits without a reader.
  nonblock(fd, 1);
  uint64_t n = 0;
  for (ssize_t k; n < MIB; n += k) {
    fill(b, sizeof b, 6, n);
    if ((k = send(fd, b, sizeof b, MSG_DONTWAIT)) < 0) break;
  }
  nonblock(fd, waits);
  tell('w');
  nap(200);
  lseek(f, n, SEEK_SET);
  while (n < 3 * MIB) {
    if (by_splice) {
      ssize_t k = splice(f, NULL, p[1], NULL, sizeof b, 0);
      CHECK(k > 0);
      while (k > 0) {
        ssize_t m = splice(p[0], NULL, fd, NULL, k, 0);
        if (m < 0 && waits) {
          CHECK(errno == EAGAIN && ready(fd, POLLOUT, 10000));
          continue;
        }
        CHECK(m > 0);
        n += m, k -= m;
      }
    } else {
      size_t want = 3 * MIB - n < sizeof b ? 3 * MIB - n : sizeof b;
      fill(b, want, 6, n);
      ssize_t m = write(fd, b, want);
      if (m < 0 && waits) {
        CHECK(errno == EAGAIN && ready(fd, POLLOUT, 10000));
        continue;
      }
      CHECK(m > 0);
      n += m;
    }
  }
  close(fd);
}
static void slow_write_client(int fd) { slow_tail(fd, 0, 0); }
static void slow_write_nb_client(int fd) { slow_tail(fd, 0, 1); }
static void slow_splice_client(int fd) { slow_tail(fd, 1, 0); }
static void slow_splice_nb_client(int fd) { slow_tail(fd, 1, 1); }
// stdio reads and writes inside the C library, where no hook looks.
static void stdio_server(int fd) {
  FILE *f = fdopen(fd, "r+");
  CHECK(f);
  char line[100];
  for (int i = 0; i < 2000; i++) {
    CHECK(fgets(line, sizeof line, f));
    int n = -1;
    CHECK(sscanf(line, "line %d", &n) == 1 && n == i);
    fseek(f, 0, SEEK_CUR);
    CHECK(fprintf(f, "seen %d\n", n) > 0 && !fflush(f));
  }
  EQ(fgetc(f), EOF);
  fclose(f);
}
static void stdio_client(int fd) {
  int d = dup(fd);
  FILE *in = fdopen(fd, "r"), *out = fdopen(d, "w");
  CHECK(in && out);
  char line[100];
  for (int i = 0; i < 2000; i++) {
    CHECK(fprintf(out, "line %d\n", i) > 0 && !fflush(out));
    CHECK(fgets(line, sizeof line, in));
    int n = -1;
    CHECK(sscanf(line, "seen %d", &n) == 1 && n == i);
  }
  fclose(out);
  CHECK(!shutdown(fd, SHUT_WR));
  fclose(in);
}
static void dprintf_server(int fd) {
  char b[20];
  get(fd, b, 10);
  CHECK(!memcmp(b, "value 4242", 10));
  put(fd, b, 10);
}
static void dprintf_client(int fd) {
  char b[10];
  EQ(dprintf(fd, "value %d", 4242), 10);
  get(fd, b, 10);
}
const test_case CASES[] = {
    {"readv_writev", vec_server, vec_plain, 0},
    {"recvmsg_sendmsg", vec_server, vec_msg, 0},
    {"vectors_1024", many_server, many_client, 0},
    {"recvmsg_peek", peekmsg_server, peekmsg_client, 0},
    {"recvmmsg_sendmmsg", mmsg_server, mmsg_client, 0},
    {"mmsg_partial", mmsg_partial_server, mmsg_partial_client, 0},
    {"sendfile", sendfile_server, sendfile_client, 0},
    {"sendfile_nonblocking", sendfile_server, sendfile_nb_client, 0},
    {"splice", splice_server, splice_client, 0},
    {"slow_tail_write", slow_tail_server, slow_write_client, NOSHM},
    {"slow_tail_write_nonblocking", slow_tail_server, slow_write_nb_client, NOSHM},
    {"slow_tail_splice", slow_tail_server, slow_splice_client, 0},
    {"slow_tail_splice_nonblocking", slow_tail_server, slow_splice_nb_client, 0},
    {"stdio", stdio_server, stdio_client, 0},
    {"dprintf", dprintf_server, dprintf_client, NOSHM},
    {0},
};
