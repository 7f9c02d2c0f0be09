// Several workers on one kernel: our own `TVMBackendParallelLaunch`.
//
// A kernel reaches its runtime's threads only through a weak pointer in its library. The executor
// stores ParallelLaunch there, so that its own pinned workers are the team and TVM's thread pool is
// never made. A launch is cut into more chunks than threads on one atomic ticket: a joiner that
// comes late, or leaves, costs balance but never correctness.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "exec/sync.h"
#include "exec/tvm_abi.h"

namespace heteroplace {

/*! \brief Chunks per thread of a launch: evens out unequal chunks at a few ns each. */
inline constexpr uint32_t kChunksPerThread = 4;

/*!
 * \brief Meeting point of one leader (the worker that owns it) and the workers that join it.
 *
 * `ticket_` holds generation (32 bits), number of chunks (16) and next chunk (16) of the present
 * launch. A chunk is taken by adding one; who gets a chunk below the number owns it, and the launch
 * cannot end before it is done, so the other fields stay valid while any chunk is out.
 */
class Team {
 public:
  explicit Team(const TvmAbi* abi) : abi_(abi) {}
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  /*! \brief Leader: launches of this thread's kernels are shared by `threads` workers. */
  void Begin(int32_t threads);

  /*! \brief Leader: the call is over; wakes the joiners. Its progress must be published before. */
  void End();

  /*! \brief Joiner: does chunks until `is_over()`. */
  template <typename IsOver>
  void Help(IsOver is_over) {
    while (!is_over()) {
      bell_.WaitUntil([&] { return HasChunk() || is_over(); });
      while (DoChunk()) {
      }
    }
  }

  /*! \brief Wakes the joiners, as a run was cancelled. */
  void Cancel() { bell_.Ring(); }

  /*! \brief Leader: runs one parallel loop. Returns 0, or the first non-zero code of a chunk. */
  int Launch(FTVMParallelLambda lambda, void* cdata, int num_task);

 private:
  bool HasChunk() const {
    const uint64_t ticket = ticket_.load();
    return Next(ticket) < Total(ticket);
  }
  /*! \brief Takes and does one chunk; false if none was left. */
  bool DoChunk();
  static uint32_t Next(uint64_t ticket) { return static_cast<uint32_t>(ticket & 0xffff); }
  static uint32_t Total(uint64_t ticket) { return static_cast<uint32_t>(ticket >> 16 & 0xffff); }

  const TvmAbi* abi_;
  alignas(kCacheLineBytes) std::atomic<uint64_t> ticket_{0};
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
  /*! \brief Leader only: launches so far, and threads of the present call. */
  uint32_t generation_ = 0;
  int32_t threads_ = 1;
};

/*!
 * \brief What the executor stores as `__TVMBackendParallelLaunch` of a library.
 *
 * Shares the loop among the team that the calling thread leads; serial for any other thread, and
 * inside a chunk.
 */
int ParallelLaunch(FTVMParallelLambda lambda, void* cdata, int num_task);

}  // namespace heteroplace
