/* Messages there and back by MPI alone, in a bare loop: what ours are held against.
 *
 * Persistent requests, started and tested, as our transport does. Compiled by `mpicc` of the MPI
 * that runs, when it is asked for. */
#include <mpi.h>
#include <time.h>

static void complete(MPI_Request *request) {
  int is_done = 0;
  MPI_Start(request);
  while (!is_done) MPI_Test(request, &is_done, MPI_STATUS_IGNORE);
}

/* Returns the ns that `num_trips` there and back take; both ranks of the communicator call it. */
long long raw_round_trips_ns(MPI_Fint communicator, char *data, int num_bytes, int num_trips) {
  MPI_Comm comm = MPI_Comm_f2c(communicator);
  MPI_Request send, receive;
  struct timespec begin, end;
  int rank;
  MPI_Comm_rank(comm, &rank);
  MPI_Send_init(data, num_bytes, MPI_BYTE, 1 - rank, 7, comm, &send);
  MPI_Recv_init(data, num_bytes, MPI_BYTE, 1 - rank, 7, comm, &receive);
  MPI_Barrier(comm);
  clock_gettime(CLOCK_MONOTONIC, &begin);
  for (int trip = 0; trip < num_trips; ++trip) {
    complete(rank == 0 ? &send : &receive);
    complete(rank == 0 ? &receive : &send);
  }
  clock_gettime(CLOCK_MONOTONIC, &end);
  MPI_Request_free(&send);
  MPI_Request_free(&receive);
  return (end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec);
}
