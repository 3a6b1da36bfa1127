// The ways by which a program makes another process or starts another program: fork, vfork, clone,
// daemon, posix_spawn, system, popen. It does so by its threads, and by the hundred.
#include "ask.h"

#include <spawn.h>
#include <sys/syscall.h>

static void daemon_server(int fd) {
  int p[2];
  char c;
  CHECK(!pipe(p));
  pid_t kid = fork();
  if (!kid) {
    CHECK(!daemon(1, 1));
    echo_all(fd);
    CHECK(write(p[1], "x", 1) == 1);
    _exit(0);
  }
  EQ(exit_status(kid), 0);
  close(fd);
  EQ(read(p[0], &c, 1), 1);
}
static void asking_client(int fd) {
  ask(fd, 1, 2 * MIB, 9000);
  finish(fd);
}
// daemon(3) puts the null device where the connection was: it is not the connection any more.
static void daemon_null_server(int fd) {
  int p[2];
  char c;
  CHECK(!pipe(p));
  echo_n(fd, MIB);
  pid_t kid = fork();
  if (!kid) {
    CHECK(dup2(fd, 0) == 0);
    close(fd);
    if (daemon(1, 0)) _exit(1);
    c = read(0, &c, 1) == 0 ? 'y' : 'n';
    CHECK(write(p[1], &c, 1) == 1);
    _exit(0);
  }
  close(fd);
  EQ(exit_status(kid), 0);
  EQ(read(p[0], &c, 1), 1);
  EQ(c, 'y');
}
static void daemon_null_client(int fd) {
  ask(fd, 1, MIB, 9000);
  get_eof(fd);
}

extern char **environ;
static void spawn_server(int fd) {
  echo_n(fd, MIB);
  posix_spawn_file_actions_t a;
  char *args[] = {"cat", NULL};
  pid_t kid;
  CHECK(!posix_spawn_file_actions_init(&a) && !posix_spawn_file_actions_adddup2(&a, fd, 0) &&
        !posix_spawn_file_actions_adddup2(&a, fd, 1) && !posix_spawn_file_actions_addclose(&a, fd));
  SAME(posix_spawnp(&kid, "cat", &a, NULL, args, environ), 0);
  close(fd);
  EQ(exit_status(kid), 0);
}
static void vfork_server(int fd) {
  echo_n(fd, MIB);
  char *args[] = {"cat", NULL};
  pid_t kid = vfork();
  if (!kid) {
    if (dup2(fd, 0) != 0 || dup2(fd, 1) != 1) _exit(8);
    close(fd);
    execvp("cat", args);
    _exit(9);
  }
  close(fd);
  EQ(exit_status(kid), 0);
}
static void two_parts_client(int fd) {
  ask(fd, 1, MIB, 9000);
  ask(fd, 2, 2 * MIB, 9000);
  finish(fd);
}
// A program whose standard output is the connection runs others.
static void system_server(int fd) {
  echo_n(fd, MIB);
  int out = dup(1);
  CHECK(out >= 0 && dup2(fd, 1) == 1);
  EQ(system("printf hello"), 0);
  FILE *f = popen("cat", "w");
  CHECK(f && fputs("world", f) > 0 && pclose(f) == 0);
  CHECK(dup2(out, 1) == 1);
  echo_all(fd);
}
static void system_client(int fd) {
  ask(fd, 1, MIB, 9000);
  char b[10];
  get(fd, b, 10);
  CHECK(!memcmp(b, "helloworld", 10));
  ask(fd, 2, MIB, 9000);
  finish(fd);
}

// A process lives as long as any of its threads, also where the one that it began with has left.
static void *remaining(void *p) {
  int fd = (int)(intptr_t)p;
  echo_all(fd);
  close(fd);
  return NULL;
}
static void first_thread_server(int fd) {
  echo_n(fd, MIB);
  pid_t kid = fork();
  if (!kid) {
    pthread_t t;
    CHECK(!pthread_create(&t, NULL, remaining, (void *)(intptr_t)fd));
    pthread_exit(NULL);
  }
  nap(100);
  close(fd);
  tell('c');
  EQ(exit_status(kid), 0);
}
static void first_thread_client(int fd) {
  ask(fd, 1, MIB, 9000);
  hear('c');
  ask(fd, 2, 2 * MIB, 9000);
  finish(fd);
}

// More processes than the library keeps a list of; the last two share the connection, and one of
// them closes it first.
static void hundreds_server(int fd) {
  enum { HUNDREDS = 300 };
  static pid_t kid[HUNDREDS];
  int alive[2], closed[2];
  char c;
  CHECK(!pipe(alive) && !pipe(closed));
  for (int i = 0; i < HUNDREDS; i++) {
    CHECK((kid[i] = fork()) >= 0);
    if (!kid[i]) {
      close(alive[1]);
      close(fd);
      EQ(read(alive[0], &c, 1), 0);
      _exit(0);
    }
  }
  echo_n(fd, MIB);
  pid_t last = fork();
  if (!last) {
    pid_t sharing = fork();
    if (!sharing) {
      EQ(read(closed[0], &c, 1), 1);
      echo_all(fd);
      close(fd);
      _exit(0);
    }
    echo_n(fd, MIB);
    close(fd);
    EQ(write(closed[1], "c", 1), 1);
    EQ(exit_status(sharing), 0);
    _exit(0);
  }
  close(fd);
  EQ(exit_status(last), 0);
  close(alive[1]);
  for (int i = 0; i < HUNDREDS; i++) EQ(exit_status(kid[i]), 0);
}
static void hundreds_client(int fd) {
  for (int i = 0; i < 3; i++) ask(fd, i, MIB, 9000);
  finish(fd);
}

static _Atomic int stop;
static void *forker(void *p) {
  (void)p;
  while (!stop) {
    pid_t kid = fork();
    CHECK(kid >= 0);
    if (!kid) _exit(0);
    EQ(exit_status(kid), 0);
  }
  return NULL;
}
// Threads that fork all the while do not disturb one that transfers.
static void threads_client(int fd) {
  pthread_t t[2];
  for (int i = 0; i < 2; i++) CHECK(!pthread_create(&t[i], NULL, forker, NULL));
  ask(fd, 1, 2 * MIB, 16000);
  stop = 1;
  for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
  finish(fd);
}

// A child that was made past libc (as vsftpd makes its sessions) closes the connection; what has
// its number then is what it is.
static void past_libc_server(int fd) {
  int spare = open("/dev/null", O_RDONLY);
  while (spare >= 0 && spare < fd) spare = open("/dev/null", O_RDONLY);
  pid_t child = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  CHECK(child >= 0);
  if (child == 0) {
    char b[16] = "zeros expected";
    close(fd);
    EQ(open("/dev/zero", O_RDONLY), fd);
    EQ(read(fd, b, sizeof b), sizeof b);
    for (unsigned i = 0; i < sizeof b; i++) EQ(b[i], 0);
    close(fd);
    EQ(socket(AF_INET, SOCK_DGRAM, 0), fd);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}, from;
    socklen_t n = sizeof at;
    CHECK(!bind(fd, (struct sockaddr *)&at, n) && !getsockname(fd, (struct sockaddr *)&at, &n));
    EQ(sendto(fd, "x", 1, 0, (struct sockaddr *)&at, sizeof at), 1);
    n = sizeof from;
    EQ(recvfrom(fd, b, sizeof b, 0, (struct sockaddr *)&from, &n), 1);
    EQ(n, sizeof from);
    EQ(from.sin_port, at.sin_port);
    _exit(0);
  }
  int status = -1;
  EQ(waitpid(child, &status, 0), child);
  EQ(status, 0);
  echo_all(fd);
}
static void past_libc_client(int fd) {
  ask(fd, 3, 200000, 5000);
  finish(fd);
}

const test_case CASES[] = {
    {"daemon", daemon_server, asking_client, 0},
    {"daemon_and_the_null_device", daemon_null_server, daemon_null_client, 0},
    {"posix_spawn", spawn_server, two_parts_client, NOSHM},
    {"vfork", vfork_server, two_parts_client, NOSHM},
    {"system_and_popen", system_server, system_client, NOSHM},
    {"the_first_thread_leaves", first_thread_server, first_thread_client, 0},
    {"hundreds_of_processes", hundreds_server, hundreds_client, 0},
    {"a_child_made_past_libc", past_libc_server, past_libc_client, 0},
    {"threads_that_fork", echo_role, threads_client, 0},
    {0},
};
