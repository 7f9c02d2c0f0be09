#pragma once

#include <cstdint>
#include <vector>

#include "model/problem.h"

namespace heteroplace::simulate {

/*!
 * \brief Busy time of every resource and bytes in every memory of one placement, kept up to date.
 *
 * In a steady state without batches, where many items are under way at once, the time per item is
 * the largest busy time per item of any resource. A copy leaves the tensor's home once per memory
 * that reads it; outputs go to the host, model inputs come from it. Moving a task costs
 * O(its tensors x memories); of many memories, x readers. Integers throughout: moving a task there
 * and back changes nothing.
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
  /*! \brief Keeps lists of what moves change from now on, which pays where there is much else. */
  void Track();
  /*! \brief Resources whose busy time was changed since the list was last cleared, each once. */
  const std::vector<int>& touched_resources() const { return touched_resources_.list; }
  /*! \brief Memories whose bytes were. */
  const std::vector<int>& touched_memories() const { return touched_memories_.list; }
  void ClearTouched();

 private:
  /*! \brief Numbers below a limit, each once, in the order in which they come. */
  struct Numbers {
    std::vector<int> list;
    std::vector<uint8_t> is_in;  // [limit]
    void Add(int number);
    void Clear();
  };

  void AddBusy(int resource, int64_t ns) {
    busy_ns_[resource] += ns;
    if (is_tracking_) touched_resources_.Add(resource);
  }
  void AddBytes(int memory, int64_t bytes) {
    used_bytes_[memory] += bytes;
    if (is_tracking_) touched_memories_.Add(memory);
  }
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
  /*! \brief The copies of Make, where there are many memories. */
  void CopyToReaders(int tensor, int memory, int sign);
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
  std::vector<int64_t> looked_at_;      // [num_memories], by which look_ last
  int64_t look_ = 0;
  int64_t num_unreachable_ = 0;
  bool is_tracking_ = false;
  Numbers touched_resources_;
  Numbers touched_memories_;
};

}  // namespace heteroplace::simulate
