// MPI libraries, and processes, of which a transport cannot be made: each is refused by what it is.
#pragma once

#include <cstdlib>
#include <string>
#include <utility>

#include "parcels.h"
#include "parts/hosts/transports/mpi_transport.h"

namespace heteroplace::test {

using namespace exec;

/*! \brief Libraries that cannot be used are told by what they are. */
inline void ForeignLibrariesAreRefused(const std::string& foreign) {
  const std::string text = ErrorOf([&] { LoadMpiAbi(foreign); });
  CHECK(Contains(text, "is 'Foreign MPI 1.2'"));
  CHECK(Contains(text, foreign));
  CHECK(Contains(text, "expected MPICH, Open MPI"));
  CHECK(Contains(ErrorOf([&] { FindMpi(foreign); }), "Foreign MPI 1.2"));
  CHECK(Contains(ErrorOf([] { LoadMpiAbi("libm.so.6"); }), "no MPI library"));
  CHECK(Contains(ErrorOf([] { LoadMpiAbi("/no/such/libmpi.so"); }), "/no/such/libmpi.so"));
}

/*! \brief What would give wrong ranks, or calls that the library was not begun for. */
inline void UnfitProcessesAreRefused(const std::string& library) {
  MpiOptions options;
  options.library = library;
  options.communicator = LoadMpiAbi(library).comm_world;
  CHECK(Contains(ErrorOf([&] { MakeMpiTransport(options); }), "of another library"));
  int level = -1;
  CHECK_EQ(LoadMpiAbi(library).Init_thread(nullptr, nullptr, /*required=*/0, &level), 0);
  CHECK(Contains(ErrorOf([&] { MakeMpiTransport(options); }), "expected 'serialized'"));
  CHECK_EQ(LoadMpiAbi(library).Finalize(), 0);
  CHECK(Contains(ErrorOf([&] { MakeMpiTransport(options); }), "MPI has ended"));
}

/*! \brief A launcher of another MPI starts processes of which each takes itself for all. */
inline void OtherLaunchersAreRefused(const std::string& library) {
  MpiOptions options;
  options.library = library;
  const std::pair<const char*, const char*> launchers[] = {
      {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"}, {"SLURM_STEP_NUM_TASKS", "PMIX_RANK"}};
  for (const auto& [size, rank] : launchers) {
    setenv(size, "2", 1);
    setenv(rank, "0", 1);
    const std::string text = ErrorOf([&] { MakeMpiTransport(options); });
    CHECK(Contains(text, "the launcher started 2 ranks, of which"));
    unsetenv(size);
    unsetenv(rank);
  }
  CHECK_EQ(MakeMpiTransport(options)->num_ranks(), 1);
  options.communicator = LoadMpiAbi(library).comm_null;
  CHECK(Contains(ErrorOf([&] { MakeMpiTransport(options); }), "MPI_COMM_NULL"));
}

}  // namespace heteroplace::test
