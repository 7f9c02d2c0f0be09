// The functions of an MPI library, found at run time: no build needs MPI, and one build takes any.
//
// Sources of the values: mpi.h of MPICH 3 to 5 (the common ABI of its family), mpi.h of Open MPI 2
// to 5, and chapter "Application Binary Interface" of the MPI standard 5.0.
#pragma once

#include <array>
#include <cstdint>
#include <string>

namespace heteroplace::exec {

/*!
 * \brief A communicator, request, datatype or error handler: an int in MPICH, else a pointer.
 *
 * Passed by value, an int takes the low half of the register of a pointer, of which nobody reads
 * the rest; passed by address, it is written into the low half of a variable that was 0. That holds
 * on little-endian processors, so there are no arrays of handles here.
 */
using MpiHandle = uintptr_t;

/*! \brief Bytes for an MPI_Status of any library (20 in MPICH, 24 in Open MPI, 32 in the ABI). */
struct alignas(16) MpiStatus {
  std::array<char, 64> bytes;
};

/*! \brief One library. Functions are MPI's own, without the prefix MPI_, and return its codes. */
struct MpiAbi {
  int (*Get_library_version)(char* text, int* length);
  int (*Initialized)(int* flag);
  int (*Finalized)(int* flag);
  int (*Init_thread)(int* argc, char*** argv, int required, int* provided);
  int (*Query_thread)(int* provided);
  int (*Finalize)();
  int (*Error_string)(int code, char* text, int* length);
  int (*Comm_dup)(MpiHandle communicator, MpiHandle* out);
  int (*Comm_free)(MpiHandle* communicator);
  int (*Comm_rank)(MpiHandle communicator, int* rank);
  int (*Comm_size)(MpiHandle communicator, int* size);
  int (*Comm_test_inter)(MpiHandle communicator, int* flag);
  int (*Comm_set_errhandler)(MpiHandle communicator, MpiHandle handler);
  int (*Comm_get_attr)(MpiHandle communicator, int key, void* value, int* flag);
  int (*Send_init)(const void* data, int count, MpiHandle type, int peer, int tag,
                   MpiHandle communicator, MpiHandle* request);
  int (*Recv_init)(void* data, int count, MpiHandle type, int peer, int tag, MpiHandle communicator,
                   MpiHandle* request);
  int (*Start)(MpiHandle* request);
  int (*Test)(MpiHandle* request, int* flag, MpiStatus* status);
  int (*Cancel)(MpiHandle* request);
  int (*Request_free)(MpiHandle* request);
  int (*Get_count)(const MpiStatus* status, MpiHandle type, int* count);

  MpiHandle comm_world;
  MpiHandle comm_null;
  MpiHandle byte;
  MpiHandle errors_return;
  /*! \brief Key of the largest tag. */
  int tag_ub;
  int any_source;
  int thread_serialized;

  /*! \brief Where the library is, or "this process". */
  std::string path;
  /*! \brief "MPICH 5.0.2", "Open MPI 5.0.11", "MPICH 5.0.2 by the ABI of MPI 5". */
  std::string name;

  /*! \brief Throws Error kExecution "WHAT: NAME says: ..." unless the code is that of success. */
  void Check(int code, const std::string& what) const;
};

/*!
 * \brief Finds the functions of an MPI library, and what its handles are.
 * \param path of the library, which stays loaded; "": the program itself has them.
 * \throws Error kExecution: no such file, no MPI library, or one that is neither MPICH, nor Open
 *         MPI, nor follows the ABI of MPI 5; it is told by the name that it gives itself.
 */
MpiAbi LoadMpiAbi(const std::string& path);

/*!
 * \brief Finds the MPI library of this process, or one for it.
 *
 * In this order: the given path, and no other; a library that is loaded already, as mpi4py does; by
 * the names libmpi.so.12 (MPICH), libmpi.so.40 (Open MPI) and libmpi_abi.so.1 (any), first that of
 * the launcher, in the folder `lib` of the environment around this code and where the loader looks.
 * \param given "" if none is.
 * \throws Error kExecution: where it was looked for, and what the loader said of each.
 */
MpiAbi FindMpi(const std::string& given);

/*! \brief How many ranks the launcher of this process says that it has started; 1: no launcher. */
int LaunchedRanks();

/*! \brief Whether this is rank 0 of those, or there is no launcher: the one to say what all would
 * say before they meet. */
bool IsFirstLaunched();

}  // namespace heteroplace::exec
