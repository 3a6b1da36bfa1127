// The same calls of the kernel's sockets: a case that fails there, where it is the specification,
// is a wrong test.
#ifndef PLAIN_H
#define PLAIN_H
#include <poll.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/types.h>
#include <sys/uio.h>
#define rsocket socket
#define rbind bind
#define rlisten listen
#define raccept accept
#define rconnect connect
#define rshutdown shutdown
#define rclose close
#define rgetpeername getpeername
#define rgetsockname getsockname
#define rrecv recv
#define rrecvfrom recvfrom
#define rrecvmsg recvmsg
#define rread read
#define rreadv readv
#define rsend send
#define rsendto sendto
#define rsendmsg sendmsg
#define rwrite write
#define rwritev writev
#define rpoll poll
#define rselect select
#define rsetsockopt setsockopt
#define rgetsockopt getsockopt
#define rfcntl fcntl
#define repoll_create epoll_create1
#define repoll_ctl epoll_ctl
#define repoll_wait epoll_wait
#endif
