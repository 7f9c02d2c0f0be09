#include "exec/devices/workspace.h"

#include <algorithm>
#include <atomic>
#include <ranges>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Room for nested blocks from the start: the stack of a kernel is a handful deep. */
constexpr size_t kUsualDepth = 16;

thread_local WorkspacePool* current_pool = nullptr;
thread_local WorkspacePool* current_device_pool = nullptr;
thread_local const TvmAbi* current_abi = nullptr;

/*! \brief The calling thread's pool of memory of a kind of device, or null. */
WorkspacePool* PoolOf(int device_type) {
  return device_type == kDLCPU    ? current_pool
         : device_type == kDLCUDA ? current_device_pool
                                  : nullptr;
}

/*! \brief What a thread gets that is no worker, where no TVM is loaded. */
void* RefuseWorkspace(int, int, uint64_t, int, int) { return nullptr; }
int RefuseFree(int, int, void*) { return -1; }

/*! \brief TVM's own functions, the same for every executor of a process. */
std::atomic<decltype(TvmAbi::AllocWorkspace)> foreign_alloc{&RefuseWorkspace};
std::atomic<decltype(TvmAbi::FreeWorkspace)> foreign_free{&RefuseFree};

}  // namespace

WorkspacePool::~WorkspacePool() { DropBuffers(0); }

void WorkspacePool::Reserve(int64_t bytes) {
  Clear();
  DropBuffers(0);
  AddBuffer(bytes);
}

void WorkspacePool::AddBuffer(int64_t bytes) {
  buffers_.reserve(buffers_.size() + 1);  // first: what the host gives must not be lost
  buffers_.push_back({static_cast<char*>(host_->Allocate(bytes)), bytes});
}

void* WorkspacePool::Allocate(uint64_t bytes) {
  const int64_t size = static_cast<int64_t>(AlignUp(std::max<uint64_t>(bytes, 1)));
  if (buffers_.empty() || top_ + size > buffers_[current_].bytes ||
      (entries_.empty() && buffers_.size() > 1)) {
    MakeRoom(size);
  }
  char* data = buffers_[current_].data + top_;
  entries_.push_back({data, current_, top_, size, false});
  top_ += size;
  used_bytes_ += size;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return data;
}

bool WorkspacePool::Free(const void* data) {
  const auto entry = std::ranges::find_if(std::views::reverse(entries_), [data](const Entry& at) {
    return at.data == data && !at.is_free;
  });
  if (entry == entries_.rend()) return false;
  entry->is_free = true;
  while (!entries_.empty() && entries_.back().is_free) {
    current_ = entries_.back().buffer;
    top_ = entries_.back().begin;
    used_bytes_ -= entries_.back().bytes;
    entries_.pop_back();
  }
  return true;
}

void WorkspacePool::Clear() {
  entries_.clear();
  current_ = 0;
  top_ = 0;
  used_bytes_ = 0;
}

int64_t WorkspacePool::held_bytes() const {
  int64_t held = 0;
  for (const Buffer& buffer : buffers_) held += host_->HeldBytes(buffer.bytes);
  return held;
}

/*! \brief Points to `bytes` of free memory; nothing that was given out moves. */
void WorkspacePool::MakeRoom(int64_t bytes) {
  if (is_fixed_) {
    throw Error(ErrorKind::kExecution,
                "the kernels need more scratch memory than the program says, and recorded launches "
                "use what there is; compile the model again, or load it without graphs");
  }
  if (entries_.empty()) {
    // One buffer for the greatest need so far.
    DropBuffers(0);
    bytes = std::max(bytes, peak_bytes_);
    entries_.reserve(kUsualDepth);
  } else {
    // What lies above the top holds nothing.
    DropBuffers(current_ + 1);
  }
  AddBuffer(bytes);
  current_ = buffers_.size() - 1;
  top_ = 0;
}

void WorkspacePool::DropBuffers(size_t first) {
  for (size_t buffer = first; buffer < buffers_.size(); ++buffer) {
    host_->Free(buffers_[buffer].data, buffers_[buffer].bytes);
  }
  buffers_.resize(std::min(buffers_.size(), first));
}

void SetWorkspacePool(const TvmAbi* abi, WorkspacePool* pool) {
  current_abi = abi;
  current_pool = pool;
}

void SetDeviceWorkspacePool(WorkspacePool* pool) { current_device_pool = pool; }

void SetForeignWorkspace(const TvmAbi& abi) {
  foreign_alloc.store(abi.AllocWorkspace, std::memory_order_relaxed);
  foreign_free.store(abi.FreeWorkspace, std::memory_order_relaxed);
}

void* AllocWorkspace(int device_type, int device_id, uint64_t bytes, int type_code, int type_bits) {
  WorkspacePool* pool = PoolOf(device_type);
  if (pool == nullptr) {
    return foreign_alloc.load(std::memory_order_relaxed)(device_type, device_id, bytes, type_code,
                                                         type_bits);
  }
  try {
    return pool->Allocate(bytes);
  } catch (const std::exception& fault) {
    // No exception may pass through compiled code.
    current_abi->LeaveError(CauseOf(fault));
    return nullptr;
  }
}

int FreeWorkspace(int device_type, int device_id, void* data) {
  WorkspacePool* pool = PoolOf(device_type);
  if (pool != nullptr && pool->Free(data)) return 0;
  return foreign_free.load(std::memory_order_relaxed)(device_type, device_id, data);
}

}  // namespace heteroplace::exec
