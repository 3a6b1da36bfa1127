// What upstream's library gets wrong about direct placement, one case for each row of the list of
// its gaps, section 8.
#include "placing.h"

// 8.1 A write that runs past the end of a mapping never comes back.
static void past_server(int l) {
  static unsigned char a[1000], b[1000];
  int fd = take(l, 2);
  EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 0), 0);
  EQ(riomap(fd, b, sizeof b, PROT_WRITE, 0, 5000), 5000);
  say(fd, 'm');
  wait_for(fd, 'w');
  for (int i = 0; i < 20; i++) EQ(a[980 + i], (unsigned char)(i + 1));
  for (size_t i = 0; i < sizeof b; i++) EQ(b[i], 0);
  say(fd, 'e');
  get_eof(fd);
}
static void gap_8_01_past_the_end(int none) {
  unsigned char out[2000];
  (void)none;
  int fd = dial_with(2, 0);
  wait_for(fd, 'm');
  for (size_t i = 0; i < sizeof out; i++) out[i] = (unsigned char)(i + 1);
  for (int i = 0; i < 50; i++) {
    EQ(riowrite(fd, out, sizeof out, 980, 0), 20);
    FAILS(riowrite(fd, out, sizeof out, 1000, 0), EFAULT);
    FAILS(riowrite(fd, out, 1, 6000, 0), EFAULT);
  }
  say(fd, 'w');
  wait_for(fd, 'e');
  EQ(rclose(fd), 0);
}

// 8.2 The peer is not told of riounmap, and its next write breaks the connection.
static void unmapped_server(int l) {
  static unsigned char a[1000];
  int fd = take(l, 1);
  for (int i = 0; i < 10; i++) {
    EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 0), 0);
    say(fd, 'm');
    wait_for(fd, 'w');
    EQ(a[7], (unsigned char)i);
    EQ(riounmap(fd, a, sizeof a), 0);
    a[7] = 99;
    say(fd, 'u');
    wait_for(fd, 'f');
    EQ(a[7], 99);
  }
  get_eof(fd);
}
static void gap_8_02_unmapping_is_told(int none) {
  (void)none;
  int fd = dial_with(1, 0);
  for (int i = 0; i < 10; i++) {
    unsigned char c = (unsigned char)i;
    wait_for(fd, 'm');
    EQ(riowrite(fd, &c, 1, 7, 0), 1);
    say(fd, 'w');
    wait_for(fd, 'u');
    FAILS(riowrite(fd, "x", 1, 7, 0), EFAULT);
    say(fd, 'f');
  }
  EQ(rclose(fd), 0);
}

// 8.3 A write where nothing is mapped says that nothing was written, not why.
static void nowhere_server(int l) {
  static unsigned char a[100];
  int fd = take(l, 4);
  say(fd, 'm');
  wait_for(fd, 'w');
  EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 1 << 20), 1 << 20);
  say(fd, 'm');
  get_eof(fd);
}
static void gap_8_03_nowhere_is_an_error(int none) {
  (void)none;
  int fd = dial_with(4, 0);
  wait_for(fd, 'm');
  FAILS(riowrite(fd, "x", 1, 0, 0), EFAULT);
  say(fd, 'w');
  wait_for(fd, 'm');
  FAILS(riowrite(fd, "x", 1, 0, 0), EFAULT);
  FAILS(riowrite(fd, "x", 1, (1 << 20) - 1, 0), EFAULT);
  FAILS(riowrite(fd, "x", 1, (1 << 20) + 100, 0), EFAULT);
  EQ(riowrite(fd, "x", 1, (1 << 20) + 99, 0), 1);
  EQ(rclose(fd), 0);
}

// 8.4 Two mappings can overlap, and the first is found.
static void overlap_server(int l) {
  static unsigned char a[1000], b[1000];
  int fd = take(l, 3);
  EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, 10000), 10000);
  const off_t wrong[] = {9001, 9500, 10000, 10001, 10999};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) FAILS(riomap(fd, b, sizeof b, PROT_WRITE, 0, wrong[i]), EEXIST);
  FAILS(riomap(fd, b, 10, PROT_WRITE, 0, 10500), EEXIST);
  EQ(riomap(fd, b, sizeof b, PROT_WRITE, 0, 9000), 9000);
  EQ(riounmap(fd, b, sizeof b), 0);
  EQ(riomap(fd, b, sizeof b, PROT_WRITE, 0, 11000), 11000);
  say(fd, 'm');
  wait_for(fd, 'w');
  EQ(a[999], 'x');
  EQ(b[0], 'y');
  say(fd, 'e');
  get_eof(fd);
}
static void gap_8_04_overlaps_are_refused(int none) {
  (void)none;
  int fd = dial_with(3, 0);
  wait_for(fd, 'm');
  EQ(riowrite(fd, "xy", 2, 10999, 0), 2);
  say(fd, 'w');
  wait_for(fd, 'e');
  EQ(rclose(fd), 0);
}

// 8.5 Publishing eats credits; sizes are misread: 256 is none, 300 is 172, of which 128 are said.
static void publish_server(int l) {
  static unsigned char a[100];
  set_option(l, SOL_RDMA, RDMA_RQSIZE, 16);
  int fd = take(l, 1);
  for (int i = 0; i < 100; i++) {
    EQ(riomap(fd, a, sizeof a, PROT_WRITE, 0, i), i);
    say(fd, 'm');
    wait_for(fd, 'm');
    EQ(riounmap(fd, a, sizeof a), 0);
  }
}
static void gap_8_05_publishing_costs_nothing(int none) {
  (void)none;
  int fd = dial_with(1, 16);
  for (int i = 0; i < 100; i++) {
    wait_for(fd, 'm');
    EQ(riowrite(fd, "x", 1, i, 0), 1);
    say(fd, 'm');
  }
  EQ(rclose(fd), 0);
}
enum { MANY = 256 };
static void sizes_server(int l) {
  static unsigned char a[MANY];
  int fd = take(l, MANY);
  EQ(option(fd, SOL_RDMA, RDMA_IOMAPSIZE), MANY);
  for (int i = 0; i < MANY; i++) EQ(riomap(fd, a + i, 1, PROT_WRITE, 0, i * 1000), i * 1000);
  char one_more;
  FAILS(riomap(fd, &one_more, 1, PROT_WRITE, 0, MANY * 1000), ENOMEM);
  say(fd, 'm');
  wait_for(fd, 'w');
  for (int i = 0; i < MANY; i++) EQ(a[i], (unsigned char)(i + 1));
  say(fd, 'e');
  get_eof(fd);
}
static void gap_8_05_sizes_are_what_they_say(int none) {
  (void)none;
  int fd = dial_with(300, 0);
  EQ(option(fd, SOL_RDMA, RDMA_IOMAPSIZE), 256);  // what the byte that says it can say
  wait_for(fd, 'm');
  for (int i = MANY - 1; i >= 0; i--) {
    unsigned char c = (unsigned char)(i + 1);
    EQ(riowrite(fd, &c, 1, i * 1000, 0), 1);
  }
  say(fd, 'w');
  wait_for(fd, 'e');
  EQ(rclose(fd), 0);
}

// 8.6 What is no connected stream is hardly checked.
static void gap_8_06_only_connected_streams(int l) {
  static char a[100];
  int udp = rsocket(family, SOCK_DGRAM, 0), fresh = rsocket(family, SOCK_STREAM, 0), ends[2];
  CHECK(udp >= 0 && fresh >= 0 && pipe(ends) == 0);
  struct { int fd, map, write; } wrong[] = {
      {l, ENOTCONN, ENOTCONN}, {fresh, ENOTCONN, ENOTCONN}, {udp, ENOTCONN, ENOTCONN},
      {ends[0], EBADF, EBADF}, {-1, EBADF, EBADF}, {1 << 20, EBADF, EBADF},
  };
  for (int round = 0; round < 3; round++)
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
      FAILS(riomap(wrong[i].fd, a, sizeof a, PROT_WRITE, 0, 0), wrong[i].map);
      FAILS(riowrite(wrong[i].fd, a, sizeof a, 0, 0), wrong[i].write);
      CHECK(riounmap(wrong[i].fd, a, sizeof a) == -1);
    }
  EQ(rclose(udp), 0);
  EQ(rclose(fresh), 0);
}

// 8.7 Nothing tells the receiver of a write but a message behind it: the receiver that has the
// message has all bytes before it.
static void told_server(int l) {
  static unsigned char in[100000];
  int fd = take(l, 1);
  EQ(riomap(fd, in, sizeof in, PROT_WRITE, 0, 0), 0);
  say(fd, 'm');
  for (int i = 0; i < 30; i++) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    EQ(rpoll(&p, 1, 20000), 1);  // the write alone is no news; the message is
    wait_for(fd, 'w');
    verify(in, sizeof in, i, 0);
    say(fd, 'n');
  }
  get_eof(fd);
}
static void gap_8_07_a_message_tells(int none) {
  static unsigned char out[100000];
  (void)none;
  int fd = dial_with(1, 0);
  wait_for(fd, 'm');
  for (int i = 0; i < 30; i++) {
    fill(out, sizeof out, i, 0);
    place(fd, out, sizeof out, 0);
    say(fd, 'w');
    wait_for(fd, 'n');
  }
  EQ(rclose(fd), 0);
}

const rs_case CASES[] = {
    {"gap_8_01_past_the_end", past_server, gap_8_01_past_the_end, RAW},
    {"gap_8_02_unmapping_is_told", unmapped_server, gap_8_02_unmapping_is_told, RAW},
    {"gap_8_03_nowhere_is_an_error", nowhere_server, gap_8_03_nowhere_is_an_error, RAW},
    {"gap_8_04_overlaps_are_refused", overlap_server, gap_8_04_overlaps_are_refused, RAW},
    {"gap_8_05_publishing_costs_nothing", publish_server, gap_8_05_publishing_costs_nothing, RAW},
    {"gap_8_05_sizes_are_what_they_say", sizes_server, gap_8_05_sizes_are_what_they_say, RAW},
    {"gap_8_06_only_connected_streams", gap_8_06_only_connected_streams, NULL, SOLO},
    {"gap_8_07_a_message_tells", told_server, gap_8_07_a_message_tells, RAW},
    {0},
};
