#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/problem.h"

namespace heteroplace::model {

/*!
 * \brief Bytes that a placement needs in each memory: the static rule of
 * `model/memory_use/memory.py`.
 *
 * A memory holds the weights of its tasks, every tensor that is made there or copied there, and
 * for each of its devices the largest workspace of the tasks on it. The host memory also holds
 * all model inputs and outputs. With several items, tensors are there once for each item, and a
 * batch needs the workspace of its items at once.
 */
class MemoryUse {
 public:
  explicit MemoryUse(const Problem& problem, int num_items = 1)
      : problem_(problem), num_items_(num_items) {
    Clear();
  }

  /*! \brief Forgets all tasks and copies. */
  void Clear();
  /*! \brief Charges a task, with the tensors it makes, to its device's memory. */
  void AddTask(int task, int device);
  /*! \brief Charges a batch of a task; its weights only if the device has not run it before. */
  void AddBatch(int task, int device, int num_items, bool has_weights);
  /*! \brief Charges weights and workspace of such a batch alone. */
  void AddWork(int task, int device, int num_items, bool has_weights);
  /*! \brief Charges bytes that are in a memory whatever the placement. */
  void AddHeld(int memory, int64_t bytes) { used_[memory] += bytes; }
  /*! \brief Charges a copy of so many items of a tensor to a memory. */
  void AddCopy(int tensor, int memory, int num_items = 1);
  /*! \brief Bytes that AddTask would add. */
  int64_t ExtraForTask(int task, int device) const;
  /*! \brief Bytes that AddTask of each of some tasks would add: of workspaces the largest. */
  int64_t ExtraForTasks(std::span<const int> tasks, int device) const;
  /*! \brief Bytes that AddCopy would add. */
  int64_t ExtraForCopy(int tensor, int memory) const;
  /*! \brief Bytes in use. */
  const std::vector<int64_t>& used() const { return used_; }
  /*! \brief Free bytes of a memory; negative when it is too full. */
  int64_t Free(int memory) const { return problem_.memory_bytes[memory] - used_[memory]; }
  /*! \brief Bytes over capacity, summed over the memories; 0: the placement fits. */
  int64_t Overflow() const;

 private:
  const Problem& problem_;
  int num_items_;                   // of the plan
  std::vector<int64_t> used_;       // [num_memories]
  std::vector<int64_t> workspace_;  // [num_devices], largest so far
};

}  // namespace heteroplace::model
