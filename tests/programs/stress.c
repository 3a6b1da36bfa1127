// Processes and threads that fork, become other programs, duplicate descriptors, pass them on,
// read, write, shut down and kill each other at random on one set of connections, and check every
// byte.
//
//     stress run SECONDS SEED LIBRARY|-
//         LIBRARY is preloaded into everything but the coordinator; prints `ok` or what is wrong
//
// The model is in memory that all of them share (a file without a name, descriptor MODEL). It has,
// for each direction of each connection, how many bytes were sent and received, under robust
// mutexes. Byte p of a stream is a function of the stream and p. A writer that is killed inside
// write leaves the count within bounds, and its direction is shut down next. A reader that is
// killed leaves it to the next one to find its place by the bytes. One process of each side, the
// anchor, holds every connection until both directions have ended and were read to the end; it is
// never killed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "stress_model.h"

// ---------------------------------------------------------------- what they do

static void write_some(int c) {
  static __thread unsigned char b[PIECE];
  int fd = hold(c), died;
  if (fd < 0) return;
  stream *s = &M->conns[c].way[side];
  if (!s->shut && lock(&s->writer, &died)) {
    if (!s->shut && ((died && s->writing) || s->cut)) {
      // How much of that went out is not known: this is the end of the direction.
      if (!s->cut) s->slack = s->writing;
      s->shut = 1;
      if (shutdown(fd, SHUT_WR)) wrong("shutdown: %s", strerror(errno));
    } else if (!s->shut && held[c].generation == M->conns[c].generation) {
      size_t n = 1 + roll(roll(3) ? 3000 : PIECE);
      uint64_t ahead = s->sent - s->received;
      int flags = ahead + n < OPEN_AT_ONCE && roll(2) ? 0 : MSG_DONTWAIT;
      fill(b, n, s->key, s->sent);
      s->writing = n;
      struct iovec v[2] = {{b, n / 3}, {b + n / 3, n - n / 3}};
      ssize_t k = flags || roll(2) ? send(fd, b, n, flags | MSG_NOSIGNAL) : writev(fd, v, 2);
      if (k > 0) {
        s->sent += k;
        count(WRITE);
      } else if ((k == 0 || (errno != EAGAIN && errno != EINTR)) && !M->over)
        wrong("write to connection %d after %ju bytes: %s", c, (uintmax_t)s->sent, strerror(errno));
      s->writing = 0;
      if (s->sent > 300000 && !roll(400)) {
        s->shut = 1;
        count(SHUT);
        if (shutdown(fd, SHUT_WR)) wrong("shutdown: %s", strerror(errno));
      }
    }
    pthread_mutex_unlock(&s->writer);
  }
  let_go(c);
}

static void at_the_end(stream *s, int c) {
  if (M->over) return;  // the other side's anchor may have closed already
  if (!s->shut || s->received < s->sent || s->received > s->sent + s->slack)
    wrong("connection %d ended after %ju bytes of %ju (+%ju), %sshut down", c, (uintmax_t)s->received, (uintmax_t)s->sent,
          (uintmax_t)s->slack, s->shut ? "" : "not ");
  s->ended = 1;
  M->progress++;
}

static void read_some(int c) {
  static __thread unsigned char b[PIECE];
  int fd = hold(c), died;
  if (fd < 0) return;
  stream *s = &M->conns[c].way[!side];
  if (!s->ended && lock(&s->reader, &died)) {
    if (!s->ended && held[c].generation == M->conns[c].generation) {
      if (died) s->lost = s->lost > s->reading ? s->lost : s->reading;
      uint64_t from = s->received, most = s->lost;
      size_t n = 1 + roll(roll(3) ? 5000 : PIECE), got = 0;
      int certain = s->sent > from + most, flags = certain && roll(2) ? 0 : MSG_DONTWAIT;
      if (most && n < 16) n = 16;
      s->reading = most + n;
      if (!most && !roll(8) && (got = 0, recv(fd, b, n, MSG_PEEK | MSG_DONTWAIT)) > 0) count(READ);
      ssize_t k = 0;
      do {  // after a death: enough to find the place
        struct iovec v[2] = {{b + got, (n - got) / 2}, {b + got + (n - got) / 2, n - got - (n - got) / 2}};
        if (most && got) poll(&(struct pollfd){fd, POLLIN, 0}, 1, 100);
        k = flags || roll(2) ? recv(fd, b + got, n - got, most ? MSG_DONTWAIT : flags) : readv(fd, v, 2);
        if (k > 0) got += k;
      } while (most && got < 16 && (k > 0 || (got && k < 0 && errno == EAGAIN && !M->over)));
      uint64_t p = from;
      while (got && p <= from + most && !matches(b, got, s->key, p)) p++;
      if (got) {
        if (p > from + most) {
          char said[200];
          place(said, sizeof said, b, got, from);
          wrong("connection %d: wrong bytes (+%ju), %s; %ju were sent", c, (uintmax_t)most, said, (uintmax_t)s->sent);
        }
        s->received = p + got;
        s->lost = 0;
        count(READ);
      }
      if (k == 0) {
        if (most && !got) s->received = s->sent;  // killed with the last bytes in its hands
        at_the_end(s, c);
      } else if (k < 0 && errno != EAGAIN && errno != EINTR && !M->over)
        wrong("read from connection %d after %ju of %ju bytes: %s", c, (uintmax_t)from, (uintmax_t)s->sent, strerror(errno));
      s->reading = 0;
    }
    pthread_mutex_unlock(&s->reader);
  }
  let_go(c);
}

static void wait_some(void) {
  struct pollfd p[CONNS];
  int n = 0, which[CONNS];
  for (int c = 0; c < CONNS; c++) {
    int fd = hold(c);
    if (fd >= 0) p[n] = (struct pollfd){fd, POLLIN | (roll(2) ? POLLOUT : 0), 0}, which[n++] = c;
  }
  if (roll(2)) poll(p, n, roll(20));
  else {
    fd_set r;
    FD_ZERO(&r);
    int top = -1;
    for (int i = 0; i < n; i++) FD_SET(p[i].fd, &r), top = p[i].fd > top ? p[i].fd : top;
    select(top + 1, &r, NULL, NULL, &(struct timeval){0, roll(20000)});
  }
  for (int i = 0; i < n; i++) let_go(which[i]);
}

static void dup_some(int c) {
  pthread_mutex_lock(&table);
  holding *h = &held[c];
  if (h->fd >= 0 && !h->busy) {
    int other = -1, flags = 0;
    switch (roll(4)) {
      case 0: other = dup(h->fd); break;
      case 1: other = fcntl(h->fd, F_DUPFD, FIRST); break;
      case 2: other = dup2(h->fd, PLACES + c); break;
      default: other = dup3(h->fd, PLACES + CONNS + c, O_CLOEXEC), flags = other >= 0;
    }
    if (other < 0 && errno != EINVAL) wrong("dup: %s", strerror(errno));
    if (other >= 0 && other != h->fd) {
      if (flags && !(fcntl(other, F_GETFD) & FD_CLOEXEC)) wrong("dup3 lost its flag");
      if (flags) fcntl(other, F_SETFD, 0);
      close(h->fd);
      h->fd = other;
      count(DUP);
    }
  }
  pthread_mutex_unlock(&table);
}

// Whether the connection may be given to a program without the library. Two cases are known and
// documented as lost. When its sender has shut it down it cannot go back to TCP with bytes unread,
// nor when both ends go back at a time. True with the writer's lock held, so that it stays like
// that.
static int may_go_back(int c) {
  stream *s = &M->conns[c].way[!side];
  int died, nobody = 0;
  if (c >= CONNS / 2) return 0;  // these may stay beyond TCP
  if (!atomic_compare_exchange_strong(&M->conns[c].back, &nobody, 1 + side) && nobody != 1 + side) return 0;
  if (!lock(&s->writer, &died)) return 0;
  if (died && s->writing) s->slack = s->writing, s->cut = 1;
  if (!s->shut && !s->cut) return 1;
  pthread_mutex_unlock(&s->writer);
  return 0;
}

static void pass_some(int c) {
  int fd = hold(c);
  if (fd < 0) return;
  if (!may_go_back(c)) {
    let_go(c);
    return;
  }
  struct {
    int c;
    uint32_t generation;
  } note = {c, held[c].generation};
  union {
    char b[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } u = {0};
  struct iovec v = {&note, sizeof note};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.b, .msg_controllen = sizeof u.b};
  struct cmsghdr *h = CMSG_FIRSTHDR(&m);
  h->cmsg_level = SOL_SOCKET, h->cmsg_type = SCM_RIGHTS, h->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(h), &fd, sizeof fd);
  // Every process has both ends of the mail: one writes to the first, another reads from the
  // second.
  if (sendmsg(MAIL, &m, MSG_DONTWAIT | MSG_NOSIGNAL) > 0) count(PASS);
  pthread_mutex_unlock(&M->conns[c].way[!side].writer);
  let_go(c);
}
static void take_some(void) {
  struct {
    int c;
    uint32_t generation;
  } note;
  union {
    char b[CMSG_SPACE(sizeof(int))];
    struct cmsghdr align;
  } u;
  struct iovec v = {&note, sizeof note};
  struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = u.b, .msg_controllen = sizeof u.b};
  if (recvmsg(MAIL + 1, &m, MSG_DONTWAIT) != sizeof note || !CMSG_FIRSTHDR(&m)) return;
  int fd;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  pthread_mutex_lock(&table);
  holding *h = &held[note.c];
  if (note.generation == M->conns[note.c].generation && !h->busy) {
    if (h->fd >= 0) close(h->fd);
    *h = (holding){fd, 0, note.generation};
    count(TAKEN);
  } else
    close(fd);
  pthread_mutex_unlock(&table);
}

static void spawn_some(void) {
  pid_t p;
  int status;
  char *args[] = {"true", NULL};
  if (ticking) return;  // stdio would hear EINTR
  switch (roll(4)) {
    case 0:
      status = system(":");
      if (status) wrong("system: %x, %s", status, strerror(errno));
      break;
    case 1: {
      FILE *f = popen("echo x", "r");
      if (!f || fgetc(f) != 'x' || pclose(f)) wrong("popen");
      break;
    }
    case 2:
      if (posix_spawnp(&p, "true", NULL, NULL, args, environ) || waitpid(p, NULL, 0) != p) wrong("posix_spawn");
      break;
    default:
      p = vfork();
      if (!p) {
        execvp("true", args);
        _exit(1);
      }
      if (p < 0 || waitpid(p, &status, 0) != p || status) wrong("vfork");
  }
  count(SPAWN);
}

// Becomes the same program again, with every descriptor where it is; or without the library, with
// one connection as its standard input.
static void exec_some(void) {
  char words[CONNS][40], where[20], seed[30], number[20];
  int only = roll(3) ? -1 : (int)roll(CONNS), n = 0;
  pthread_mutex_lock(&table);
  for (int c = 0; c < CONNS; c++)
    if (held[c].busy && only >= 0) {
      // (With all of them it does no harm: another thread ends in the midst of its call.)
      pthread_mutex_unlock(&table);
      return;
    }
  if (only >= 0 && (held[only].fd < 0 || held[only].generation != M->conns[only].generation || !may_go_back(only) || dup2(held[only].fd, 0) != 0)) only = -1;
  char *args[CONNS + 8] = {ARGV[0], "worker", where, number, seed};
  n = 5;
  snprintf(where, sizeof where, "%d", side);
  snprintf(number, sizeof number, "%d", depth);
  snprintf(seed, sizeof seed, "%ju", (uintmax_t)dice);
  for (int c = 0; c < CONNS; c++) {
    if (held[c].fd < 0) continue;
    if (only >= 0) close(held[c].fd);
    if (only >= 0 && c != only) continue;
    snprintf(words[c], sizeof words[c], "%d:%u:%d", c, held[c].generation, only >= 0 ? 0 : held[c].fd);
    args[n++] = words[c];
  }
  signal(SIGALRM, SIG_IGN);
  if (only >= 0) {
    count(EXEC_BARE);
    args[1] = "bare";
    unsetenv("LD_PRELOAD");
    execv("/proc/self/exe", args);
  } else {
    count(EXEC);
    if (roll(2)) execvp("/no/such/program", args);
    execv(ARGV[0], args);
  }
  wrong("exec: %s", strerror(errno));
  pthread_mutex_unlock(&table);
}

static void worker(uint64_t seed);
// A child of a process with threads, for a while; it ends with its parent.
static void fork_some(void) {
  uint64_t fresh = mix(dice);
  pthread_mutex_lock(&table);
  pid_t parent = getpid(), p = fork();
  if (p == 0) prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (p == 0 && getppid() != parent) _exit(0);
  pthread_mutex_unlock(&table);
  if (p < 0) wrong("fork: %s", strerror(errno));
  if (p) return;
  depth++;
  for (int c = 0; c < CONNS; c++) held[c].busy = 0;  // by threads that are not here
  count(FORK);
  worker(fresh);
}

static void nothing(int sig) { (void)sig; }

static void *work(void *seed) {
  dice = mix((uintptr_t)seed ^ (uint64_t)gettid() << 20);
  int first = gettid() == getpid(), life = 200 + roll(3000);
  for (int i = 0; !M->over && (i < life || !first); i++) {
    if (first && i % 64 == 0) waitpid(-1, NULL, WNOHANG);
    int c = roll(CONNS), what = roll(1000);
    if (what < 430) write_some(c);
    else if (what < 880) read_some(c);
    else if (what < 960) wait_some();
    else if (what < 980) dup_some(c);
    // (What came to a program without the library in a message, and goes on from there, is
    // documented as lost, too.)
    else if (what < 984 && bare) continue;
    else if (what < 984) pass_some(c);
    else if (what < 988) take_some();
    else if (what < 990 && first) spawn_some();  // (the first thread is also the one that reaps)
    else if (what < 991 && first && !bare && depth < DEEPEST) fork_some();
    else if (what < 995 && first && !bare) exec_some();
    else tidy();
  }
  return NULL;
}

// Closes the descriptors that this process does not know: another thread of the process that this
// one was had just received them. Such a descriptor would hold a connection open. In the long run
// all numbers would be taken, those that dup2 and dup3 choose too.
static void forget_the_rest(void) {
  for (int fd = 3; fd < PLACES + 2 * CONNS; fd++) {
    int known = fd == MODEL || fd == MAIL || fd == MAIL + 1;
    for (int c = 0; c < CONNS; c++) known |= held[c].fd == fd;
    if (!known) close(fd);
  }
}

// A worker's life; it ends by return, by exit or by exec, in the midst of what its other threads
// do.
static void worker(uint64_t seed) {
  dice = seed;
  forget_the_rest();
  signal(SIGPIPE, SIG_IGN);
  sigaction(SIGALRM, &(struct sigaction){.sa_handler = nothing, .sa_flags = roll(2) ? SA_RESTART : 0}, NULL);
  ticking = !roll(3);
  // (A timer outlives exec: what the program before this one had set would still tick.)
  long every = ticking ? 500 : 0;
  setitimer(ITIMER_REAL, &(struct itimerval){{0, every}, {0, every}}, NULL);
  for (int i = 1; i < THREADS; i++) {
    pthread_t t;
    pthread_create(&t, NULL, work, (void *)(uintptr_t)mix(seed + i));
  }
  work((void *)(uintptr_t)seed);
  if (roll(2)) exit(0);
  _exit(0);
}

// ---------------------------------------------------------------- the anchors

static void begin_again(int c, int fd) {
  held[c] = (holding){fd, 0, M->conns[c].generation};
  M->conns[c].open[side] = 1;
}
// Side 1 decides that a connection is over and makes the model ready for the next one; side 0 dials
// when it sees that.
static void renew(int l) {
  for (int c = 0; c < CONNS; c++) {
    conn *k = &M->conns[c];
    if (held[c].fd >= 0) {
      if (k->way[0].ended && k->way[1].ended && k->open[side]) {
        if (side == 0 || !k->open[0]) {
          // A reader or writer may still be about to look.
          for (int d = 0; d < 2; d++) {
            pthread_mutex_t *both[] = {&k->way[d].writer, &k->way[d].reader};
            for (int i = 0; i < 2 && side == 1; i++) {
              if (pthread_mutex_lock(both[i]) == EOWNERDEAD) pthread_mutex_consistent(both[i]);
            }
          }
          if (side == 1) {
            k->generation++;
            k->back = 0;
            for (int d = 0; d < 2; d++) {
              stream *s = &k->way[d];
              s->sent = s->received = s->writing = s->reading = s->slack = s->lost = 0;
              s->shut = s->ended = s->cut = 0;
              s->key = mix(s->key + 1);
              pthread_mutex_unlock(&s->writer);
              pthread_mutex_unlock(&s->reader);
            }
            count(RETIRED);
          }
          close(held[c].fd);
          held[c].fd = -1;
          k->open[side] = 0;
        }
      }
    } else if (side == 0 && !k->open[1] && !M->over) {
      int fd = socket(AF_INET, SOCK_STREAM, 0);
      struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(M->port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
      if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a)) wrong("connect: %s", strerror(errno));
      unsigned char first = c;
      // The one byte that is not part of the model says which connection it is.
      if (write(fd, &first, 1) != 1) wrong("first byte: %s", strerror(errno));
      for (int t = 0; t < 200 && !k->open[1] && !M->over; t++) usleep(20000);
      begin_again(c, fd);
    }
  }
  if (side == 1 && poll(&(struct pollfd){l, POLLIN, 0}, 1, 0) > 0) {
    int fd = accept(l, NULL, NULL);
    unsigned char c;
    if (fd < 0 || read(fd, &c, 1) != 1 || c >= CONNS || held[c].fd >= 0) wrong("accept: %s", strerror(errno));
    else begin_again(c, fd);
  }
}

static void anchor(uint64_t seed) {
  dice = mix(seed + side);
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  int l = -1, mail[2];
  if (side == 1) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    l = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(l, (struct sockaddr *)&a, len) || listen(l, 50) || getsockname(l, (struct sockaddr *)&a, &len)) exit(1);
    M->port = ntohs(a.sin_port);
  } else
    while (!M->port && !M->over) usleep(1000);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, mail) || dup2(mail[0], MAIL) < 0 || dup2(mail[1], MAIL + 1) < 0) exit(1);
  close(mail[0]), close(mail[1]);
  while (!M->over) {
    renew(l);
    take_some();  // so that nothing stays in the mail for ever
    int status, w = roll(WORKERS);
    pid_t p = waitpid(-1, &status, WNOHANG);
    for (int i = 0; p > 0 && i < WORKERS; i++) {
      if (M->pids[side][i] != p) continue;  // or it is an orphan that came to us
      M->pids[side][i] = 0;
      if (!(WIFEXITED(status) && WEXITSTATUS(status) == 0) && !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
        wrong("a worker ended with status %x", status);
    }
    if (!M->pids[side][w]) {
      uint64_t fresh = mix(dice);
      p = fork();
      if (p == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        M->pids[side][w] = getpid();
        worker(fresh);
      }
      if (p < 0) wrong("fork: %s", strerror(errno));
      M->pids[side][w] = p;
      count(FORK);
    } else if (!roll(60)) {
      count(KILL);
      kill(M->pids[side][w], SIGKILL);
    }
    usleep(roll(20000));
  }
  for (int i = 0; i < WORKERS; i++)
    if (M->pids[side][i]) kill(M->pids[side][i], SIGKILL);
  while (waitpid(-1, NULL, 0) > 0) {}
  for (int c = 0; c < CONNS; c++)
    if (held[c].fd >= 0) close(held[c].fd);
  // Nothing of the connections may be left but a few idle arenas and bells.
  int open = 0;
  for (int fd = 0; fd < 5000; fd++) open += fcntl(fd, F_GETFD) >= 0;
  char line[400];
  int maps = 0;
  FILE *f = fopen("/proc/self/maps", "r");
  while (f && fgets(line, sizeof line, f)) maps += strstr(line, "memfd:rsockets") != NULL;
  if (f) fclose(f);
  if (open > 60) wrong("%d descriptors are left", open);
  if (maps > 20) wrong("%d maps are left", maps);
  exit(0);
}

// ---------------------------------------------------------------- the coordinator

static int run(int seconds, uint64_t seed, const char *library) {
  int fd = memfd_create("stress", 0);
  if (fd < 0 || ftruncate(fd, sizeof *M) || dup2(fd, MODEL) < 0) return 2;
  close(fd);
  M = mmap(NULL, sizeof *M, PROT_READ | PROT_WRITE, MAP_SHARED, MODEL, 0);
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  for (int c = 0; c < CONNS; c++)
    for (int d = 0; d < 2; d++) {
      stream *s = &M->conns[c].way[d];
      pthread_mutex_init(&s->writer, &attr), pthread_mutex_init(&s->reader, &attr);
      s->key = mix(seed + 2 * c + d);
    }
  pid_t roots[2];
  for (int s = 0; s < 2; s++) {
    roots[s] = fork();
    if (!roots[s]) {
      char where[4], text[30];
      prctl(PR_SET_PDEATHSIG, SIGKILL);  // and so on down: nothing outlives the coordinator
      snprintf(where, sizeof where, "%d", s), snprintf(text, sizeof text, "%ju", (uintmax_t)seed);
      if (strcmp(library, "-")) setenv("LD_PRELOAD", library, 1);
      execl(ARGV[0], ARGV[0], "anchor", where, text, NULL);
      _exit(9);
    }
  }
  uint64_t last = 0;
  int still = 0, alive = 2, status;
  for (int t = 0; t < seconds * 5 && !M->over; t++) {
    usleep(200000);
    still = M->progress == last ? still + 1 : 0;
    last = M->progress;
    if (still > 300) wrong("nothing has moved for a minute");
  }
  M->over = 1;
  for (int t = 0; t < 600 && alive; t++) {
    for (int s = 0; s < 2; s++)
      if (roots[s] && waitpid(roots[s], &status, WNOHANG) == roots[s]) {
        if (status) wrong("anchor %d ended with status %x", s, status), printf("anchor %d ended with status %x\n", s, status);
        roots[s] = 0, alive--;
      }
    usleep(100000);
  }
  if (alive) wrong("an anchor does not end");
  for (int s = 0; s < 2; s++)
    for (int w = 0; w < WORKERS; w++)
      if (M->pids[s][w] && alive) kill(M->pids[s][w], SIGKILL);
  for (int s = 0; s < 2; s++)
    if (roots[s]) kill(roots[s], SIGKILL);
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++) printf("%s%ju %s", i ? ", " : "", (uintmax_t)M->done[i], NAMES[i]);
  printf("\n%s\n", M->failed ? M->why : "ok");
  return M->failed;
}

int main(int argc, char **argv) {
  ARGV = argv;
  for (int c = 0; c < CONNS; c++) held[c].fd = -1;
  if (argc == 5 && !strcmp(argv[1], "run")) return run(atoi(argv[2]), strtoull(argv[3], NULL, 10), argv[4]);
  M = mmap(NULL, sizeof *M, PROT_READ | PROT_WRITE, MAP_SHARED, MODEL, 0);
  if (argc < 4 || M == MAP_FAILED) return 2;
  side = atoi(argv[2]);
  bare = !strcmp(argv[1], "bare");
  if (!strcmp(argv[1], "anchor")) anchor(strtoull(argv[3], NULL, 10));
  for (int i = 5; i < argc; i++) {
    int c, fd;
    uint32_t generation;
    if (sscanf(argv[i], "%d:%u:%d", &c, &generation, &fd) == 3) held[c] = (holding){fd, 0, generation};
  }
  depth = atoi(argv[3]);
  worker(strtoull(argv[4], NULL, 10));
}
