#pragma once

#include <cstdint>
#include <vector>

#include "model/problem.h"

namespace heteroplace::throughput {

/*!
 * \brief Busy time of every resource and bytes in every memory of one placement, kept up to date.
 *
 * In a steady state without batches, where many items are under way at once, the time per item is
 * the largest busy time per item of any resource. A copy leaves the tensor's home once per memory
 * that reads it; outputs go to the host, model inputs come from it. Moving a task costs
 * O(its tensors x memories). Integers throughout: moving a task there and back changes nothing.
 */
class Loads {
 public:
  /*! \param device [num_tasks], allowed devices. */
  Loads(const model::Problem& problem, std::vector<int> device);

  /*! \brief Moves one task. Tasks of a group must be moved together to keep the group whole. */
  void Move(int task, int device);
  /*! \brief Device of each task. */
  const std::vector<int>& device() const { return device_; }
  /*! \brief Busy time per item of each resource in ns. */
  const std::vector<int64_t>& busy_ns() const { return busy_ns_; }
  /*! \brief Bytes in use in each memory, by the static rule. */
  const std::vector<int64_t>& used_bytes() const { return used_bytes_; }
  /*! \brief Number of copies for which there is no route. */
  int64_t num_unreachable() const { return num_unreachable_; }
  /*! \brief Time per item in ns. */
  int64_t ItemNs() const;
  /*! \brief Bytes over capacity, summed over the memories. */
  int64_t Overflow() const;

 private:
  /*! \brief The memory where a tensor is made; -1: nowhere in particular. */
  int Home(int tensor) const;
  /*! \brief How many readers the tensor has in a memory. */
  int& Readers(int tensor, int memory) {
    return readers_[static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
                    static_cast<size_t>(memory)];
  }
  /*! \brief Adds (sign 1) or takes away (-1) one copy. */
  void Copy(int tensor, int src, int dst, int sign);
  /*! \brief Adds or takes away a tensor's bytes where it is made, and its copies from there. */
  void Make(int tensor, int memory, int sign);
  /*! \brief One more or one less reader in a memory. */
  void Read(int tensor, int memory, int sign);
  /*! \brief Run time, weights and workspace of a task. */
  void RunOn(int task, int device, int sign);
  int64_t Bytes(int tensor, int memory) const;

  const model::Problem& problem_;
  std::vector<int> device_;
  std::vector<int64_t> busy_ns_;
  std::vector<int64_t> used_bytes_;
  std::vector<int> readers_;            // [num_tensors][num_memories], the host reads outputs
  std::vector<int64_t> workspaces_;     // distinct sizes, ascending; the first is 0
  std::vector<int> workspace_of_;       // [num_tasks], position in workspaces_
  std::vector<int> workspace_count_;    // [num_devices][workspaces_.size()]
  std::vector<int> largest_workspace_;  // [num_devices], position of the largest in use
  int64_t num_unreachable_ = 0;
};

}  // namespace heteroplace::throughput
