// A process on the peer's host that would have RDMA beside a TCP connection without being at its
// other end.
//
//   forge ADDRESS PORT     a server of orders (talk.py) that has the library
//
// Makes a TCP connection of its own without the library, so that the server waits to be asked for
// it. Then it asks over RDMA with wrong proofs and with requests of other lengths. Each must be
// refused and the TCP connection go on. One line for each; ends with 1 if any was granted.
#include <arpa/inet.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void need(int good, const char *what) {
	if (!good) {
		perror(what);
		exit(2);
	}
}

static void all(int fd, char *bytes, size_t n, int out) {
	for (size_t done = 0; done < n;) {
		ssize_t r = out ? write(fd, bytes + done, n - done) : read(fd, bytes + done, n - done);
		need(r > 0, out ? "write" : "read");
		done += (size_t)r;
	}
}

// Bytes there and back, compared.
static void echo(int fd) {
	char out[4096], back[4096];
	const char *order = "echo 4096\n";
	memset(out, 'x', sizeof out);
	all(fd, (char *)order, strlen(order), 1);
	all(fd, out, sizeof out, 1);
	all(fd, back, sizeof back, 0);
	need(memcmp(out, back, sizeof out) == 0, "echo");
}

// The next event, or -1 after ten seconds.
static int next(struct rdma_event_channel *channel, struct rdma_cm_event **event) {
	struct pollfd p = {.fd = channel->fd, .events = POLLIN};
	if (poll(&p, 1, 10000) != 1) return -1;
	need(rdma_get_cm_event(channel, event) == 0, "event");
	return (int)(*event)->event;
}

static int expect(struct rdma_event_channel *channel, int wanted) {
	struct rdma_cm_event *event;
	int got = next(channel, &event);
	if (got >= 0) rdma_ack_cm_event(event);
	return got == wanted;
}

// What upstream would send: a table and a buffer at some address.
static void offer(uint8_t *to) {
	const uint8_t head[4] = {1, 0, 0x01, 0x80};
	memset(to, 0, 40);
	memcpy(to, head, sizeof head);
	to[23] = 2;
	to[38] = 1;
}

// Asks with this private data: whether it was refused.
static int refused(struct sockaddr_in *to, const uint8_t *private, uint8_t len) {
	struct rdma_event_channel *channel = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr qp = {.cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct rdma_conn_param with = {.private_data = private, .private_data_len = len, .retry_count = 6, .rnr_retry_count = 7};
	struct rdma_cm_event *event;
	need(channel && rdma_create_id(channel, &id, NULL, RDMA_PS_TCP) == 0, "id");
	need(rdma_resolve_addr(id, NULL, (struct sockaddr *)to, 2000) == 0, "resolve");
	need(expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED), "address");
	need(rdma_resolve_route(id, 2000) == 0 && expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED), "route");
	need(rdma_create_qp(id, NULL, &qp) == 0 && rdma_connect(id, &with) == 0, "connect");
	int got = next(channel, &event);
	int there = got == RDMA_CM_EVENT_REJECTED;
	// 8: no process listens there, which proves nothing.
	if (there && event->status == 8) there = -1;
	if (got >= 0) rdma_ack_cm_event(event);
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
	rdma_destroy_event_channel(channel);
	return there;
}

int main(int argc, char **argv) {
	struct sockaddr_in to = {.sin_family = AF_INET}, own;
	socklen_t size = sizeof own;
	uint8_t request[56], noise[56];
	int bad = 0, fd = socket(AF_INET, SOCK_STREAM, 0);
	need(argc == 3, "arguments");
	inet_pton(AF_INET, argv[1], &to.sin_addr);
	to.sin_port = htons((uint16_t)atoi(argv[2]));
	need(connect(fd, (struct sockaddr *)&to, sizeof to) == 0, "tcp");
	need(getsockname(fd, (struct sockaddr *)&own, &size) == 0, "name");
	for (int i = 0; i < 20; i++) echo(fd);
	offer(request);
	memcpy(request + 40, "rA", 2);
	memcpy(request + 42, &own.sin_port, 2);
	memcpy(request + 44, &to.sin_port, 2);
	struct {
		const char *what;
		uint8_t seen[2], len;
	} cases[] = {
		{"a guessed proof", {128, 128}, 56}, {"a proof of nothing", {0, 0}, 56}, {"more than can be seen", {255, 255}, 56},
		{"half an extension", {0, 0}, 48}, {"half an offer", {0, 0}, 17}, {"nothing", {0, 0}, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		memcpy(request + 46, cases[i].seen, 2);
		memset(request + 48, (int)(0x5a + i), 8);
		int r = refused(&to, request, cases[i].len);
		printf("%s: %s\n", cases[i].what, r == 1 ? "refused" : r == 0 ? "granted" : "nobody listens");
		bad |= r != 1;
	}
	memset(noise, 0xff, sizeof noise);
	int r = refused(&to, noise, sizeof noise);
	printf("noise: %s\n", r == 1 ? "refused" : r == 0 ? "granted" : "nobody listens");
	bad |= r != 1;
	for (int i = 0; i < 5; i++) echo(fd);
	printf("the TCP connection goes on\n");
	return bad;
}
