// Several workers on one kernel: our own `TVMBackendParallelLaunch`.
//
// A kernel reaches its runtime's threads only through a weak pointer in its library. The executor
// stores ParallelLaunch there, so that its own pinned workers are the team and TVM's thread pool is
// never made. A launch is cut into more chunks than threads. Each thread has a share of them, the
// same part of every loop, so that what a core wrote it reads again; it takes chunks of others when
// its own are done, so a joiner that comes late, or not at all, costs balance but never
// correctness.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "exec/devices/tvm_abi.h"
#include "exec/run/sync.h"

namespace heteroplace::exec {

/*! \brief Chunks per thread of a launch: evens out unequal chunks at a few ns each. */
inline constexpr uint32_t kChunksPerThread = 4;

/*! \brief What a worker is in the team of one call. */
struct TeamRole {
  /*! \brief Threads of the call. */
  uint32_t threads = 1;
  /*! \brief Position of the worker's queue among those of the team: its share of the loops. */
  uint32_t rank = 0;
};

/*!
 * \brief Meeting point of one leader (the worker that owns it) and the workers that join it.
 *
 * Each share is a ticket of generation (32 bits), end (16) and next chunk (16). A chunk is taken by
 * adding one to a ticket; who gets a number below the end owns it. The launch cannot return before
 * that chunk is done, so its other fields stay as they are while any chunk is out.
 */
class Team {
 public:
  /*! \param max_threads of all calls that this team will lead. */
  Team(const TvmAbi* abi, uint32_t max_threads)
      : abi_(abi), shares_(std::make_unique<Share[]>(max_threads)) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /*! \brief Leader: launches of this thread's kernels are shared until End. */
  void Begin(TeamRole role);

  /*! \brief Leader: the call is over; wakes the joiners. Its progress must be published before. */
  void End();

  /*! \brief Joiner: does chunks until `is_over()`; spins so often before it sleeps. */
  template <typename IsOver>
  void Help(TeamRole role, const IsOver& is_over, CoreShare* core, int spins) {
    while (!is_over()) {
      bell_.WaitUntil([&] { return HasChunk(shares_[role.rank]) || is_over(); }, core, spins);
      Work(role);
    }
  }

  /*! \brief Wakes the joiners, as a request was cancelled. */
  void Cancel() { bell_.Ring(); }

  /*! \brief Leader: runs one parallel loop. Returns 0, or the first non-zero code of a chunk. */
  int Launch(FTVMParallelLambda lambda, void* cdata, int num_task);

 private:
  struct alignas(kCacheLineBytes) Share {
    std::atomic<uint64_t> ticket{0};
  };

  static uint32_t Next(uint64_t ticket) { return static_cast<uint32_t>(ticket & 0xffff); }
  static uint32_t End(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 16 & 0xffff); }
  static bool HasChunk(const Share& share) {
    const uint64_t ticket = share.ticket.load();
    return Next(ticket) < End(ticket);
  }
  /*! \brief Does chunks, of the own share first, until none is left. */
  void Work(TeamRole role);
  /*! \brief Takes and does one chunk of a share; false if none was left. */
  bool DoChunk(Share* share);

  const TvmAbi* abi_;
  std::unique_ptr<Share[]> shares_;  // [max_threads]
  Bell bell_;
  /*! \brief Body, closure and number of chunks of the launch; guarded by owning a chunk. */
  FTVMParallelLambda lambda_ = nullptr;
  void* cdata_ = nullptr;
  TVMParallelGroupEnv env_{nullptr, 0};
  /*! \brief Chunks finished, and the first non-zero code. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> finished_{0};
  std::atomic<int> code_{0};
  /*! \brief Message of that code; written by the one who set it, before it counts as finished. */
  std::string message_;
  /*! \brief Leader only: launches so far, and its role in the present call. */
  alignas(kCacheLineBytes) uint32_t generation_ = 0;
  TeamRole role_;
};

/*!
 * \brief What the executor stores as `__TVMBackendParallelLaunch` of a library.
 *
 * Shares the loop among the team that the calling thread leads; serial for any other thread, and
 * inside a chunk.
 */
int ParallelLaunch(FTVMParallelLambda lambda, void* cdata, int num_task);

}  // namespace heteroplace::exec
