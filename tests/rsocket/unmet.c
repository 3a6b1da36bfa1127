// Attempts to connect that come to nothing, and connections that nobody accepts. Over a device (tests/vm/rsocket.sh): it is
// RDMA's manager that brings the two together, and RS_ADDRESS is one of an otherwise empty network.
#include "rs.h"

// More connections than the library has places for such that wait to be accepted: peers that are killed before give theirs back.
enum { CROWDS = 11, CROWD = 100 };

static void killed_server(int l) {
  char buf[100];
  nonblock(l, 1);
  for (int i = 0; i < CROWDS; i++) {
    hear('k');
    // By then it is known of all of them.
    nap(500);
    FAILS(raccept(l, NULL, NULL), EAGAIN);
    tell('n');
  }
  nonblock(l, 0);
  int fd = raccept(l, NULL, NULL);
  CHECK(fd >= 0);
  get(fd, buf, sizeof buf);
  verify(buf, sizeof buf, 1, 0);
  put(fd, "!", 1);
  get_eof(fd);
}
static void killed_client(int fd) {
  for (int i = 0; i < CROWDS; i++) {
    int status;
    pid_t crowd = fork();
    if (crowd == 0) {
      for (int n = 0; n < CROWD; n++) dial();
      raise(SIGKILL);
    }
    EQ(waitpid(crowd, &status, 0), crowd);
    CHECK(WIFSIGNALED(status));
    tell('k');
    hear('n');
  }
  char c;
  fd = dial();
  put_stream(fd, 1, 100, 100);
  get(fd, &c, 1);
  EQ(rclose(fd), 0);
}

const rs_case CASES[] = {
    {"killed", killed_server, killed_client, RAW},
    {0},
};
