// MPI in this process: which library, who began it, and one lock for its calls.
//
// The ranks of a machine share memory with queues of messages. A rank that is killed in the middle
// of a write leaves a queue half written. The next MPI call of another rank may then poll that
// queue and never return (MPICH). No thread can interrupt such a call, so the process ends.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
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

  /*! \brief Held for every call of MPI: it was begun for one thread at a time. */
  std::unique_lock<std::mutex> Lock() {
    std::unique_lock<std::mutex> lock(mutex_);
    num_locks_.fetch_add(1);
    return lock;
  }

  /*! \brief From now on ends the process if a call of MPI does not return: after a failure that
   * has been told. Any thread. */
  void EndIfHung() noexcept;

  /*! \brief Lives while a call waits for ranks that may come late. Needs the lock. */
  class LongCall {
   public:
    explicit LongCall(MpiProcess* process) : process_(process) { process_->is_long_ = true; }
    ~LongCall() { process_->is_long_ = false; }
    LongCall(const LongCall&) = delete;
    LongCall& operator=(const LongCall&) = delete;

   private:
    MpiProcess* const process_;
  };

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
  [[noreturn]] void LookForHang();

  const MpiAbi abi_;
  const int num_forks_;
  std::mutex mutex_;
  std::atomic<int64_t> num_locks_ = 0;
  std::atomic<bool> is_left_open_ = false;
  std::atomic<bool> is_long_ = false;     // a LongCall lives
  std::atomic<bool> is_looking_ = false;  // for calls that do not return
  std::unique_ptr<KeptBytes> kept_;       // guarded by mutex_
};

}  // namespace heteroplace::exec
