#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/memory_use.h"
#include "model/problem.h"
#include "parts/throughput/batched/batch_slots.h"
#include "parts/throughput/batched/step_log.h"
#include "search/evaluate/pair_table.h"

namespace heteroplace::throughput {

/*!
 * \brief Schedules batches in the order of their keys, without gaps: one resource after the other.
 *
 * Copies move blocks item by item or all together. Not thread-safe.
 */
class BatchEvaluator {
 public:
  BatchEvaluator(const model::Problem& problem, int num_items, int block);

  /*!
   * \brief Returns the makespan in ns; sets finishes.
   * \param log Gets the steps; may be null.
   */
  int64_t operator()(BatchSlots& slots, bool is_joint, StepLog* log = nullptr);
  /*! \brief Of what was scheduled last: bytes over capacity, plus routes that lack. */
  int64_t violation() const { return violation_; }
  /*! \brief Sets the keys of what was scheduled last to positions in the order taken. */
  void SetKeys(BatchSlots& slots) const;

 private:
  struct Ready {
    double key;
    int task;
    int slot;
  };
  struct There {
    uint64_t blocks;
    int64_t time_ns;
  };

  int64_t Bring(const BatchSlots& slots, int tensor, int memory, uint64_t blocks);
  int64_t Copy(int tensor, int src, int memory, int64_t made, uint64_t blocks);
  void Add(BatchSlots& slots, int task, int slot);
  std::vector<int> ItemsOf(uint64_t blocks) const;

  const model::Problem& problem_;
  const int num_items_;
  const int block_;
  bool checks_memory_;  // some layout may overflow a memory
  bool is_joint_ = false;
  StepLog* log_ = nullptr;
  int64_t violation_ = 0;
  int64_t makespan_ns_ = 0;
  model::MemoryUse use_;
  std::vector<int64_t> free_ns_;                 // [num_resources]
  search::PairTable<std::vector<There>> there_;  // what was copied of a tensor to a memory
  std::vector<size_t> touched_;                  // rows of `there_` that are not empty
  std::vector<int> waits_;                  // [num_tasks][num_devices], batches not yet scheduled
  std::vector<Ready> ready_;                // a heap
  std::vector<std::pair<int, int>> order_;  // task and slot, as they were taken
};

}  // namespace heteroplace::throughput
