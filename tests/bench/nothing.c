// A library behind ours whose write does nothing: what a call costs then is our hook.
#include <stddef.h>
#include <sys/types.h>
ssize_t write(int fd, const void *b, size_t n);
ssize_t write(int fd, const void *b, size_t n) {
  (void)fd, (void)b;
  return (ssize_t)n;
}
