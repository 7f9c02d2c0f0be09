// Scratch memory of kernels: our own `TVMBackendAllocWorkspace`, counted.
//
// A kernel gets its scratch memory through two weak pointers in its library, by default from a pool
// that TVM keeps for each thread and never gives back. The executor stores AllocWorkspace and
// FreeWorkspace there: every worker then has a pool of its own, whose size is known and which goes
// with the executor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/devices/device.h"

namespace heteroplace::exec {

/*!
 * \brief A stack of scratch blocks, used by one thread.
 *
 * Kernels free in the opposite order of allocation, as a rule; a block that is freed out of turn is
 * given back together with the one on top of it. A pool that was not reserved, or too small, grows
 * by buffers while the stack is in use; they are joined into one when it is empty, so from the
 * second run on nothing is allocated.
 */
class WorkspacePool {
 public:
  /*! \param host allocates the memory; must outlive the pool. */
  explicit WorkspacePool(Device* host) : host_(host) {}
  ~WorkspacePool();
  WorkspacePool(const WorkspacePool&) = delete;
  WorkspacePool& operator=(const WorkspacePool&) = delete;

  /*! \brief Takes so much from the host at once, in place of what an empty pool has. */
  void Reserve(int64_t bytes);

  /*! \brief Refuses to grow from now on: somebody has kept addresses of blocks. */
  void Fix() { is_fixed_ = true; }

  /*! \brief A block, aligned for kernels. \throws Error kExecution when memory is short. */
  void* Allocate(uint64_t bytes);

  /*! \brief Frees a block; false if this pool has not given it out. */
  bool Free(const void* data);

  /*! \brief Frees all blocks: kernels that fail leave theirs behind. */
  void Clear();

  /*! \brief Height of the stack in bytes, and the greatest ever. */
  int64_t used_bytes() const { return used_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  /*! \brief The greatest height in whole pages: what was ever touched of a pool reserved at once.
   */
  int64_t touched_bytes() const { return peak_bytes_ == 0 ? 0 : host_->HeldBytes(peak_bytes_); }
  /*! \brief Bytes taken from the host, in whole pages. */
  int64_t held_bytes() const;

 private:
  /*! \brief Memory from the host. */
  struct Buffer {
    char* data;
    int64_t bytes;
  };
  /*! \brief A block that was given out, and the place before it was. */
  struct Entry {
    char* data;
    size_t buffer;
    int64_t begin;
    int64_t bytes;
    bool is_free;
  };

  void MakeRoom(int64_t bytes);
  void AddBuffer(int64_t bytes);
  void DropBuffers(size_t first);

  Device* host_;
  std::vector<Buffer> buffers_;
  std::vector<Entry> entries_;  // the stack
  /*! \brief Where the next block goes: a buffer and an offset in it. */
  size_t current_ = 0;
  int64_t top_ = 0;
  int64_t used_bytes_ = 0;
  int64_t peak_bytes_ = 0;
  bool is_fixed_ = false;
};

/*! \brief Gives the calling thread a pool (null: TVM's); it must outlive the thread's kernels. */
void SetWorkspacePool(const TvmAbi* abi, WorkspacePool* pool);

/*!
 * \brief Gives the calling thread the pool of the GPU stream that it launches on.
 *
 * The stack is one of issued work: a block that is given out again lies behind its former use in
 * the stream's order.
 */
void SetDeviceWorkspacePool(WorkspacePool* pool);

/*!
 * \brief What the executor stores as `__TVMBackendAllocWorkspace` of a library.
 *
 * Memory for a thread with a pool of its kind of device comes from there; all else (foreign
 * threads) from TVM, if it is loaded. Returns null after setting the last error, as kernels expect.
 */
void* AllocWorkspace(int device_type, int device_id, uint64_t bytes, int type_code, int type_bits);

/*! \brief What the executor stores as `__TVMBackendFreeWorkspace`. Returns 0 for success. */
int FreeWorkspace(int device_type, int device_id, void* data);

/*! \brief Tells where scratch memory comes from that no pool of ours gives. Any thread. */
void SetForeignWorkspace(const TvmAbi& abi);

}  // namespace heteroplace::exec
