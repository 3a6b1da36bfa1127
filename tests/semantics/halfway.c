// Request and answer, where one of the ends has done something for which its direction goes back to
// TCP. Neither waits for the other's delayed acknowledgement, as it does not where TCP carries
// both. Beside it run connections that never left TCP. What counts is how many were held up, and
// not for how long: on a busy machine one may be for seconds.
#include "sem.h"

enum { CONNS = 25, FIRST = 40, THEN = 6, PART = 10, DELAYED_MS = 40 };
enum { REQUEST, ANSWER, TAKE_REQUEST, TAKE_ANSWER, OPTION_OF_ASKER, OPTION_OF_ANSWERER };

static void say(int fd, int by_kernel) {
  char b[PART + 1];
  memset(b, 'x', PART);
  b[PART] = 0;
  if (by_kernel) EQ(dprintf(fd, "%s", b), PART);
  else put(fd, b, PART);
}
static void take(int fd, int by_kernel) {
  char b[PART];
  if (by_kernel) EQ(recv(fd, b, PART, MSG_CTRUNC), PART);
  else get(fd, b, PART);
}
// Such a socket stays on TCP or goes back there, and so do those that a listener gives which has
// it.
static void stays(int fd) {
  int n = 8 | 16;  // SOF_TIMESTAMPING_RX_SOFTWARE, SOF_TIMESTAMPING_SOFTWARE
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_TIMESTAMPING, &n, sizeof n));
}
static void exchange(int fd, int starts, int odd) {
  if (odd == (starts ? OPTION_OF_ASKER : OPTION_OF_ANSWERER)) stays(fd);
  if (starts) say(fd, odd == REQUEST);
  else take(fd, odd == TAKE_REQUEST);
  if (starts) take(fd, odd == TAKE_ANSWER);
  else say(fd, odd == ANSWER);
}
// One connection; how long the exchanges behind the odd one took, in seconds.
static double behind(int fd, int starts, int odd) {
  for (int i = 0; i < FIRST; i++) exchange(fd, starts, -1);
  double t0 = now();
  exchange(fd, starts, odd);
  for (int i = 0; i < THEN; i++) exchange(fd, starts, -1);
  return now() - t0;
}
static void server(int lfd, int odd) {
  int port, plain = listener(&port);
  stays(plain);
  tell_int(port);
  for (int i = 0; i < 2 * CONNS; i++) {
    int fd = accept(i % 2 ? plain : lfd, NULL, NULL);
    CHECK(fd >= 0);
    behind(fd, 0, odd);
    get_eof(fd);
    close(fd);
  }
}
static void client(int odd) {
  int port = hear_int();
  int late[2] = {0, 0};
  for (int i = 0; i < 2 * CONNS; i++) {
    int fd = dial_port(i % 2 ? port : ctx.port);
    if (i % 2) stays(fd);
    late[i % 2] += behind(fd, 1, odd) > DELAYED_MS / 2 / 1000.0;
    close(fd);
  }
  // Acknowledgements that are kept back hold up all, or two thirds where the other end may be in
  // time.
  if (late[0] > late[1] + CONNS / 3)
    FAIL("of %d connections %d were late, %d by TCP alone", CONNS, late[0], late[1]);
}
#define CASE(name, odd) \
  static void name##_server(int lfd) { server(lfd, odd); } \
  static void name(int none) { \
    (void)none; \
    client(odd); \
  }
CASE(requests_go_back, REQUEST)
CASE(answers_go_back, ANSWER)
CASE(requests_are_taken_back, TAKE_REQUEST)
CASE(answers_are_taken_back, TAKE_ANSWER)
CASE(asker_goes_back, OPTION_OF_ASKER)
CASE(answerer_goes_back, OPTION_OF_ANSWERER)

const test_case CASES[] = {
#define BOTH(name) {#name, name##_server, name, RAW | NOSHM}
    BOTH(requests_go_back),
    BOTH(answers_go_back),
    BOTH(requests_are_taken_back),
    BOTH(answers_are_taken_back),
    BOTH(asker_goes_back),
    BOTH(answerer_goes_back),
    {0},
};
