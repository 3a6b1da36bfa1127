// The rarer spellings of calls, and what reaches a socket past its usual ones. These are libc's
// other names for the same function, reads and writes at a position, asynchronous I/O of POSIX.
// Also signals that say that something is ready, and reused streams.
#include "sem.h"

#include <aio.h>

int __close(int);
int __connect(int, const struct sockaddr *, socklen_t);
int __dup2(int, int);
int __fcntl(int, int, ...);
int __poll(struct pollfd *, nfds_t, int);
ssize_t __read(int, void *, size_t);
int __select(int, fd_set *, fd_set *, fd_set *, struct timeval *);
ssize_t __send(int, const void *, size_t, int);
ssize_t __write(int, const void *, size_t);
FILE *_IO_fdopen(int, const char *);
int _IO_fclose(FILE *);
int isfdtype(int, int);
int sockatmark(int);

static void echo_server(int fd) {
  char b[4096];
  ssize_t n;
  while ((n = read(fd, b, sizeof b)) > 0) put(fd, b, n);
  CHECK(n == 0);
}

static void twins(int fd) {
  char b[8];
  for (int i = 0; i < 50; i++) {
    EQ(__write(fd, "abcd", 4), 4);
    struct pollfd p = {fd, POLLIN, 0};
    EQ(__poll(&p, 1, 5000), 1);
    EQ(p.revents, POLLIN);
    EQ(__read(fd, b, 2), 2);
    get(fd, b + 2, 2);
    CHECK(!memcmp(b, "abcd", 4));
    EQ(__send(fd, "ef", 2, MSG_NOSIGNAL), 2);
    fd_set set;
    FD_ZERO(&set);
    FD_SET(fd, &set);
    EQ(__select(fd + 1, &set, NULL, NULL, NULL), 1);
    CHECK(FD_ISSET(fd, &set));
    get(fd, b, 2);
    CHECK(!memcmp(b, "ef", 2));
  }
  int other = __fcntl(fd, F_DUPFD, 40), third = __dup2(fd, 60);
  EQ(third, 60);
  CHECK(other >= 40);
  EQ(__close(fd), 0);
  put(other, "x", 1);
  get(third, b, 1);
  EQ(__close(third), 0);
  put(other, "y", 1);
  get(other, b, 1);
  EQ(__close(other), 0);
}
static void twin_connect(int fd) {
  struct sockaddr_storage a;
  socklen_t n = address(&a, ctx.port);
  (void)fd;
  int s = socket(ctx.family, SOCK_STREAM, 0);
  EQ(__connect(s, (struct sockaddr *)&a, n), 0);
  FAILS(__connect(s, (struct sockaddr *)&a, n), EISCONN);
  static char b[65536];
  fill(b, sizeof b, 1, 0);
  put(s, b, sizeof b);
  get_stream(s, 2, 0, sizeof b, 1000);
  close(s);
}
static void twin_connect_server(int listening) {
  int s = accept(listening, NULL, NULL);
  get_stream(s, 1, 0, 65536, 1000);
  put_stream(s, 2, 0, 65536, 1000);
  get_eof(s);
}

// A socket has no positions. But -1 is none, too: there the calls with flags are readv and writev.
static void at_a_position(int fd) {
  char b[16];
  struct iovec v[2] = {{"12345", 5}, {"678", 3}}, in[2] = {{b, 3}, {b + 3, 13}};
  FAILS(pwrite(fd, "x", 1, 0), ESPIPE);
  FAILS(pread(fd, b, 1, 0), ESPIPE);
  FAILS(pwritev(fd, v, 2, 0), ESPIPE);
  FAILS(preadv(fd, in, 2, 0), ESPIPE);
  FAILS(pwritev2(fd, v, 2, 0, 0), ESPIPE);
  FAILS(preadv2(fd, in, 2, 0, 0), ESPIPE);
  FAILS(lseek(fd, 0, SEEK_CUR), ESPIPE);
  for (int i = 0; i < 40; i++) {
    EQ(pwritev2(fd, v, 2, -1, 0), 8);
    for (ssize_t n = 0, got; n < 8; n += got) {
      got = preadv2(fd, in, 2, -1, 0);
      CHECK(got > 0);
      if (n == 0 && got == 8) CHECK(!memcmp(b, "12345678", 8));
    }
  }
  FAILS(preadv2(fd, in, 2, -1, 0x4000), EOPNOTSUPP);
  shutdown(fd, SHUT_WR);
  EQ(preadv2(fd, in, 2, -1, 0), 0);
}

static void what_it_is(int fd) {
  struct stat st;
  EQ(fstat(fd, &st), 0);
  CHECK(S_ISSOCK(st.st_mode));
  EQ(isfdtype(fd, S_IFSOCK), 1);
  EQ(isfdtype(fd, S_IFREG), 0);
  EQ(sockatmark(fd), 0);
  SAME(isatty(fd), 0);
  put(fd, "x", 1);
  char c;
  get(fd, &c, 1);
  EQ(sockatmark(fd), 0);
  FAILS(fsync(fd), EINVAL);
  FAILS(ftruncate(fd, 0), EINVAL);
  FAILS(copy_file_range(fd, NULL, fd, NULL, 1, 0), EINVAL);
  FAILS(tee(fd, fd, 1, 0), EINVAL);
}

static void aio(int fd) {
  char out[] = "asynchronous", in[sizeof out] = "";
  struct aiocb w = {.aio_fildes = fd, .aio_buf = out, .aio_nbytes = sizeof out};
  EQ(aio_write(&w), 0);
  const struct aiocb *list[] = {&w};
  EQ(aio_suspend(list, 1, NULL), 0);
  EQ(aio_error(&w), 0);
  EQ(aio_return(&w), sizeof out);
  struct aiocb r = {.aio_fildes = fd, .aio_buf = in, .aio_nbytes = sizeof in};
  list[0] = &r;
  EQ(aio_read(&r), 0);
  EQ(aio_suspend(list, 1, NULL), 0);
  ssize_t n = aio_return(&r);
  CHECK(n > 0);
  get(fd, in + n, sizeof in - n);
  EQ(memcmp(in, out, sizeof out), 0);
  struct aiocb again = {.aio_fildes = fd, .aio_buf = out, .aio_nbytes = sizeof out, .aio_lio_opcode = LIO_WRITE};
  struct aiocb *both[] = {&again, NULL};
  EQ(lio_listio(LIO_WAIT, both, 2, NULL), 0);
  get(fd, in, sizeof in);
  EQ(memcmp(in, out, sizeof out), 0);
}

static volatile sig_atomic_t heard;
static void on_io(int sig) {
  (void)sig;
  heard++;
}
static void wait_signal(void) {
  double end = now() + 10;
  while (!heard && now() < end) nap(1);
  CHECK(heard);
  heard = 0;
}
static void signals_after(int fd) {
  char b[4];
  put(fd, "some", 4);
  wait_signal();
  get(fd, b, 4);
}
static void sigio(int fd) {
  signal(SIGIO, on_io);
  EQ(fcntl(fd, F_SETOWN, getpid()), 0);
  EQ(fcntl(fd, F_SETFL, O_RDWR | O_ASYNC), 0);
  CHECK(fcntl(fd, F_GETFL) & O_ASYNC);
  signals_after(fd);
}
static void fioasync(int fd) {
  signal(SIGIO, on_io);
  int on = 1;
  EQ(fcntl(fd, F_SETOWN, getpid()), 0);
  EQ(ioctl(fd, FIOASYNC, &on), 0);
  signals_after(fd);
}
static void fionbio(int fd) {
  int on = 1, off = 0;
  char c;
  EQ(ioctl(fd, FIONBIO, &on), 0);
  CHECK(fcntl(fd, F_GETFL) & O_NONBLOCK);
  FAILS(read(fd, &c, 1), EAGAIN);
  EQ(ioctl(fd, FIONBIO, &off), 0);
  put(fd, "x", 1);
  EQ(read(fd, &c, 1), 1);
}

// A stream stands on a socket's number, and is then opened as something else: the other name of the
// socket goes on.
static void reopened_server(int fd) {
  char b[16];
  get(fd, b, 3);
  CHECK(!memcmp(b, "one", 3));
  get(fd, b, 3);
  CHECK(!memcmp(b, "two", 3));
  get_eof(fd);
}
static void reopened(int fd) {
  FILE *f = fopen("/dev/null", "r");
  CHECK(f);
  int number = fileno(f);
  EQ(dup2(fd, number), number);
  put(number, "one", 3);
  CHECK(freopen("/dev/zero", "r", f) == f);
  EQ(fileno(f), number);
  char c = 1;
  EQ(read(number, &c, 1), 1);
  EQ(c, 0);
  put(fd, "two", 3);
  close(fd);
  EQ(read(number, &c, 1), 1);
  fclose(f);
}
// A program that has its connection on 0 and 1, as inetd's have, speaks by stdio and by calls in
// turns.
static void standard_server(int fd) {
  char line[64], wanted[64];
  fflush(stdout);
  int in = dup(0), out = dup(1);
  CHECK(in >= 0 && out >= 0);
  EQ(dup2(fd, 0), 0);
  EQ(dup2(fd, 1), 1);
  for (int i = 0; i < 2000; i++) {
    if (i % 3 == 2) {
      int n = snprintf(wanted, sizeof wanted, "line %d\n", i);
      get(0, line, n);
      CHECK(!memcmp(line, wanted, n));
      put(1, wanted, n);
    } else {
      int n = -1;
      CHECK(fgets(line, sizeof line, stdin) && sscanf(line, "line %d", &n) == 1 && n == i);
      CHECK(printf("line %d\n", n) > 0 && !fflush(stdout));
    }
  }
  EQ(fileno(stdin), 0);
  EQ(fileno(stdout), 1);
  EQ(getchar(), EOF);
  CHECK(feof(stdin) && !ferror(stdin) && !ferror(stdout));
  FAILS(fseek(stdin, 1, SEEK_CUR), ESPIPE);
  static char b[600000];
  fill(b, sizeof b, 1, 0);
  EQ(fwrite(b, 1, 300000, stdout), 300000);
  CHECK(!fflush(stdout));
  put(1, b + 300000, 100000);
  EQ(fwrite(b + 400000, 1, 200000, stdout), 200000);
  CHECK(!fflush(stdout));
  EQ(dup2(in, 0), 0);
  EQ(dup2(out, 1), 1);
  CHECK(freopen("/dev/null", "r", stdin) == stdin);
  EQ(getchar(), EOF);
  EQ(fileno(stdin), 0);
  close(in), close(out), close(fd);
}
static void line_client(int fd, int lines) {
  char line[64], seen[64];
  for (int i = 0; i < lines; i++) {
    int n = snprintf(line, sizeof line, "line %d\n", i);
    put(fd, line, n);
    get(fd, seen, n);
    CHECK(!memcmp(line, seen, n));
  }
  CHECK(!shutdown(fd, SHUT_WR));
  get_stream(fd, 1, 0, 600000, 65536);
  EQ(read(fd, line, 1), 0);
}
static void standard_client(int fd) { line_client(fd, 2000); }
static void old_stdio(int fd) {
  FILE *f = _IO_fdopen(fd, "r+");
  CHECK(f);
  char line[32];
  CHECK(fputs("a line\n", f) >= 0 && !fflush(f));
  CHECK(fgets(line, sizeof line, f));
  EQ(strcmp(line, "a line\n"), 0);
  EQ(_IO_fclose(f), 0);
  EQ(fcntl(fd, F_GETFD), -1);
}
// Two streams on one number, of which one is closed, and calls between them.
static void streams_server(int fd) {
  char line[64], wanted[64];
  FILE *in = fdopen(fd, "r"), *out = fdopen(fd, "wb");
  CHECK(in && out && in != out);
  EQ(fileno(in), fd);
  EQ(fileno(out), fd);
  for (int i = 0; i < 600; i++) {
    int n = snprintf(wanted, sizeof wanted, "line %d\n", i);
    if (i % 3 == 2) {
      get(fd, line, n);
      put(fd, line, n);
    } else {
      CHECK(fgets(line, sizeof line, in));
      CHECK(fputs(line, out) >= 0 && !fflush(out));
    }
    EQ(strncmp(line, wanted, n), 0);
  }
  EQ(fgetc(in), EOF);
  CHECK(feof(in) && !ferror(in));
  static char b[600000];
  fill(b, sizeof b, 1, 0);
  EQ(fwrite(b, 1, 300000, out), 300000);
  CHECK(!fflush(out));
  put(fd, b + 300000, 100000);
  EQ(fwrite(b + 400000, 1, 200000, out), 200000);
  EQ(fclose(out), 0);
  EQ(fcntl(fd, F_GETFD), -1);
  EQ(fclose(in), EOF);
}
static void streams_client(int fd) { line_client(fd, 600); }
// A socket's stream opened as something else: that may fail, and the socket is closed either way.
static void became_another_server(int fd) {
  char b[16];
  get(fd, b, 5);
  put(fd, "there", 5);
  get_eof(fd);
}
static void became_another_client(int fd) {
  char line[16];
  FILE *f = fdopen(fd, "r+");
  CHECK(f && fputs("here\n", f) >= 0 && !fflush(f));
  EQ(fread(line, 1, 5, f), 5);
  FILE *g = freopen("/dev/zero", "r", f);
  CHECK(!g || (g == f && fgetc(g) == 0 && !fclose(g)));
  EQ(fcntl(fd, F_GETFD), -1);
}
// What a stream still holds when its program ends goes out, as it does with a file.
static void left_server(int fd) {
  char b[16];
  get(fd, b, 5);
  FILE *f = fdopen(fd, "r+");
  CHECK(f && fputs("the rest\n", f) >= 0);
}
static void left_client(int fd) {
  char b[16];
  put(fd, "begin", 5);
  get(fd, b, 9);
  CHECK(!memcmp(b, "the rest\n", 9));
  get_eof(fd);
}

const test_case CASES[] = {
  {"libc_twins", echo_server, twins, 0},
  {"twin_of_connect", twin_connect_server, twin_connect, RAW},
  {"at_a_position", echo_server, at_a_position, 0},
  {"what_it_is", echo_server, what_it_is, 0},
  {"aio", echo_server, aio, NOSHM},
  {"sigio", echo_server, sigio, NOSHM},
  {"fioasync", echo_server, fioasync, NOSHM},
  {"fionbio", echo_server, fionbio, TOUCH},
  {"stream_reopened", reopened_server, reopened, TOUCH},
  {"old_stdio", echo_server, old_stdio, 0},
  {"streams_and_calls", streams_server, streams_client, 0},
  {"streams_from_the_start", streams_server, streams_client, COLD},
  {"stream_of_a_socket_reopened", became_another_server, became_another_client, COLD},
  {"stream_left_at_the_end", left_server, left_client, 0},
  {"standard_streams", standard_server, standard_client, 0},
  {0},
};
