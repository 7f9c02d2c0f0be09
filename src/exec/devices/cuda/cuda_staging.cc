#include "exec/devices/cuda/cuda_staging.h"

#include <algorithm>
#include <cstring>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Large enough to hide what a copy costs to begin, small enough to be no matter. */
constexpr int64_t kStagingBytes = int64_t{1} << 20;

constexpr int kHostToDevice = 1;
constexpr int kDeviceToHost = 2;
constexpr int kDefault = 4;
constexpr unsigned kHostAllocPortable = 0x01;

}  // namespace

StagedCopies::~StagedCopies() {
  const DeviceScope scope(cuda_, device_);
  for (void* buffer : buffers_) {
    if (buffer != nullptr) cuda_.Ignore(cuda_.FreeHost(buffer));
  }
}

/*! \brief Makes what is missing; the current device is set. */
void StagedCopies::Make() {
  if (stream_ != nullptr) return;
  for (std::unique_ptr<CudaEventHandle>& event : is_copied_) {
    event = std::make_unique<CudaEventHandle>(cuda_, device_, /*is_timed=*/false);
  }
  auto stream = std::make_unique<CudaStreamHandle>(cuda_, device_);
  for (void*& buffer : buffers_) {
    const int error =
        cuda_.HostAlloc(&buffer, static_cast<size_t>(kStagingBytes), kHostAllocPortable);
    if (error == 0) continue;
    cuda_.Ignore(error);
    buffer = nullptr;
  }
  stream_ = std::move(stream);
}

void StagedCopies::Issue(void* dst, const void* src, int64_t bytes) {
  cuda_.Check(cuda_.MemcpyAsync(dst, src, static_cast<size_t>(bytes), kDefault, stream_->get()),
              what_);
}

void StagedCopies::CopyPageable(void* dst, const void* src, int64_t bytes) {
  Issue(dst, src, bytes);
  // A copy from pageable memory may return before its last part has landed.
  stream_->Synchronise();
}

template <typename Copy>
void StagedCopies::Do(const Copy& copy) {
  std::scoped_lock lock(mutex_);
  const DeviceScope scope(cuda_, device_);
  scope.Check();
  Make();
  try {
    copy();
  } catch (...) {
    Drain();
    throw;
  }
}

/*! \brief Leaves no block on its way to memory that its owner may give back. */
void StagedCopies::Drain() noexcept {
  try {
    stream_->Synchronise();
  } catch (const std::exception&) {  // the device has had a fault, and does nothing more
  }
}

void StagedCopies::UploadAll(const std::vector<HostBytes>& all) {
  int64_t bytes = 0;
  for (const HostBytes& each : all) bytes += each.bytes;
  if (bytes == 0) return;
  Do([&] {
    size_t num_blocks = 0;
    for (const HostBytes& each : all) UploadBlocks(each, &num_blocks);
    stream_->Synchronise();
  });
}

void StagedCopies::Download(void* dst, const void* src, int64_t bytes) {
  if (bytes != 0) Do([&] { DownloadBlocks(dst, src, bytes); });
}

void StagedCopies::CopyWithin(const std::vector<MovedBytes>& all) {
  Do([&] {
    for (const MovedBytes& each : all) {
      if (each.bytes != 0) Issue(each.dst, each.src, each.bytes);
    }
    stream_->Synchronise();
  });
}

/*! \brief Sends bytes off in blocks, through one buffer after the other. */
void StagedCopies::UploadBlocks(const HostBytes& bytes, size_t* num_blocks) {
  if (bytes.bytes == 0) return;
  if (buffers_[0] == nullptr || buffers_[1] == nullptr) {
    return CopyPageable(bytes.dst, bytes.src, bytes.bytes);
  }
  for (int64_t begin = 0; begin < bytes.bytes; begin += kStagingBytes, ++*num_blocks) {
    const size_t size = static_cast<size_t>(std::min(kStagingBytes, bytes.bytes - begin));
    const size_t b = *num_blocks % 2;
    if (*num_blocks >= 2) is_copied_[b]->HostWait();
    std::memcpy(buffers_[b], static_cast<const char*>(bytes.src) + begin, size);
    cuda_.Check(cuda_.MemcpyAsync(static_cast<char*>(bytes.dst) + begin, buffers_[b], size,
                                  kHostToDevice, stream_->get()),
                what_);
    is_copied_[b]->Record(stream_->get());
  }
}

/*! \brief Waits for a block of a download and gives it to the caller. */
void StagedCopies::Finish(size_t buffer, const Block& block, char* dst) {
  if (block.bytes == 0) return;
  is_copied_[buffer]->HostWait();
  std::memcpy(dst + block.begin, buffers_[buffer], static_cast<size_t>(block.bytes));
}

void StagedCopies::DownloadBlocks(void* dst, const void* src, int64_t bytes) {
  if (buffers_[0] == nullptr || buffers_[1] == nullptr) return CopyPageable(dst, src, bytes);
  std::array<Block, 2> blocks;
  size_t b = 0;
  for (int64_t begin = 0; begin < bytes; begin += kStagingBytes, b = 1 - b) {
    Finish(b, blocks[b], static_cast<char*>(dst));
    blocks[b] = {begin, std::min(kStagingBytes, bytes - begin)};
    cuda_.Check(
        cuda_.MemcpyAsync(buffers_[b], static_cast<const char*>(src) + begin,
                          static_cast<size_t>(blocks[b].bytes), kDeviceToHost, stream_->get()),
        what_);
    is_copied_[b]->Record(stream_->get());
  }
  Finish(b, blocks[b], static_cast<char*>(dst));
  Finish(1 - b, blocks[1 - b], static_cast<char*>(dst));
}

}  // namespace heteroplace::exec
