// Signal handlers that use the sockets that they interrupt, at 10 kHz. Both kinds of handlers at
// once. And what a program may ask of sigaction.
#include "pair.h"

enum { PIECE = 64 };

static volatile sig_atomic_t hits;
static int the_fd = -1;

static void on_signal(int number, void (*handler)(int), int flags) {
  struct sigaction a = {.sa_handler = handler, .sa_flags = flags};
  CHECK(!sigaction(number, &a, NULL));
}
static void every(int us) {
  struct itimerval t = {{0, us}, {0, us}};
  CHECK(!setitimer(ITIMER_REAL, &t, NULL));
}
// A signal for this thread once it sleeps.
static pthread_t waker;
static pid_t sleepers_id;
static pthread_t sleeper;
static void *when_asleep(void *p) {
  char path[64], text[256];
  int asleep = 0;
  (void)p;
  snprintf(path, sizeof path, "/proc/self/task/%d/stat", sleepers_id);
  while (asleep < 10) {
    FILE *f = fopen(path, "r");
    CHECK(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    char *end = strrchr(text, ')');
    asleep = end && end[2] == 'S' ? asleep + 1 : 0;
    nap(2);
  }
  pthread_kill(sleeper, SIGALRM);
  return NULL;
}
static void wake_me(void) {
  sigset_t all, was;
  sigfillset(&all);
  sleepers_id = gettid();
  sleeper = pthread_self();
  pthread_sigmask(SIG_BLOCK, &all, &was);
  CHECK(!pthread_create(&waker, NULL, when_asleep, NULL));
  pthread_sigmask(SIG_SETMASK, &was, NULL);
}
static void count_hit(int n) {
  (void)n;
  hits++;
}

// -- the same socket, in a handler and in what it interrupts

// A record of the main program or of its handler.
typedef struct {
  char who;
  uint8_t fill[PIECE - 9];
  uint64_t number;
} __attribute__((packed)) record;
static uint64_t handlers_records, handlers_failures;
static void make(record *r, char who, uint64_t number) {
  r->who = who;
  r->number = number;
  fill(r->fill, sizeof r->fill, (uint8_t)who, number);
}
static void send_record(int n) {
  (void)n;
  int e = errno;
  record r;
  hits++;
  make(&r, 'h', handlers_records);
  ssize_t k = send(the_fd, &r, sizeof r, 0);
  if (k == sizeof r) handlers_records++;
  else handlers_failures++;
  errno = e;
}
// Every record of the main program is answered; neither its records nor the handlers' are lost,
// doubled or out of order.
static void records_server(int fd) {
  uint64_t mine = 0, handlers = 0;
  for (;;) {
    record r, want;
    get(fd, &r, sizeof r);
    if (r.who == 'e') break;
    make(&want, r.who, r.who == 'm' ? mine++ : handlers++);
    CHECK(!memcmp(&r, &want, sizeof r));
    if (r.who == 'm') put(fd, &r, sizeof r);
  }
  EQ(mine, hear_int());
  EQ(handlers, hear_int());
}
static void send_in_handler(int fd, int flags, int rounds_at_least, int hits_at_least) {
  uint64_t n = 0;
  int one = 1;
  CHECK(!setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one));
  the_fd = fd;
  on_signal(SIGALRM, send_record, flags);
  every(storm_us());
  while (n < (uint64_t)rounds_at_least || hits < hits_at_least) {
    record r, back;
    make(&r, 'm', n++);
    ssize_t k;
    while ((k = send(fd, &r, sizeof r, 0)) < 0) CHECK(errno == EINTR);
    EQ(k, sizeof r);
    for (size_t have = 0; have < sizeof back; have += k) {
      while ((k = recv(fd, (char *)&back + have, sizeof back - have, 0)) < 0) CHECK(errno == EINTR);
      CHECK(k > 0);
    }
    CHECK(!memcmp(&r, &back, sizeof r));
  }
  every(0);
  EQ(handlers_failures, 0);
  record end = {.who = 'e'};
  put(fd, &end, sizeof end);
  tell_int(n);
  tell_int(handlers_records);
}
static void send_same(int fd) { send_in_handler(fd, 0, often(1500), often(300)); }
static void send_same_restart(int fd) { send_in_handler(fd, SA_RESTART, often(1500), often(300)); }

// A handler that reads finds what is there, whatever it interrupts: all of a round has arrived
// before the program or its handler reads.
enum { ROUND = 50000, ROUNDS = 12 };
static volatile uint64_t taken;
static uint64_t sum;
static volatile sig_atomic_t wrong;
static void take_byte(int n) {
  (void)n;
  int e = errno;
  unsigned char c;
  struct pollfd p = {the_fd, POLLIN, 0};
  int waiting = -1;
  hits++;
  // The main program may have the last ones in its hands.
  if (taken < ROUND - 2 * PIECE) {
    if (poll(&p, 1, 0) != 1 || p.revents != POLLIN) wrong = 1;
    if (ioctl(the_fd, FIONREAD, &waiting) || waiting < 1) wrong = 2;
    if (recv(the_fd, &c, 1, MSG_PEEK) != 1) wrong = 3;
    if (recv(the_fd, &c, 1, MSG_DONTWAIT) == 1) taken++, sum += c;
    else wrong = 4;
  }
  errno = e;
}
static void rounds_server(int fd) {
  for (int i = 0; i < ROUNDS; i++) {
    put_stream(fd, 3, 0, ROUND, 10000);
    hear('n');
  }
  get_eof(fd);
}
static void recv_same(int fd) {
  unsigned char b[ROUND];
  uint64_t want = 0;
  sigset_t s;
  fill(b, sizeof b, 3, 0);
  for (size_t i = 0; i < sizeof b; i++) want += b[i];
  the_fd = fd;
  on_signal(SIGALRM, take_byte, SA_RESTART);
  sigemptyset(&s);
  sigaddset(&s, SIGALRM);
  for (int i = 0; i < ROUNDS; i++) {
    for (int n = 0; n < ROUND; nap(1)) CHECK(!ioctl(fd, FIONREAD, &n));
    taken = sum = 0;
    every(storm_us());
    while (taken < ROUND) {
      ssize_t k = recv(fd, b, taken < ROUND - 2 * PIECE ? 1 + taken % PIECE : 1, 0);
      CHECK(k > 0);
      // The two counts are one step to the handler.
      sigprocmask(SIG_BLOCK, &s, NULL);
      taken += k;
      for (ssize_t j = 0; j < k; j++) sum += b[j];
      sigprocmask(SIG_UNBLOCK, &s, NULL);
    }
    every(0);
    EQ(wrong, 0);
    EQ(taken, ROUND);
    EQ(sum, want);
    tell('n');
  }
  CHECK(hits > 0);
}

// What a handler sends never lands inside what one send of the main program has counted.
static void mark(int n) {
  (void)n;
  int e = errno;
  hits++;
  if (send(the_fd, "!", 1, MSG_DONTWAIT) == 1) handlers_records++;
  errno = e;
}
static void marks_server(int fd) {
  static char b[50000];
  uint64_t plain = 0, marks = 0;
  hear('s');  // it has had to wait
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) {
    for (ssize_t i = 0; i < k; i++)
      if (b[i] == '!') marks++;
      else CHECK(b[i] == 'a' + (char)(plain++ % 26));
    if (plain % 7 == 0) nap(1);
  }
  EQ(k, 0);
  EQ(plain, hear_int());
  EQ(marks, hear_int());
}
static void send_between(int fd) {
  enum { CHUNK = 300000, TOTAL = 24 << 20 };
  static char b[CHUNK + 26];
  uint64_t sent = 0, short_ones = 0;
  for (size_t i = 0; i < sizeof b; i++) b[i] = 'a' + i % 26;
  the_fd = fd;
  on_signal(SIGALRM, mark, SA_RESTART);
  every(storm_us() * 5);
  int told = 0;
  while (sent < TOTAL) {
    ssize_t k = send(fd, b + sent % 26, CHUNK, 0);
    CHECK(k > 0);
    sent += k;
    if (k < CHUNK) {
      short_ones++;
      if (!told) {
        every(0);
        tell('s');
        told = 1;
        every(storm_us() * 5);
      }
    }
  }
  every(0);
  CHECK(told && hits > 0);
  shutdown(fd, SHUT_WR);
  tell_int(sent);
  tell_int(handlers_records);
  get_eof(fd);
}

// -- another socket
static int other[2];
static volatile sig_atomic_t other_wrong;
static void use_other(int n) {
  (void)n;
  int e = errno;
  char out[32], in[32];
  fill(out, sizeof out, 5, hits++);
  if (send(other[0], out, sizeof out, 0) != sizeof out) other_wrong = 1;
  if (recv(other[1], in, sizeof in, MSG_WAITALL) != sizeof in) other_wrong = 2;
  if (memcmp(out, in, sizeof in)) other_wrong = 3;
  errno = e;
}
static void other_socket(int lfd) {
  int s[2];
  char out[2000], in[2000];
  two(lfd, s);
  two(lfd, other);
  on_signal(SIGALRM, use_other, SA_RESTART);
  every(storm_us());
  uint64_t at = 0;
  for (int i = 0; i < often(5000) || hits < often(500); i++) {
    size_t n = 1 + i % sizeof out;
    fill(out, n, 6, at);
    put(s[i & 1], out, n);
    get(s[~i & 1], in, n);
    verify(in, n, 6, at);
    at += n;
  }
  every(0);
  EQ(other_wrong, 0);
}

// -- handlers that end the connection
static void close_it(int n) {
  (void)n;
  if (++hits == 1) close(the_fd);
}
static void eof_server(int fd) {
  get_eof(fd);
  tell('e');
}
static void close_sleeping(int fd, int flags, int answer) {
  char b[10];
  the_fd = fd;
  on_signal(SIGALRM, close_it, flags);
  wake_me();
  FAILS(recv(fd, b, sizeof b, 0), answer);
  FAILS(recv(fd, b, sizeof b, 0), EBADF);
  hear('e');
}
static void close_in_recv(int fd) { close_sleeping(fd, 0, EINTR); }
static void close_in_recv_restart(int fd) { close_sleeping(fd, SA_RESTART, EBADF); }
static void close_late(int n) {
  (void)n;
  if (++hits == 40) close(the_fd);
}
static void count_server(int fd) {
  static char b[70000];
  uint64_t n = 0;
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) {
    verify(b, k, 4, n);
    n += k;
  }
  EQ(k, 0);
  EQ(n, hear_int());
}
// Closed in the middle of sending: what was counted arrives, and no more.
static void close_in_send(int fd) {
  char b[PIECE];
  uint64_t n = 0;
  the_fd = fd;
  on_signal(SIGALRM, close_late, 0);
  every(storm_us());
  for (;;) {
    fill(b, sizeof b, 4, n);
    errno = 0;
    ssize_t k = send(fd, b, sizeof b, 0);
    if (k < 0 && errno == EINTR) continue;
    if (k < 0) break;
    n += k;
  }
  CHECK(errno == EBADF);
  every(0);
  CHECK(hits >= 40);
  tell_int(n);
}
static void shut_late(int n) {
  (void)n;
  int e = errno;
  if (++hits == 40) shutdown(the_fd, SHUT_WR);
  errno = e;
}
static void count_and_answer(int fd) {
  count_server(fd);
  put(fd, "answer", 6);
}
static void shutdown_in_send(int fd) {
  char b[PIECE];
  uint64_t n = 0;
  the_fd = fd;
  on_signal(SIGALRM, shut_late, SA_RESTART);
  every(storm_us());
  for (;;) {
    fill(b, sizeof b, 4, n);
    ssize_t k = send(fd, b, sizeof b, MSG_NOSIGNAL);
    if (k < 0) break;
    n += k;
  }
  CHECK(errno == EPIPE);
  every(0);
  tell_int(n);
  get(fd, b, 6);
  CHECK(!memcmp(b, "answer", 6));
}
static void shut_now(int n) {
  (void)n;
  hits++;
  shutdown(the_fd, SHUT_RDWR);
}
static void shutdown_in_recv(int fd) {
  char b[10];
  the_fd = fd;
  on_signal(SIGALRM, shut_now, SA_RESTART);
  wake_me();
  EQ(recv(fd, b, sizeof b, 0), 0);
  EQ(hits, 1);
  hear('e');
}

// -- which handler it was decides
static volatile int stop_kicks, kick_with, turns;
static void *kick(void *p) {
  (void)p;
  while (!stop_kicks) {
    nap(5);
    int with = kick_with;
    if (with) pthread_kill(sleeper, with);
    turns++;
  }
  return NULL;
}
// From here on with this signal, and none of the one before is on its way.
static void kick_by(int number) {
  kick_with = 0;
  for (int began = turns; turns < began + 2;) nap(1);
  kick_with = number;
}
static void kinds_server(int fd) {
  for (int i = 0; i < 3; i++) {
    hear('r');
    nap(80);
    put(fd, "data", 4);
  }
  hear('e');
}
// Both kinds are installed; each call is interrupted by one of them.
static void both_kinds(int fd) {
  char b[4];
  pthread_t t;
  sleeper = pthread_self();
  on_signal(SIGUSR1, count_hit, SA_RESTART);
  on_signal(SIGUSR2, count_hit, 0);
  CHECK(!pthread_create(&t, NULL, kick, NULL));
  for (int i = 0; i < 3; i++) {
    kick_by(SIGUSR1);
    tell('r');
    EQ(recv(fd, b, 4, 0), 4);
    kick_by(SIGUSR2);
    FAILS(recv(fd, b, 4, 0), EINTR);
    struct iovec v = {b, 4};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1};
    FAILS(recvmsg(fd, &m, 0), EINTR);
    kick_by(0);
  }
  // With a time-out set, the restarting one interrupts as well; and so do both in poll.
  struct timeval tv = {20, 0}, none = {0, 0};
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &tv, sizeof tv));
  kick_by(SIGUSR1);
  FAILS(recv(fd, b, 4, 0), EINTR);
  CHECK(!setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &none, sizeof none));
  struct pollfd p = {fd, POLLIN, 0};
  FAILS(poll(&p, 1, 20000), EINTR);
  kick_by(SIGUSR2);
  FAILS(poll(&p, 1, 20000), EINTR);
  stop_kicks = 1;
  pthread_join(t, NULL);
  CHECK(hits > 6);
  tell('e');
}
// Deprecated, and used all the same.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
static int interrupts(int n, int so) { return siginterrupt(n, so); }
#pragma GCC diagnostic pop
// signal(3) restarts, siginterrupt(3) takes that back, sysv_signal never does.
static void spellings(int fd) {
  char b[4];
  pthread_t t;
  sleeper = pthread_self();
  CHECK(signal(SIGUSR1, count_hit) == SIG_DFL);
  CHECK(!pthread_create(&t, NULL, kick, NULL));
  kick_by(SIGUSR1);
  tell('r');
  EQ(recv(fd, b, 4, 0), 4);
  CHECK(!interrupts(SIGUSR1, 1));
  FAILS(recv(fd, b, 4, 0), EINTR);
  CHECK(signal(SIGUSR1, count_hit) == count_hit);
  FAILS(recv(fd, b, 4, 0), EINTR);
  CHECK(!interrupts(SIGUSR1, 0));
  tell('r');
  EQ(recv(fd, b, 4, 0), 4);
  kick_by(0);
  stop_kicks = 1;
  pthread_join(t, NULL);
  CHECK(signal(SIGUSR1, SIG_IGN) == count_hit);
  tell('r');
  EQ(recv(fd, b, 4, 0), 4);
  tell('e');
}

// -- what was asked of sigaction is what a handler gets, and what a query says
static volatile sig_atomic_t mask_wrong, stack_wrong, value_wrong, order_wrong;
static char alt[65536];
static volatile int last_value;
static void full(int number, siginfo_t *info, void *context) {
  sigset_t now;
  char here;
  hits++;
  pthread_sigmask(SIG_BLOCK, NULL, &now);
  if (!sigismember(&now, SIGUSR1) || !sigismember(&now, number) || sigismember(&now, SIGUSR2)) mask_wrong = 1;
  if (number == SIGALRM && (&here < alt || &here >= alt + sizeof alt)) stack_wrong = 1;
  if (info->si_signo != number || !context) value_wrong = 1;
  // The interrupted thread's own mask, which is to be restored.
  if (sigismember(&((ucontext_t *)context)->uc_sigmask, SIGUSR1) || sigismember(&((ucontext_t *)context)->uc_sigmask, SIGTERM))
    mask_wrong = 2;
  if (number == SIGRTMIN) {
    if (info->si_code != SI_QUEUE || info->si_pid != getpid()) value_wrong = 2;
    if (info->si_value.sival_int != last_value + 1) order_wrong = 1;
    last_value = info->si_value.sival_int;
  } else if (info->si_code != SI_KERNEL) {
    value_wrong = 3;
  }
}
enum { VALUES = 4000 };
static void *queue_values(void *p) {
  union sigval v;
  (void)p;
  for (int i = 1; i <= often(VALUES); i++) {
    v.sival_int = i;
    while (pthread_sigqueue(sleeper, SIGRTMIN, v)) nap(1);
    if (i % 8 == 0) usleep(50);
  }
  return NULL;
}
static void echo_until_eof(int fd) {
  char b[PIECE];
  ssize_t k;
  while ((k = recv(fd, b, sizeof b, 0)) > 0) put(fd, b, k);
  EQ(k, 0);
}
static void as_asked(int fd) {
  struct sigaction a = {.sa_sigaction = full, .sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK}, q;
  stack_t s = {.ss_sp = alt, .ss_size = sizeof alt};
  CHECK(!sigaltstack(&s, NULL));
  sigaddset(&a.sa_mask, SIGUSR1);
  sigaddset(&a.sa_mask, SIGALRM), sigaddset(&a.sa_mask, SIGRTMIN);  // neither interrupts the other
  CHECK(!sigaction(SIGALRM, &a, NULL));
  a.sa_flags = SA_SIGINFO | SA_RESTART;
  CHECK(!sigaction(SIGRTMIN, &a, NULL));
  CHECK(!sigaction(SIGALRM, NULL, &q));
  CHECK(q.sa_sigaction == full && sigismember(&q.sa_mask, SIGUSR1) == 1 && sigismember(&q.sa_mask, SIGUSR2) == 0);
  EQ(q.sa_flags & (SA_SIGINFO | SA_RESTART | SA_ONSTACK | SA_NODEFER | SA_RESETHAND), SA_SIGINFO | SA_RESTART | SA_ONSTACK);
  pthread_t t;
  sleeper = pthread_self();
  sigset_t all, was;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &was);
  CHECK(!pthread_create(&t, NULL, queue_values, NULL));
  pthread_sigmask(SIG_SETMASK, &was, NULL);
  every(storm_us());
  char b[PIECE];
  for (int i = 0; i < often(5000) || last_value < often(VALUES); i++) {
    fill(b, sizeof b, 12, i);
    put(fd, b, sizeof b);
    get(fd, b, sizeof b);
    verify(b, sizeof b, 12, i);
  }
  every(0);
  pthread_join(t, NULL);
  EQ(mask_wrong, 0);
  EQ(stack_wrong, 0);
  EQ(value_wrong, 0);
  EQ(order_wrong, 0);
  // Nothing stays blocked.
  pthread_sigmask(SIG_BLOCK, NULL, &was);
  for (int i = 1; i < 32; i++) EQ(sigismember(&was, i), 0);
}
static void next_reset(int n);
static void next_reset(int n) {
  struct sigaction q;
  hits++;
  if (sigaction(n, NULL, &q) || q.sa_handler != SIG_DFL) value_wrong = 1;
  on_signal(n, next_reset, SA_RESETHAND | SA_RESTART);
}
// SA_RESETHAND, again and again: each handler installs itself anew, and never does the default
// action end the program.
static void resethand(int fd) {
  char b[PIECE];
  struct sigaction q;
  on_signal(SIGALRM, next_reset, SA_RESETHAND | SA_RESTART);
  CHECK(!sigaction(SIGALRM, NULL, &q) && q.sa_handler == next_reset && q.sa_flags & SA_RESETHAND);
  EQ(q.sa_flags & SA_SIGINFO, 0);
  for (int i = 0; hits < 300; i++) {
    // One at a time: a second one before the handler has installed itself would end the program
    // under any kernel.
    int before = hits;
    struct itimerval one = {{0, 0}, {0, 1 + i % 60}};
    CHECK(!setitimer(ITIMER_REAL, &one, NULL));
    do {
      fill(b, sizeof b, 13, i);
      put(fd, b, sizeof b);
      get(fd, b, sizeof b);
      verify(b, sizeof b, 13, i);
    } while (hits == before);
  }
  EQ(value_wrong, 0);
}

const test_case CASES[] = {
    {"handler_sends_on_it", records_server, send_same, 0},
    {"handler_sends_on_it_restarting", records_server, send_same_restart, 0},
    {"handler_receives_from_it", rounds_server, recv_same, 0},
    {"handler_sends_between_sends", marks_server, send_between, 0},
    {"handler_uses_another", other_socket, NULL, SOLO},
    {"handler_closes_in_recv", eof_server, close_in_recv, TOUCH},
    {"handler_closes_in_recv_restarting", eof_server, close_in_recv_restart, TOUCH},
    {"handler_closes_in_send", count_server, close_in_send, 0},
    {"handler_shuts_in_send", count_and_answer, shutdown_in_send, 0},
    {"handler_shuts_in_recv", eof_server, shutdown_in_recv, TOUCH},
    {"both_kinds_of_handler", kinds_server, both_kinds, TOUCH},
    {"signal_and_siginterrupt", kinds_server, spellings, TOUCH},
    {"as_sigaction_was_asked", echo_until_eof, as_asked, 0},
    {"resethand", echo_until_eof, resethand, 0},
    {0},
};
