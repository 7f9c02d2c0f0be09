// Several workers on one kernel: our own `TVMBackendParallelLaunch`.
//
// A kernel reaches its runtime's threads only through a weak pointer in its library. The executor
// stores ParallelLaunch there, so that its own pinned workers are the team and TVM's thread pool is
// never made. A launch is cut into more chunks than threads. Each thread has a share of them, the
// same part of every loop, so that what a core wrote it reads again; it takes chunks of others when
// its own are done, so a joiner that comes late, or not at all, costs balance but never
// correctness. Nor do helpers, who belong to no team: workers that wait take chunks of launches
// that are open to them, also of kernels of one thread, and leave when their own work is ready.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "exec/devices/tvm_abi.h"
#include "exec/engine/sync.h"

namespace heteroplace::exec {

/*! \brief Chunks per thread of a launch: evens out unequal chunks at a few ns each. */
inline constexpr uint32_t kChunksPerThread = 4;

/*! \brief Helpers for which a launch is cut at most: more are rarely idle at once. */
inline constexpr uint32_t kMaxHelpers = 3;

/*! \brief What a worker is in the team of one call. */
struct TeamRole {
  /*! \brief Threads of the call. */
  uint32_t threads = 1;
  /*! \brief Position of the worker's queue among those of the team: its share of the loops. */
  uint32_t rank = 0;
  /*! \brief Workers outside of the team that may take chunks while they wait; 0: nobody may. */
  uint32_t helpers = 0;
};

/*!
 * \brief Meeting point of one leader (the worker that owns it) and the workers that join it.
 *
 * Each share is a ticket of generation (32 bits), whether helpers may take chunks (1), end (15) and
 * next chunk (16). A chunk is taken by adding one to a ticket; who gets a number below the end owns
 * it. The launch cannot return before that chunk is done, so its other fields stay as they are
 * while any chunk is out.
 */
class Team {
 public:
  /*! \param max_threads of all calls that this team will lead. */
  Team(const TvmAbi* abi, uint32_t max_threads)
      : abi_(abi), max_threads_(max_threads), shares_(std::make_unique<Share[]>(max_threads)) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /*! \brief Leader: launches of this thread's kernels are shared until End. */
  void Begin(TeamRole role);

  /*! \brief Leader: the call is over; wakes the joiners. Its progress must be published before. */
  void End();

  /*! \brief Rung when a launch has chunks for joiners, at the end of the call, and when a request
   * is cancelled. */
  Bell* bell() { return &bell_; }

  /*! \brief A bell that is rung with its own, for threads that wait for several things at once.
   * Once, before any use. */
  void RingAlso(Bell* all) { all_ = all; }

  /*! \brief Leader: tells joiners who do other things meanwhile that a call begins, by the count
   * that its queue will have after it. */
  void Announce(int64_t count) {
    announced_.store(count);
    if (all_ != nullptr) all_->Ring();
  }
  /*! \brief Joiner: whether the call has begun, and may be over. */
  bool IsAnnounced(int64_t count) const { return announced_.load() >= count; }

  /*! \brief Joiner: whether its share has chunks left. */
  bool HasShare(TeamRole role) const { return HasChunk(shares_[role.rank]); }

  /*! \brief Leader, joiner: does chunks, of the own share first, until none is left. */
  void Work(TeamRole role);

  /*! \brief Helper: whether there are chunks for it. */
  bool IsOpen() const {
    for (uint32_t rank = 0; rank < max_threads_; ++rank) {
      if (IsOpen(shares_[rank].ticket.load(std::memory_order_relaxed))) return true;
    }
    return false;
  }

  /*! \brief Helper: does one chunk, if there is one left. Returns its code. */
  int HelpOnce();

  /*! \brief Leader: the longest wait for a chunk of another core in the calls since it was asked,
   * in ns; 0 if all were short. */
  int64_t TakeWaitNs() { return std::exchange(wait_ns_, 0); }

  /*! \brief Leader: runs one parallel loop. Returns 0, or the first non-zero code of a chunk. */
  int Launch(FTVMParallelLambda lambda, void* cdata, int num_task);

 private:
  struct alignas(kCacheLineBytes) Share {
    std::atomic<uint64_t> ticket{0};
  };

  /*! \brief The bit of a ticket that says that helpers may take chunks. */
  static constexpr uint64_t kOpen = uint64_t{1} << 31;

  static uint32_t Next(uint64_t ticket) { return static_cast<uint32_t>(ticket & 0xffff); }
  static uint32_t End(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 16 & 0x7fff); }
  static bool IsOpen(uint64_t ticket) {
    return (ticket & kOpen) != 0 && Next(ticket) < End(ticket);
  }
  static bool HasChunk(const Share& share) {
    const uint64_t ticket = share.ticket.load();
    return Next(ticket) < End(ticket);
  }
  void AwaitChunks(uint32_t chunks);
  /*! \brief Takes and does one chunk of a share; false if none was left. */
  bool DoChunk(Share* share, int* code);

  const TvmAbi* abi_;
  const uint32_t max_threads_;
  std::unique_ptr<Share[]> shares_;  // [max_threads]
  Bell bell_;
  Bell* all_ = nullptr;
  std::atomic<int64_t> announced_{0};
  /*! \brief Body, closure and number of chunks of the launch; guarded by owning a chunk. */
  FTVMParallelLambda lambda_ = nullptr;
  void* cdata_ = nullptr;
  TVMParallelGroupEnv env_{nullptr, 0};
  /*! \brief Chunks finished, and the first non-zero code. */
  alignas(kCacheLineBytes) std::atomic<uint32_t> finished_{0};
  std::atomic<int> code_{0};
  /*! \brief Message of that code; written by the one who set it, before it counts as finished. */
  std::string message_;
  /*! \brief Leader only: launches so far, its role in the present call, its longest wait. */
  alignas(kCacheLineBytes) uint32_t generation_ = 0;
  TeamRole role_;
  int64_t wait_ns_ = 0;
};

/*!
 * \brief What the executor stores as `__TVMBackendParallelLaunch` of a library.
 *
 * Shares the loop among the team that the calling thread leads; serial for any other thread, and
 * inside a chunk.
 */
int ParallelLaunch(FTVMParallelLambda lambda, void* cdata, int num_task);

}  // namespace heteroplace::exec
