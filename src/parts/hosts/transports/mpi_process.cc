#include "parts/hosts/transports/mpi_process.h"

#include <pthread.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <system_error>
#include <thread>
#include <utility>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Forks between the first process that asked and this one. */
std::atomic<int>& NumForks() {
  static std::atomic<int> count = 0;
  // Once in a process: handlers stay for ever. The count is 0 in all until the first asks.
  [[maybe_unused]] static const int installed =
      pthread_atfork(nullptr, nullptr, [] { NumForks().fetch_add(1); });
  return count;
}

/*! \brief The one of this process. Never destroyed: messages outlive the end of main. */
struct SharedMpi {
  std::mutex mutex;
  std::unique_ptr<MpiProcess> process;  // guarded by mutex until it is made
};

SharedMpi& Shared() {
  static SharedMpi* const shared = new SharedMpi;
  return *shared;
}

/*! \brief A call of MPI that takes longer after a failure never returns. */
constexpr std::chrono::seconds kHung(2);

/*! \brief What a process ends with whose calls of MPI do not return: `heteroplace-run`'s code of a
 * job that failed. */
constexpr int kHungCode = 6;

constexpr char kHowToRaise[] =
    "; before mpi4py is imported, say mpi4py.rc.thread_level = 'serialized', or nothing, as "
    "'multiple' is what it takes itself; in C, call MPI_Init_thread";

}  // namespace

MpiProcess::MpiProcess(MpiAbi abi) : abi_(std::move(abi)), num_forks_(NumForks()) {}

MpiProcess& MpiProcess::Get(const std::string& library, bool has_communicator) {
  SharedMpi& shared = Shared();
  std::scoped_lock lock(shared.mutex);
  if (shared.process == nullptr) {
    std::unique_ptr<MpiProcess> process(new MpiProcess(FindMpi(library)));
    process->Begin(has_communicator);
    shared.process = std::move(process);
    return *shared.process;
  }
  MpiProcess& process = *shared.process;
  if (process.IsForked()) {
    throw Error(ErrorKind::kExecution,
                "MPI began before this process was forked, which is no rank of its job; load the "
                "file in the process that the launcher started, or fork first");
  }
  if (!library.empty() && LoadMpiAbi(library).Init_thread != process.abi_.Init_thread) {
    throw Error(ErrorKind::kExecution, "this process has begun " + process.abi_.name + " ('" +
                                           process.abi_.path + "'); '" + library +
                                           "' is another library of MPI");
  }
  process.Begin(has_communicator);
  return process;
}

void MpiProcess::Begin(bool has_communicator) {
  int flag = 0;
  abi_.Check(abi_.Finalized(&flag), "whether MPI has ended");
  if (flag != 0) {
    throw Error(ErrorKind::kExecution,
                "MPI has ended in this process (MPI_Finalize); load before it does");
  }
  int level = 0;
  abi_.Check(abi_.Initialized(&flag), "whether MPI has begun");
  if (flag != 0) {
    abi_.Check(abi_.Query_thread(&level), "the thread level of MPI");
  } else if (has_communicator) {
    throw Error(ErrorKind::kExecution,
                "the communicator is of another library than " + abi_.name + " ('" + abi_.path +
                    "'), which has not begun; give the path of the library that made it");
  } else {
    abi_.Check(abi_.Init_thread(nullptr, nullptr, abi_.thread_serialized, &level), "MPI_Init");
    EndWithProcess();
  }
  if (level < abi_.thread_serialized) {
    throw Error(ErrorKind::kExecution,
                std::string("MPI was begun for calls of its main thread only (thread level "
                            "'single' or 'funneled'); expected 'serialized' or 'multiple'") +
                    kHowToRaise);
  }
  CheckLauncher();
}

void MpiProcess::CheckLauncher() const {
  int num_ranks = 0;
  abi_.Check(abi_.Comm_size(abi_.comm_world, &num_ranks), "MPI_Comm_size");
  const int launched = LaunchedRanks();
  // A launcher of another MPI: each process would take itself for all of the job.
  if (num_ranks == 1 && launched > 1) {
    throw Error(ErrorKind::kExecution,
                "the launcher started " + std::to_string(launched) + " ranks, of which " +
                    abi_.name + " ('" + abi_.path +
                    "') sees one; start them by the mpiexec of that library, or give the path of "
                    "the launcher's library");
  }
}

bool MpiProcess::IsForked() const { return NumForks() != num_forks_; }

void MpiProcess::RefuseForked(int rank) {
  throw Error(ErrorKind::kExecution, "this process was forked from rank " + std::to_string(rank) +
                                         " and is no rank itself; run the model in the process "
                                         "that loaded it");
}

void MpiProcess::Keep(std::unique_ptr<KeptBytes> bytes) {
  bytes->next = std::move(kept_);
  kept_ = std::move(bytes);
}

void MpiProcess::EndIfHung() noexcept {
  if (is_looking_.exchange(true)) return;
  try {
    std::thread([this] { LookForHang(); }).detach();
  } catch (const std::system_error&) {
    is_looking_ = false;  // without the thread only a launcher ends what hangs
  }
}

void MpiProcess::LookForHang() {
  const auto is_in_call = [this] {
    return !std::unique_lock<std::mutex>(mutex_, std::try_to_lock).owns_lock();
  };
  for (;;) {
    const int64_t num_locks = num_locks_.load();
    const bool may_return = is_long_.load() || !is_in_call();
    std::this_thread::sleep_for(kHung);
    if (may_return || num_locks != num_locks_.load() || !is_in_call()) continue;
    std::fflush(stdout);
    _exit(kHungCode);
  }
}

bool MpiProcess::IsUsable() const {
  int flag = 0;
  return !IsForked() && abi_.Finalized(&flag) == 0 && flag == 0;
}

void MpiProcess::EndWithProcess() { std::atexit(EndAtExit); }

void MpiProcess::EndAtExit() {
  const std::unique_ptr<MpiProcess>& process = Shared().process;
  if (process == nullptr || process->is_left_open_ || !process->IsUsable()) return;
  const auto lock = process->Lock();
  process->abi_.Finalize();
}

}  // namespace heteroplace::exec
