// Include it last. With -DRSOCKET the program's socket calls are those of rsocket(7); its other
// descriptors must not use them.
#ifdef RSOCKET
#include <rdma/rsocket.h>
#define socket rsocket
#define bind rbind
#define listen rlisten
#define accept raccept
#define connect rconnect
#define getsockname rgetsockname
#define setsockopt rsetsockopt
#define send rsend
#define recv rrecv
#define close rclose
#endif
