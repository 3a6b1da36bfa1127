// Calls that move bytes: send and receive in all spellings, by file, pipe and stream, and the
// urgent byte.
#include "generator.h"

// The byte at a position of the stream that s[end] sends.
static char byte_at(int end, uint64_t at) {
  return (char)((at * 31 + (at >> 8) * 7 + (uint64_t)end * 101) & 0xff);
}

void write_out(int end, size_t n) {
  for (size_t i = 0; i < n; i++) buffer[i] = byte_at(end, g.sent[end] + i);
}

// What was received is right, by its position; a peek does not move it on.
const char *read_back(int end, ssize_t n, int moves) {
  for (ssize_t i = 0; i < n; i++)
    if (buffer[i] != byte_at(!end, g.received[end] + (uint64_t)i)) return " WRONG BYTES";
  if (moves && n > 0) g.received[end] += (uint64_t)n;
  return "";
}

// An end that takes nothing more answers with a reset.
static int takes_nothing(int end) { return g.closed[end] || (g.deaf[end] && g.ended[end]); }

void was_sent(int end, ssize_t n) {
  if (n <= 0) return;
  g.sent[end] += (uint64_t)n;
  if (takes_nothing(!end)) g.reset[end] = g.reset[!end] = 1;
}

void do_send(int end, size_t n) {
  static const int flags[] = {0, MSG_NOSIGNAL, MSG_DONTWAIT, MSG_DONTROUTE, MSG_EOR, MSG_CONFIRM};
  int how = (int)pick(7), f = flags[pick(6)] | MSG_NOSIGNAL;
  write_out(end, n);
  struct iovec v[3] = {{buffer, n / 3}, {buffer + n / 3, 0}, {buffer + n / 3, n - n / 3}};
  struct mmsghdr mm[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 2}},
                          {.msg_hdr = {.msg_iov = v + 2, .msg_iovlen = 1}}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
  ssize_t r = 0;
  int s = g.s[end];
  if (how == 0) r = send(s, buffer, n, f);
  if (how == 1) r = write(s, buffer, n);
  if (how == 2) r = writev(s, v, 3);
  if (how == 3) r = sendmsg(s, &m, f);
  if (how == 4) {
    if (g.nagle[end] && takes_nothing(!end) && !g.reset[end]) kind("nagle_before_reset");
    r = sendmmsg(s, mm, 2, f);
    if (r > 0) r = (ssize_t)(mm[0].msg_len + (r > 1 ? mm[1].msg_len : 0));
  }
  if (how == 5) r = sendto(s, buffer, n, f, NULL, 0);
  if (how == 6) r = send(s, n ? NULL : buffer, n, f);
  SAY("%d send/%d %zu flags %#x = %zd %s", end, how, n, f, r, error(r));
  was_sent(end, r);
}

// A blocking call that waits for a moment.
static ssize_t patiently(int s, size_t n, int f) {
  struct timeval little = {0, 2000}, ever = {0, 0};
  int off = 0, on = 1;
  ioctl(s, FIONBIO, &off);
  setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &little, sizeof little);
  ssize_t r = recv(s, buffer, n, f);
  int e = errno;
  setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &ever, sizeof ever);
  ioctl(s, FIONBIO, &on);
  errno = e;
  return r;
}

void do_receive(int end, size_t n) {
  static const int flags[] = {0, MSG_PEEK, MSG_WAITALL, MSG_TRUNC, MSG_DONTWAIT, MSG_CTRUNC, MSG_MORE, MSG_EOR,
                              MSG_PEEK | MSG_TRUNC, MSG_DONTROUTE, MSG_NOSIGNAL, MSG_WAITFORONE};
  int how = (int)pick(7), f = flags[pick(12)], s = g.s[end];
  struct iovec v[3] = {{buffer, n / 3}, {buffer + n / 3, 0}, {buffer + n / 3, n - n / 3}};
  struct msghdr m = {.msg_iov = v, .msg_iovlen = 3};
  struct mmsghdr mm[2] = {{.msg_hdr = {.msg_iov = v, .msg_iovlen = 2}},
                          {.msg_hdr = {.msg_iov = v + 2, .msg_iovlen = 1}}};
  ssize_t r = 0;
  if (how == 1 || how == 2) f = 0;
  if (how == 4) f &= ~(MSG_PEEK | MSG_TRUNC);
  if (how == 0) r = recv(s, buffer, n, f);
  if (how == 1) r = read(s, buffer, n);
  if (how == 2) r = readv(s, v, 3);
  if (how == 3) r = recvmsg(s, &m, f);
  if (how == 4) {
    r = recvmmsg(s, mm, 2, f, NULL);
    // The second buffer follows the first without a gap only if that is full.
    if (r > 1 && mm[0].msg_len < n / 3) memmove(buffer + mm[0].msg_len, buffer + n / 3, mm[1].msg_len);
    if (r > 0) r = (ssize_t)(mm[0].msg_len + (r > 1 ? mm[1].msg_len : 0));
  }
  if (how == 5) r = recvfrom(s, buffer, n, f, NULL, NULL);
  if (how == 6) r = patiently(s, n, f);
  const char *right = f & MSG_TRUNC ? "" : read_back(end, r, !(f & MSG_PEEK));
  // MSG_TRUNC alone drops the bytes.
  if (f == MSG_TRUNC && r > 0) g.received[end] += (uint64_t)r;
  SAY("%d recv/%d %zu flags %#x = %zd %s%s", end, how, n, f, r, error(r), right);
}

static void send_file(int end, size_t n) {
  int file = memfd_create("bytes", MFD_CLOEXEC);
  off_t at = 0;
  write_out(end, n);
  if (file < 0 || write(file, buffer, n) != (ssize_t)n) die("memfd");
  ssize_t r = sendfile(g.s[end], file, &at, n);
  SAY("%d sendfile %zu = %zd %s, at %ld", end, n, r, error(r), (long)at);
  was_sent(end, r);
  close(file);
}

// As many as a pipe takes in pieces of any size: how they are cut depends on how they arrived.
static void splice_out(int end, size_t n) {
  int p[2];
  ssize_t r = 0, all = 0;
  if (pipe(p)) die("pipe");
  while ((size_t)all < n) {
    r = splice(g.s[end], NULL, p[1], NULL, n - (size_t)all, SPLICE_F_NONBLOCK);
    if (r <= 0 || read(p[0], buffer + all, (size_t)r) != r) break;
    all += r;
  }
  const char *e = r < 0 && all == 0 ? error(r) : "";
  SAY("%d splice out %zu = %zd %s%s", end, n, all, e, read_back(end, all, 1));
  close(p[0]), close(p[1]);
}

static void splice_in(int end, size_t n) {
  int p[2];
  write_out(end, n);
  if (pipe(p) || write(p[1], buffer, n) != (ssize_t)n) die("pipe");
  close(p[1]);
  ssize_t r = splice(p[0], NULL, g.s[end], NULL, n, SPLICE_F_NONBLOCK);
  SAY("%d splice in %zu = %zd %s", end, n, r, error(r));
  was_sent(end, r);
  close(p[0]);
}

// stdio on another number for the connection; it reads no more than there is.
static void by_stream(int end, size_t n, int writes) {
  int other = dup(g.s[end]);
  FILE *f = fdopen(other, "r+");
  if (!f) die("fdopen");
  setvbuf(f, NULL, _IONBF, 0);
  long here = waiting(end);
  if (!writes && here >= 0 && n > (size_t)here) n = (size_t)here;
  g.back[end] = 1;
  if (writes) {
    write_out(end, n);
    size_t k = fwrite(buffer, 1, n, f);
    SAY("%d fwrite %zu = %zu, error %d", end, n, k, ferror(f));
    was_sent(end, (ssize_t)k);
  } else {
    size_t k = fread(buffer, 1, n, f);
    const char *right = read_back(end, (ssize_t)k, 1);
    SAY("%d fread %zu = %zu, error %d end %d%s", end, n, k, ferror(f), feof(f), right);
  }
  fclose(f);
}

static void by_dprintf(int end) {
  static char text[12];
  write_out(end, 4);
  for (int i = 0; i < 4; i++) text[i] = buffer[i] ? buffer[i] : 0;
  // Only where the stream's bytes are text.
  if (strlen(text) < 4) return;
  g.back[end] = 1;
  int r = dprintf(g.s[end], "%s", text);
  SAY("%d dprintf = %d %s", end, r, error(r));
  was_sent(end, r);
}

void do_transfer(int end, size_t n) {
  switch (pick(7)) {
    case 0: case 1: send_file(end, n); break;
    case 2: if (n) splice_out(end, n); break;
    case 3: if (n) splice_in(end, n); break;
    case 4: by_stream(end, n, 1); break;
    case 5: by_stream(end, n, 0); break;
    default: by_dprintf(end);
  }
}

static void until_ready(int s, short events) {
  struct pollfd p = {s, events, 0};
  poll(&p, 1, 1000);
}

// The urgent byte and the one behind it, both read at once: a mark that is passed later changes
// what FIONREAD counts.
void do_urgent(int end) {
  int to = g.s[!end], off = 0;
  char u = 0, c = 0;
  if (g.strict || to < 0 || g.closed[!end] || g.ended[end] || g.reset[end] || g.deaf[!end]) return;
  if (waiting(!end) != 0) return;
  g.back[end] = 1;
  setsockopt(to, SOL_SOCKET, SO_OOBINLINE, &off, sizeof off);
  ssize_t r = send(g.s[end], "u", 1, MSG_OOB | MSG_NOSIGNAL);
  SAY("%d urgent = %zd %s", end, r, error(r));
  if (r != 1) return;
  until_ready(to, POLLPRI);
  ssize_t k = recv(to, &u, 1, MSG_OOB);
  write_out(end, 1);
  ssize_t w = send(g.s[end], buffer, 1, MSG_NOSIGNAL);
  was_sent(end, w);
  off = 1;
  setsockopt(to, SOL_SOCKET, SO_RCVLOWAT, &off, sizeof off);
  until_ready(to, POLLIN);
  ssize_t l = recv(to, &c, 1, 0);
  buffer[0] = c;
  const char *right = read_back(!end, l, 1);
  SAY("%d urgent = %zd %c, %zd, %zd%s", end, k, k == 1 ? u : '-', w, l, right);
}
