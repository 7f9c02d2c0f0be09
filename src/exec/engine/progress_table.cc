#include "exec/engine/progress_table.h"

#include <new>
#include <set>
#include <type_traits>

namespace heteroplace::exec {

static_assert(std::is_trivially_destructible_v<Progress>);

namespace {

int CountGpus(const Program& program) {
  std::set<int32_t> gpus;
  for (const Queue& queue : program.queues) {
    if (queue.device.device_type == kDLCUDA) gpus.insert(queue.device.device_id);
  }
  return static_cast<int>(gpus.size());
}

}  // namespace

ProgressTable::ProgressTable(const Image& image, size_t num_contexts)
    : num_queues_(image.program().queues.size()),
      buffer_(image.DeviceOf({kDLCPU, 0}),
              static_cast<int64_t>(num_queues_ * num_contexts * sizeof(Progress))),
      entries_(new (buffer_.data()) Progress[num_queues_ * num_contexts]),
      num_gpus_(CountGpus(image.program())) {
  if (!image.HasGpu() || !image.uses_cuda_words()) return;
  pinned_ = std::make_unique<PinnedMemory>(&image.abi(), image.gpu(), buffer_.data(),
                                           buffer_.held_bytes());
}

}  // namespace heteroplace::exec
