#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

namespace heteroplace::throughput {

/*! \brief Blocks of items of one task that run together on one device. */
struct BatchSlot {
  int device;
  uint64_t blocks;  // one bit for each
  double key;       // least first where several are ready
  int64_t finish_ns = 0;
};

/*! \brief The batches of all tasks. */
using BatchSlots = std::vector<std::vector<BatchSlot>>;  // [num_tasks]

/*! \brief How many blocks run together. */
inline int Size(const BatchSlot& slot) { return std::popcount(slot.blocks); }

/*! \brief The batch on a device, or null. */
inline BatchSlot* Find(std::vector<BatchSlot>& slots, int device) {
  for (BatchSlot& slot : slots) {
    if (slot.device == device) return &slot;
  }
  return nullptr;
}

/*! \brief Adds blocks to the batch on a device, which may be new. */
inline void Place(std::vector<BatchSlot>& slots, int device, uint64_t blocks, double key) {
  if (BatchSlot* slot = Find(slots, device)) {
    slot->blocks |= blocks;
  } else {
    slots.push_back({device, blocks, key});
  }
}

/*! \brief Whether the same blocks are on the same devices. */
inline bool IsAlike(const std::vector<BatchSlot>& one, const std::vector<BatchSlot>& other) {
  if (one.size() != other.size()) return false;
  return std::ranges::all_of(one, [&](const BatchSlot& slot) {
    return std::ranges::any_of(other, [&](const BatchSlot& known) {
      return known.device == slot.device && known.blocks == slot.blocks;
    });
  });
}

}  // namespace heteroplace::throughput
