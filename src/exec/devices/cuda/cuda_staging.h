// Copies between a caller and a GPU (weights, inputs, outputs), and within a GPU (state).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "exec/devices/cuda/cuda_stream.h"

namespace heteroplace::exec {

/*!
 * \brief Copies in blocks through two pinned buffers: one is filled while the other one travels.
 *
 * A caller's memory is pageable, as a rule; CUDA would stage it itself, one block after the other.
 * Where the system refuses pinned memory, that is what happens. Any thread may call it.
 */
class StagedCopies {
 public:
  StagedCopies(const CudaRuntime& cuda, int device)
      : cuda_(cuda),
        device_(device),
        what_("a copy between the caller and " + DeviceName({kDLCUDA, device})) {}
  ~StagedCopies();
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  /*! \brief Returns when the device, or `dst`, has all bytes. \throws Error kExecution with CUDA's
   * message. */
  void UploadAll(const std::vector<HostBytes>& all);
  void Download(void* dst, const void* src, int64_t bytes);
  void CopyWithin(const std::vector<MovedBytes>& all);

 private:
  /*! \brief A block on its way. */
  struct Block {
    int64_t begin = 0;
    int64_t bytes = 0;
  };

  template <typename Copy>
  void Do(const Copy& copy);
  void Make();
  void Drain() noexcept;
  void UploadBlocks(const HostBytes& bytes, size_t* num_blocks);
  void DownloadBlocks(void* dst, const void* src, int64_t bytes);
  void CopyPageable(void* dst, const void* src, int64_t bytes);
  void Issue(void* dst, const void* src, int64_t bytes);
  void Finish(size_t buffer, const Block& block, char* dst);

  const CudaRuntime& cuda_;
  int device_;
  /*! \brief What failed, for messages. */
  std::string what_;
  std::mutex mutex_;
  std::unique_ptr<CudaStreamHandle> stream_;                   // guarded by mutex_
  std::array<std::unique_ptr<CudaEventHandle>, 2> is_copied_;  // guarded by mutex_
  /*! \brief Null where pinned memory is refused. Guarded by mutex_. */
  std::array<void*, 2> buffers_ = {};
};

}  // namespace heteroplace::exec
