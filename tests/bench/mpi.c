// Two processes of MPI: mpi ping|allreduce BYTES SECONDS. Prints "rate N p99 NS": rounds a second,
// and what one takes in nanoseconds.
#include "asks.h"

#include <mpi.h>

enum { TOGETHER = 16 };

static void ping(int rank, char *b, int size) {
  int to = !rank;
  if (rank) MPI_Recv(b, size, MPI_BYTE, to, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  MPI_Send(b, size, MPI_BYTE, to, 0, MPI_COMM_WORLD);
  if (!rank) MPI_Recv(b, size, MPI_BYTE, to, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}
static void allreduce(float *in, float *out, int size) {
  MPI_Allreduce(in, out, size / sizeof *in, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
int main(int argc, char **argv) {
  MPI_Init(&argc, &argv);
  if (argc != 4) return 2;
  int rank, size = atoi(argv[2]), pings = !strcmp(argv[1], "ping"), go = 1;
  double seconds = atof(argv[3]);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  char *a = calloc(1, size), *b = calloc(1, size);
  times t = {0};
  uint64_t began = ns(), now = began, before;
  // The first says after each few whether they go on: both make as many.
  while (go) {
    for (int i = 0; i < TOGETHER; i++) {
      before = now;
      if (pings) ping(rank, a, size);
      else allreduce((float *)a, (float *)b, size);
      took(&t, (now = ns()) - before);
    }
    go = now < began + seconds * 1e9;
    MPI_Bcast(&go, 1, MPI_INT, 0, MPI_COMM_WORLD);
    now = ns();
  }
  if (!rank) told(&t, t.number, now - began);
  return MPI_Finalize();
}
