/* Calls hooks before any constructor of any library ran (.preinit_array), from a constructor, from
 * main, and from an exit handler and a destructor. */
#include "net.h"

static int tcp[2];

static void preinit(void) {
    tcp_pair(tcp);
    talk(tcp);
    MUST(write(1, "preinit\n", 8) == 8);
}
__attribute__((section(".preinit_array"), used)) static void (*const first)(void) = preinit;

__attribute__((constructor(101))) static void constructor(void) {
    talk(tcp);
    MUST(write(1, "constructor\n", 12) == 12);
}

static void at_exit(void) {
    talk(tcp);
    MUST(write(1, "exit\n", 5) == 5);
}

__attribute__((destructor)) static void destructor(void) {
    talk(tcp);
    close(tcp[0]);
    MUST(write(1, "destructor\n", 11) == 11);
}

int main(void) {
    atexit(at_exit);
    talk(tcp);
    MUST(write(1, "main\n", 5) == 5);
    return 0;
}
