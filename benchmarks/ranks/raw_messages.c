/* Messages there and back by MPI alone, in bare loops: what ours are held against.
 *
 * Compiled by `mpicc` of the MPI that runs, when it is asked for. */
#include <mpi.h>
#include <time.h>

static void finish(MPI_Request *request) {
  int is_done = 0;
  while (!is_done) MPI_Test(request, &is_done, MPI_STATUS_IGNORE);
}

/* Persistent requests, started and tested, each receive before what it receives: as our transport. */
static void persistent_trips(int rank, MPI_Request *send, MPI_Request *receive, int num_trips) {
  MPI_Start(receive);
  for (int trip = 0; trip < num_trips; ++trip) {
    if (rank == 0) {
      MPI_Start(send);
      finish(send);
    }
    finish(receive);
    if (trip + 1 < num_trips) MPI_Start(receive);
    if (rank != 0) {
      MPI_Start(send);
      finish(send);
    }
  }
}

static void blocking_trips(int rank, char *out, char *in, int num_bytes, int num_trips,
                           MPI_Comm comm) {
  for (int trip = 0; trip < num_trips; ++trip) {
    if (rank == 0) MPI_Send(out, num_bytes, MPI_BYTE, 1, 8, comm);
    MPI_Recv(in, num_bytes, MPI_BYTE, 1 - rank, 8, comm, MPI_STATUS_IGNORE);
    if (rank != 0) MPI_Send(out, num_bytes, MPI_BYTE, 0, 8, comm);
  }
}

/* Returns the ns that `num_trips` there and back take; both ranks of the communicator call it.
 * `out`, `in`: [num_bytes]. */
long long raw_round_trips_ns(MPI_Fint communicator, char *out, char *in, int num_bytes,
                             int num_trips, int is_blocking) {
  MPI_Comm comm = MPI_Comm_f2c(communicator);
  MPI_Request send, receive;
  struct timespec begin, end;
  int rank;
  MPI_Comm_rank(comm, &rank);
  MPI_Send_init(out, num_bytes, MPI_BYTE, 1 - rank, 7, comm, &send);
  MPI_Recv_init(in, num_bytes, MPI_BYTE, 1 - rank, 7, comm, &receive);
  MPI_Barrier(comm);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  if (is_blocking) {
    blocking_trips(rank, out, in, num_bytes, num_trips, comm);
  } else {
    persistent_trips(rank, &send, &receive, num_trips);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  MPI_Request_free(&send);
  MPI_Request_free(&receive);
  return (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
}
