/* Standard descriptors that are closed at the start: the sockets take their numbers, and no other
 * file does. Reports by its exit code alone. */
#include "net.h"
#include <fcntl.h>

int main(void) {
    int tcp[2];
    MUST(fcntl(0, F_GETFD) < 0 && fcntl(1, F_GETFD) < 0 && fcntl(2, F_GETFD) < 0);
    tcp_pair(tcp);
    if (tcp[0] != 1 || tcp[1] != 2) return 3;
    talk(tcp);
    close(tcp[0]);
    close(tcp[1]);
    if (socket(AF_INET, SOCK_STREAM, 0) != 0) return 4;
    return 42;
}
