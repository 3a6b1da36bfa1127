/* A vfork child runs in its parent's memory but has descriptors of its own: what it closes and
 * duplicates must not touch what the parent has. */
#include "net.h"
#include <fcntl.h>
#include <sys/wait.h>

int main(void) {
    int tcp[2], status;
    tcp_pair(tcp);
    talk(tcp);
    for (int round = 0; round < 3; round++) {
        pid_t child = vfork();
        if (child == 0) {
            close(tcp[0]);
            dup2(2, tcp[1]);
            int fd;
            do fd = socket(AF_INET, SOCK_STREAM, 0);
            while (fd >= 0 && fd < tcp[0]);
            if (fd != tcp[0]) _exit(1);
            close(fd);
            if (round == 1) close_range(3, ~0U, 0);
            if (round == 2) closefrom(3);
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        MUST(child > 0 && waitpid(child, &status, 0) == child && status == 0);
        talk(tcp);
    }
    MUST(close(tcp[0]) == 0);
    char b;
    MUST(read(tcp[1], &b, 1) == 0);
    puts("the parent's connection stood");
    return 0;
}
