/*
 * The calls of rsocket(7): sockets whose bytes travel over RDMA, or over shared memory between
 * processes of one host, and never over TCP.
 *
 * Each call behaves as the socket call of the same name without the r. All of them fail with -1 and errno.
 * rsocket(AF_INET or AF_INET6, SOCK_STREAM or SOCK_DGRAM, 0), with SOCK_NONBLOCK and SOCK_CLOEXEC if wanted.
 * Datagrams have at most 2032 bytes (IPv4) or 2020 (IPv6), and travel by UDP until the two sockets have met.
 * Link with -lrsocket.
 */
#ifndef RDMA_RSOCKET_H
#define RDMA_RSOCKET_H

#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- life and names ------------------------------------------------------------------------------------------ */

int rsocket(int domain, int type, int protocol);
int rbind(int fd, const struct sockaddr *address, socklen_t length);
int rlisten(int fd, int backlog);

/* What it gives blocks, whatever the listener does. */
int raccept(int fd, struct sockaddr *address, socklen_t *length);

/* A socket that does not block says EINPROGRESS; rpoll for POLLOUT, then ask for SO_ERROR.
 * ENODEV: no RDMA device leads to that host. */
int rconnect(int fd, const struct sockaddr *address, socklen_t length);

/* Neither waits: what was accepted for sending is in the peer's memory already, or is sent over RDMA afterwards.
 * SO_LINGER makes rclose wait for that. */
int rshutdown(int fd, int how);
int rclose(int fd);

int rgetpeername(int fd, struct sockaddr *address, socklen_t *length);
int rgetsockname(int fd, struct sockaddr *address, socklen_t *length);

/* ---- bytes --------------------------------------------------------------------------------------------------- */

/* Flags: MSG_PEEK, MSG_WAITALL, MSG_DONTWAIT, MSG_TRUNC. */
ssize_t rrecv(int fd, void *buffer, size_t size, int flags);
ssize_t rrecvfrom(int fd, void *buffer, size_t size, int flags, struct sockaddr *from, socklen_t *from_length);
ssize_t rrecvmsg(int fd, struct msghdr *message, int flags);
ssize_t rread(int fd, void *buffer, size_t size);
ssize_t rreadv(int fd, const struct iovec *list, int count);

/* Flags: MSG_DONTWAIT, MSG_NOSIGNAL, MSG_MORE. EMSGSIZE: the datagram is too long. A stream whose peer has gone raises SIGPIPE,
 * as TCP does. */
ssize_t rsend(int fd, const void *buffer, size_t size, int flags);
ssize_t rsendto(int fd, const void *buffer, size_t size, int flags, const struct sockaddr *to, socklen_t to_length);
ssize_t rsendmsg(int fd, const struct msghdr *message, int flags);
ssize_t rwrite(int fd, const void *buffer, size_t size);
ssize_t rwritev(int fd, const struct iovec *list, int count);

/* ---- direct placement ---------------------------------------------------------------------------------------- */

/* Lets the peer write to size bytes of this process's memory, at an offset of the connection that both programs know, or of
 * riomap's choice if offset is -1. prot is PROT_WRITE, or PROT_NONE for memory that the peer may not write; flags are
 * ignored. Gives the offset. The peer finds the mapping once it has received something that was sent after riomap. The
 * memory must stay until riounmap or the last rclose here. A peer takes no mappings unless it has set RDMA_IOMAPSIZE.
 *
 * EINVAL: no bytes, 4 GiB or more, another prot, an offset below 0. EFAULT: memory that cannot be written. EEXIST: some of
 * these offsets are mapped already. ENOMEM: the peer takes no more mappings, or no more memory can be pinned. */
off_t riomap(int fd, void *buffer, size_t size, int prot, int flags, off_t offset);

/* Takes a mapping back, by the same buffer and size; EINVAL if there is none. Nothing is written there any more. */
int riounmap(int fd, void *buffer, size_t size);

/* Writes to the peer's mapping that has this offset, and on into mappings that follow without a gap; gives how many bytes. The
 * peer's program is not told; but when it receives what was sent afterwards, the bytes are in place. Otherwise like rwrite.
 * Flags: MSG_DONTWAIT, MSG_NOSIGNAL. EFAULT: the peer has no mapping there (now). Fails with (size_t) -1. */
size_t riowrite(int fd, const void *buffer, size_t size, off_t offset, int flags);

/* ---- waiting, for rsockets and any other descriptors together ------------------------------------------------ */

int rpoll(struct pollfd *fds, nfds_t count, int timeout_ms);

/* Leaves in *timeout what was not waited, as Linux does. */
int rselect(int nfds, fd_set *readfds, fd_set *writefds, fd_set *exceptfds, struct timeval *timeout);

/* A set of rsockets and any other descriptors, as epoll_create1, epoll_ctl and epoll_wait have it: edge triggered, one
 * shot and exclusive members too. Flags: EPOLL_CLOEXEC, and O_NONBLOCK, which changes nothing. rclose ends it. */
int repoll_create(int flags);
int repoll_ctl(int set, int operation, int fd, struct epoll_event *event);
int repoll_wait(int set, struct epoll_event *events, int most, int timeout_ms);

/* ---- options ------------------------------------------------------------------------------------------------- */

int rsetsockopt(int fd, int level, int name, const void *value, socklen_t length);
int rgetsockopt(int fd, int level, int name, void *value, socklen_t *length);

/* F_GETFL, F_SETFL, F_GETFD, F_SETFD, F_DUPFD, F_DUPFD_CLOEXEC. */
int rfcntl(int fd, int command, ...);

#ifndef SOL_RDMA
#define SOL_RDMA 0x10000
#endif

/* Options of SOL_RDMA, each an int, to be set before the socket connects; a listener's go to what it accepts. */
enum {
    RDMA_SQSIZE = 0,    /* entries of the send queue */
    RDMA_RQSIZE = 1,    /* entries of the receive queue */
    RDMA_INLINE = 2,    /* bytes that are sent inline */
    RDMA_IOMAPSIZE = 3, /* mappings that the peer may announce: none by default, at most 1024 */
    RDMA_ROUTE = 4      /* not supported: ENOTSUP */
};

#ifdef __cplusplus
}
#endif

#endif
