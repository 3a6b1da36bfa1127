// Connections in numbers: two hundred in turn, and 64 at a time under one epoll set at each end.
#include "sem.h"

static void requests_server(int lfd) {
  for (int i = 0; i < 200; i++) {
    int fd = accept(lfd, NULL, NULL);
    CHECK(fd >= 0);
    char b[100];
    get(fd, b, 50);
    verify(b, 50, i, 0);
    put_stream(fd, i, 0, 1000 + i * 10, 500);
    close(fd);
  }
  SAME(count_fds("/memfd:") < 5, 1);
}
static void requests_client(int fd) {
  for (int i = 0; i < 200; i++) {
    char b[50];
    fd = dial();
    fill(b, 50, i, 0);
    put(fd, b, 50);
    get_stream(fd, i, 0, 1000 + i * 10, 3000);
    get_eof(fd);
    close(fd);
  }
}
enum { CONNS = 64, MSGS = 150, MAX = 20000 };
typedef struct {
  int fd, msg;
  size_t len, sent, got;
  uint64_t r;
  char b[MAX];
} conn;
static void swarm_server(int lfd) {
  static char b[CONNS + 200][30000];
  static size_t len[CONNS + 200], off[CONNS + 200];
  int ep = epoll_create1(EPOLL_CLOEXEC), closed = 0;
  struct epoll_event e = {.events = EPOLLIN, .data.fd = lfd}, v[16];
  nonblock(lfd, 1);
  CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, lfd, &e));
  while (closed < CONNS) {
    int n = epoll_wait(ep, v, 16, 15000);
    CHECK(n > 0);
    for (int i = 0; i < n; i++) {
      int fd = v[i].data.fd;
      if (fd == lfd) {
        while ((fd = accept4(lfd, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
          CHECK(fd < CONNS + 200);
          e = (struct epoll_event){.events = EPOLLIN, .data.fd = fd};
          CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, fd, &e));
          len[fd] = off[fd] = 0;
        }
        CHECK(errno == EAGAIN);
        continue;
      }
      if (len[fd] == off[fd]) {
        ssize_t k = recv(fd, b[fd], sizeof b[fd], 0);
        if (k == 0) {
          close(fd);
          closed++;
          continue;
        }
        CHECK(k > 0);
        len[fd] = k, off[fd] = 0;
      }
      ssize_t k = send(fd, b[fd] + off[fd], len[fd] - off[fd], MSG_NOSIGNAL);
      CHECK(k > 0 || errno == EAGAIN);
      if (k > 0) off[fd] += k;
      e = (struct epoll_event){.events = off[fd] < len[fd] ? EPOLLOUT : EPOLLIN, .data.fd = fd};
      CHECK(!epoll_ctl(ep, EPOLL_CTL_MOD, fd, &e));
    }
  }
}
static void next_message(conn *c, int i) {
  c->len = rnd(&c->r) % 8 ? 1 + rnd(&c->r) % 600 : 1 + rnd(&c->r) % MAX;
  c->sent = c->got = 0;
  fill(c->b, c->len, i * 1000 + c->msg, 0);
}
static void swarm_client(int none) {
  (void)none;
  conn *c = calloc(CONNS, sizeof *c);
  static char b[MAX];
  int ep = epoll_create1(EPOLL_CLOEXEC), open = CONNS;
  for (int i = 0; i < CONNS; i++) {
    c[i].fd = dial();
    c[i].r = i * 10007;
    nonblock(c[i].fd, 1);
    next_message(&c[i], i);
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.u32 = i};
    CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, c[i].fd, &e));
  }
  while (open) {
    struct epoll_event v[16];
    int n = epoll_wait(ep, v, 16, 15000);
    if (n <= 0) FAIL("%d connections wait for ever", open);
    for (int j = 0; j < n; j++) {
      int i = v[j].data.u32;
      conn *x = &c[i];
      for (int moved = 1; moved && x->fd >= 0;) {
        moved = 0;
        if (x->sent < x->len) {
          ssize_t k = send(x->fd, x->b + x->sent, x->len - x->sent, 0);
          CHECK(k > 0 || errno == EAGAIN);
          if (k > 0) x->sent += k, moved = 1;
        }
        ssize_t k = recv(x->fd, b, sizeof b, 0);
        CHECK(k > 0 || (k < 0 && errno == EAGAIN));
        if (k > 0) {
          moved = 1;
          CHECK(x->got + k <= x->len);
          verify(b, k, i * 1000 + x->msg, x->got);
          x->got += k;
          if (x->got == x->len) {
            if (++x->msg == MSGS) {
              close(x->fd);
              x->fd = -1;
              open--;
            } else
              next_message(x, i);
          }
        }
      }
    }
  }
}

const test_case CASES[] = {
    {"requests_200", requests_server, requests_client, RAW},
    {"epoll_64_connections", swarm_server, swarm_client, RAW},
    {0},
};
