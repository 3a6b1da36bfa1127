// One call waits for more than is here, wherever on the way it is that the bytes change their
// carrier. Some come by one carrier, the rest by the other, and some of them before the call, some
// during it.
#include "sem.h"

enum { PIECE = 700, PIECES = 40, ALL = PIECE * PIECES, ROUNDS = 20 };

static void piece(int fd, uint64_t seed, int k, int by_kernel) {
  char b[PIECE + 1];
  fill(b, PIECE, seed, (uint64_t)k * PIECE);
  for (int i = 0; i < PIECE; i++) b[i] |= 1;  // text
  b[PIECE] = 0;
  if (by_kernel) EQ(dprintf(fd, "%s", b), PIECE);
  else put(fd, b, PIECE);
}
static void right(const char *b, size_t n, uint64_t seed) {
  static char want[ALL];
  fill(want, n, seed, 0);
  for (size_t i = 0; i < n; i++) want[i] |= 1;
  CHECK(!memcmp(b, want, n));
}
// Which of the pieces come before the call, and before which one the sender uses a call that only
// the kernel can do.
static int before(int round) { return round * PIECES / ROUNDS; }
static int back_at(int round) { return (round * 7 + 3) % PIECES; }
static void a_moment(void) {
  struct timespec t = {0, 200000};
  nanosleep(&t, NULL);
}
// So often a byte has gone to and fro before.
static void touches(int fd, int round, int i_start) {
  char c = 't';
  for (int i = 0; i < round % 4; i++) {
    if (i_start) put(fd, &c, 1), get(fd, &c, 1);
    else get(fd, &c, 1), put(fd, &c, 1);
  }
}
static void rounds_server(int lfd, int goes_back, int stops) {
  for (int r = 0; r < ROUNDS; r++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    touches(fd, r, 0);
    int last = stops ? PIECES - 1 : PIECES;
    for (int k = 0; k < last; k++) {
      if (k == before(r)) tell('b');
      if (k > before(r)) a_moment();
      piece(fd, r, k, goes_back && k == back_at(r));
    }
    hear('r');
    if (stops) piece(fd, r, PIECES - 1, 0);
    get_eof(fd);
    close(fd);
  }
}
static void to_device_server(int lfd) { rounds_server(lfd, 0, 0); }
static void and_back_server(int lfd) { rounds_server(lfd, 1, 0); }
static void stops_server(int lfd) { rounds_server(lfd, 0, 1); }
static void back_and_stops_server(int lfd) { rounds_server(lfd, 1, 1); }

static void low_water(int fd, int n) { CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &n, sizeof n)); }
static void time_out(int fd, int ms) {
  struct timeval t = {ms / 1000, ms % 1000 * 1000};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t));
}
// Runs the call on fresh connections: it gets all, whatever comes when.
static void each(ssize_t (*call)(int fd, char *b), int takes) {
  static char b[ALL + PIECE], c[ALL];
  for (int r = 0; r < ROUNDS; r++) {
    int fd = dial();
    touches(fd, r, 1);
    hear('b');
    time_out(fd, patience(8000));
    ssize_t n = call(fd, b);
    if (n != ALL) FAIL("round %d: %zd of %d bytes (errno %d)", r, n, ALL, errno);
    right(b, ALL, r);
    if (!takes) {
      low_water(fd, 1);
      get(fd, c, ALL);
      right(c, ALL, r);
    }
    tell('r');
    close(fd);
  }
}
static ssize_t wait_all(int fd, char *b) { return recv(fd, b, ALL, MSG_WAITALL); }
static ssize_t peek_all(int fd, char *b) { return recv(fd, b, ALL, MSG_PEEK | MSG_WAITALL); }
static ssize_t peek_at_low_water(int fd, char *b) {
  low_water(fd, ALL);
  return recv(fd, b, ALL + PIECE, MSG_PEEK);
}
// The kernel calls its own bytes something to read from this mark on alone. (TCP does not wake one
// that takes bytes and misses less than that.)
static ssize_t peek_all_above_low_water(int fd, char *b) {
  low_water(fd, 3 * PIECE / 2);
  return recv(fd, b, ALL, MSG_PEEK | MSG_WAITALL);
}
static ssize_t polled(int fd, char *b) {
  low_water(fd, ALL);
  EQ(ready(fd, POLLIN, 8000), POLLIN);
  return recv(fd, b, ALL + PIECE, MSG_DONTWAIT);
}
#define WAY(name, takes) \
  static void name##_client(int none) { \
    (void)none; \
    each(name, takes); \
  }
WAY(wait_all, 1)
WAY(peek_all, 0)
WAY(peek_at_low_water, 0)
WAY(peek_all_above_low_water, 0)
WAY(polled, 1)

// The last piece does not come in time: the call returns what there is, once its time is over and
// not before.
static void until_late(int flags, int mark) {
  static char b[ALL];
  for (int r = 0; r < ROUNDS; r++) {
    int fd = dial(), limit = 150;
    touches(fd, r, 1);
    hear('b');
    // A connection that nothing has touched yet may still have to be made: that is not in the time.
    if (r % 4 == 0) EQ(ready(fd, POLLIN, 15000), POLLIN);
    low_water(fd, mark);
    time_out(fd, limit);
    double t0 = now();
    ssize_t n = recv(fd, b, ALL, flags);
    double took = now() - t0;
    // On a machine that is busy some of them may come later than that.
    if (n <= 0 || n % PIECE || n > ALL - PIECE) FAIL("round %d: %zd bytes (errno %d)", r, n, errno);
    if (took < limit / 1000.0 - 0.01 || took > limit / 1000.0 + most_at_once()) FAIL("round %d: it took %.3f s", r, took);
    right(b, n, r);
    tell('r');
    low_water(fd, 1);
    time_out(fd, 0);
    if (flags & MSG_PEEK) n = 0;
    get(fd, b + n, ALL - n);
    right(b, ALL, r);
    close(fd);
  }
}
static void late_all(int none) {
  (void)none;
  until_late(MSG_WAITALL, 1);
}
static void late_peek(int none) {
  (void)none;
  until_late(MSG_PEEK | MSG_WAITALL, 1);
}
static void late_low_water(int none) {
  (void)none;
  until_late(0, ALL);
}
static void late_peek_low_water(int none) {
  (void)none;
  until_late(MSG_PEEK, ALL);
}

// A handler ends a call that has some of it, whatever its flags say; with SA_RESTART, too.
static void handler(int n) { (void)n; }
static void interrupted(int flags) {
  static char b[ALL];
  struct sigaction a = {.sa_handler = handler, .sa_flags = SA_RESTART};
  CHECK(!sigaction(SIGALRM, &a, NULL));
  for (int r = 0; r < ROUNDS; r++) {
    int fd = dial();
    touches(fd, r, 1);
    hear('b');
    while (!ready(fd, POLLIN, 10000)) continue;
    struct itimerval t = {{0, 20000}, {0, 150000}};
    CHECK(!setitimer(ITIMER_REAL, &t, NULL));
    ssize_t n = recv(fd, b, ALL, flags);
    if (n <= 0 || n % PIECE || n > ALL - PIECE) FAIL("round %d: %zd bytes (errno %d)", r, n, errno);
    t = (struct itimerval){{0, 0}, {0, 0}};
    CHECK(!setitimer(ITIMER_REAL, &t, NULL));
    right(b, n, r);
    tell('r');
    if (flags & MSG_PEEK) n = 0;
    get(fd, b + n, ALL - n);
    right(b, ALL, r);
    close(fd);
  }
}
static void interrupted_all(int none) {
  (void)none;
  interrupted(MSG_WAITALL);
}
static void interrupted_peek(int none) {
  (void)none;
  interrupted(MSG_PEEK | MSG_WAITALL);
}

#define BOTH(name) \
  {#name, to_device_server, name##_client, RAW}, {#name "_and_back", and_back_server, name##_client, RAW}
#define LATE(name) {#name, stops_server, name, RAW}, {#name "_and_back", back_and_stops_server, name, RAW}
const test_case CASES[] = {
    BOTH(wait_all),
    BOTH(peek_all),
    BOTH(peek_at_low_water),
    BOTH(peek_all_above_low_water),
    BOTH(polled),
    LATE(late_all),
    LATE(late_peek),
    LATE(late_low_water),
    LATE(late_peek_low_water),
    LATE(interrupted_all),
    LATE(interrupted_peek),
    {0},
};
