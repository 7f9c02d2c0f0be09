#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "model/problem.h"
#include "parts/throughput/batched/batch_slots.h"

namespace heteroplace::throughput {

/*! \brief Which numbers of blocks each device runs as one batch of each task. */
class BatchSizes {
 public:
  BatchSizes(const model::Problem& problem, int block, int num_blocks)
      : num_devices_(static_cast<size_t>(problem.num_devices)),
        sizes_(static_cast<size_t>(problem.num_tasks) * num_devices_, 0) {
    for (int task = 0; task < problem.num_tasks; ++task) {
      for (int device = 0; device < problem.num_devices; ++device) {
        uint64_t& sizes = sizes_[At(task, device)];
        for (int size = 1; size <= num_blocks; ++size) {
          if (problem.BatchRun(task, device, size * block) == model::kImpossible) continue;
          sizes |= uint64_t{1} << (size - 1);
        }
      }
    }
  }

  /*! \brief Whether a task runs there in a batch of so many blocks; none are always possible. */
  bool Has(int task, int device, int size) const {
    return size == 0 || (sizes_[At(task, device)] >> (size - 1) & 1) != 0;
  }

  /*! \brief Devices that run a task in some batch; of one item they need not run it. */
  std::vector<int> Devices(int task) const {
    std::vector<int> found;
    for (int device = 0; device < static_cast<int>(num_devices_); ++device) {
      if (sizes_[At(task, device)] != 0) found.push_back(device);
    }
    return found;
  }

  /*! \brief Whether a task runs in all of these batches. */
  bool HasAll(int task, const std::vector<BatchSlot>& slots) const {
    return std::ranges::all_of(
        slots, [&](const BatchSlot& slot) { return Has(task, slot.device, Size(slot)); });
  }

 private:
  size_t At(int task, int device) const {
    return static_cast<size_t>(task) * num_devices_ + static_cast<size_t>(device);
  }

  size_t num_devices_;
  std::vector<uint64_t> sizes_;  // [num_tasks][num_devices], bit n - 1: n blocks
};

}  // namespace heteroplace::throughput
