// A library that answers one call wrongly, to show that the generator finds it. Once the program
// has called dup3, SO_ERROR is what it is not. Whatever is shrunk to less than the two calls does
// not show it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/socket.h>

static int lies;

int dup3(int from, int to, int flags) {
  int (*real)(int, int, int) = (int (*)(int, int, int))dlsym(RTLD_NEXT, "dup3");
  lies = 1;
  return real(from, to, flags);
}

int getsockopt(int fd, int level, int name, void *value, socklen_t *n) {
  int (*real)(int, int, int, void *, socklen_t *) =
      (int (*)(int, int, int, void *, socklen_t *))dlsym(RTLD_NEXT, "getsockopt");
  int r = real(fd, level, name, value, n);
  if (lies && level == SOL_SOCKET && name == SO_ERROR) *(int *)value = 7;
  return r;
}
