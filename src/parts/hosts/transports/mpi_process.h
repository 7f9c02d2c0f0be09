// MPI in this process: which library, who began it, and one lock for its calls.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "parts/hosts/transports/mpi_abi.h"

namespace heteroplace::exec {

/*! \brief Bytes that MPI may still write to or read; kept until the process ends. */
struct KeptBytes {
  std::array<char, 1024> outgoing = {};
  std::array<char, 1024> incoming = {};
  std::unique_ptr<KeptBytes> next;
};

/*! \brief What all transports of the process share; it lives until the process ends. */
class MpiProcess {
 public:
  /*!
   * \brief Finds the library at the first call, and begins MPI if nobody has.
   * \param library as in MpiOptions.
   * \param has_communicator whether the caller has one of a program that has begun MPI.
   */
  static MpiProcess& Get(const std::string& library, bool has_communicator);

  const MpiAbi& abi() const { return abi_; }

  /*! \brief Guards every call of MPI: it was begun for one thread at a time. */
  std::mutex& mutex() { return mutex_; }

  /*! \brief Throws Error kExecution in a process that was forked from the rank `rank`. */
  void CheckNotForked(int rank) const {
    if (IsForked()) RefuseForked(rank);
  }

  /*! \brief Whether MPI may be called: it has not ended, and this process began it. */
  bool IsUsable() const;

  /*! \brief Whether this process was forked from the one that began MPI, whose ranks it is not. */
  bool IsForked() const;

  /*! \brief Ends MPI when the process exits, as if it had begun it. */
  static void EndWithProcess();

  /*! \brief Lets the process exit without ending MPI, which would wait for ranks that are lost. */
  void LeaveOpen() { is_left_open_ = true; }

  /*! \brief Keeps bytes that MPI has not given back. Needs the lock. */
  void Keep(std::unique_ptr<KeptBytes> bytes);

 private:
  explicit MpiProcess(MpiAbi abi);

  void Begin(bool has_communicator);
  void CheckLauncher() const;
  [[noreturn]] static void RefuseForked(int rank);
  static void EndAtExit();

  const MpiAbi abi_;
  const int num_forks_;
  std::mutex mutex_;
  std::atomic<bool> is_left_open_ = false;
  std::unique_ptr<KeptBytes> kept_;  // guarded by mutex_
};

}  // namespace heteroplace::exec
