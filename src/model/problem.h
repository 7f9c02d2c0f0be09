#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/csr.h"
#include "model/shared_values.h"

namespace heteroplace::model {

/*! \brief Marks a pair of memories, or a (task, device) pair, that cannot be used. */
inline constexpr int64_t kImpossible = -1;
/*! \brief How many times of transfers are kept, 32 MB of them; of more each is computed anew. */
inline constexpr size_t kMaxTransfers = size_t{1} << 22;

/*!
 * \brief One graph, one cluster and the costs, as flat vectors. Immutable after construction.
 *
 * Ids are positions, as in the Python values. Times are ns, sizes are bytes. Task ids are in
 * topological order. A tensor's home is the memory of the device that makes it; the home of a
 * model input is the host memory, or nowhere (-1: it is everywhere) if there is no host.
 */
struct Problem {
  // Filled by the bindings.
  std::vector<int64_t> run_ns;           // [num_tasks][num_devices], kImpossible: not allowed
  std::vector<int> device_memory;        // [num_devices]
  Csr device_units;                      // [num_devices]
  std::vector<int64_t> weight_bytes;     // [num_tasks]
  std::vector<int64_t> workspace_bytes;  // [num_tasks]
  std::vector<int> task_group;           // [num_tasks], -1: free; tasks of a group share a device
  std::vector<int64_t> tensor_bytes;     // [num_tensors]
  std::vector<int> producer;             // [num_tensors], -1: model input
  std::vector<uint8_t> is_output;        // [num_tensors]
  Csr task_reads;                        // [num_tasks], tensor ids
  std::vector<int64_t> memory_bytes;     // [num_memories]
  std::vector<int64_t> link_bandwidth;   // [num_links], bytes per second
  Csr link_measured;                     // [num_links], positions in the next two; or no rows
  std::vector<int64_t> measured_bytes;   // ascending within a link
  std::vector<int64_t> measured_ns;      // without the latency
  std::vector<int64_t> link_latency_ns;  // [num_links]
  Csr link_resources;                    // [num_links], what a copy over the link occupies
  Csr route_links;                       // [num_memories * num_memories], empty: none
  int host = -1;                         // memory id, -1: no host
  // Sizes of batches that have costs, rising, the first is 1; empty: only {1}.
  std::vector<int> batch_sizes;
  // [num_batches][num_tasks][num_devices], kImpossible: no such batch there; empty: run_ns.
  std::vector<int64_t> batch_run_ns;
  SharedValues values;  // what items and tasks share

  // Derived by Finish().
  int num_tasks = 0;
  int num_tensors = 0;
  int num_devices = 0;
  int num_memories = 0;
  int num_units = 0;
  int num_resources = 0;  // units come first, then what only copies occupy
  int num_groups = 0;
  Csr task_makes;           // [num_tasks], tensor ids
  Csr predecessors;         // [num_tasks], task ids, each once
  Csr successors;           // [num_tasks], task ids, each once
  Csr group_tasks;          // [num_groups], task ids
  Csr allowed;              // [num_tasks], device ids
  Csr route_resources;      // [num_memories * num_memories], each once
  Csr departure_resources;  // [num_memories], on every route to another memory
  // Routes between 300 memories are many, but there are few kinds of them, and few sizes.
  std::vector<int> way_of;       // [num_memories * num_memories], -1: none; equal: the same times
  std::vector<int> pair_of;      // [num_ways], some pair of that way; 0: from a memory to itself
  std::vector<int> size_of;      // [num_tensors], positions in `sizes`
  std::vector<int64_t> sizes;    // distinct bytes of tensors, ascending
  std::vector<int> outputs;      // distinct tensor ids that the model returns
  std::vector<int64_t> tail_ns;  // [num_tasks], shortest possible time after its finish
  std::vector<int64_t> base_bytes;  // [num_memories], in use under every placement, for each item
  int64_t shared_base_bytes = 0;    // in the host memory, for all items together
  // [num_tensors], what a tensor adds to each memory where it is made or copied to, by the static
  // rule; all 0 in WithoutTensors().
  std::vector<int64_t> charged_bytes;
  // Some placement may be short by the static rule: then tensors count while they live.
  bool counts_lifetimes = false;

  /*! \brief Fills the derived vectors. Throws Error(kGraph) if sizes disagree. */
  void Finish();
  /*!
   * \brief The same with tensors charged nowhere: what every plan needs whatever its order.
   *
   * Plans that fit by lifetime fit here, so what is proven here holds for them.
   * \param reserve_bytes [num_memories], set aside in each memory; empty: nothing.
   */
  Problem WithoutTensors(std::span<const int64_t> reserve_bytes) const;
  /*! \brief The same by the static rule alone. */
  Problem Static() const;

  /*! \brief Run time of a task on a device, or kImpossible. */
  int64_t Run(int task, int device) const {
    return run_ns[static_cast<size_t>(task) * static_cast<size_t>(num_devices) +
                  static_cast<size_t>(device)];
  }
  /*! \brief Run time of one batch of a task on a device, or kImpossible. */
  int64_t BatchRun(int task, int device, int num_items) const {
    if (num_items == 1) return Run(task, device);
    if (num_items >= static_cast<int>(batch_row_.size()) || batch_row_[num_items] < 0) {
      return kImpossible;
    }
    const size_t row = static_cast<size_t>(batch_row_[num_items]) * static_cast<size_t>(num_tasks) +
                       static_cast<size_t>(task);
    return batch_run_ns[row * static_cast<size_t>(num_devices) + static_cast<size_t>(device)];
  }
  /*! \brief How many items a run for so many computes: one where all that it reads and makes is
   * shared. */
  int BatchSize(int task, int num_items) const {
    return !is_made_once_.empty() && is_made_once_[task] != 0 ? 1 : num_items;
  }
  /*! \brief The tasks that share one device by their group, or the task alone; `task` must outlive
   * it. */
  std::span<const int> Colocated(const int& task) const {
    const int group = task_group[static_cast<size_t>(task)];
    return group < 0 ? std::span<const int>(&task, 1) : group_tasks[group];
  }
  /*! \brief Row of `route_links` and `route_resources` for a pair of memories. */
  int Pair(int src, int dst) const { return src * num_memories + dst; }
  /*! \brief Time to copy a tensor between two memories, or kImpossible. */
  int64_t Transfer(int tensor, int src, int dst) const {
    return TransferOfSize(size_of[tensor], src, dst);
  }
  /*! \brief The same for any tensor of a size, a position in `sizes`. */
  int64_t TransferOfSize(int size, int src, int dst) const {
    const int way = way_of[static_cast<size_t>(Pair(src, dst))];
    if (way < 0) return kImpossible;
    if (way_ns_.empty()) return TransferOverWay(way, sizes[size]);
    return way_ns_[static_cast<size_t>(size) * pair_of.size() + static_cast<size_t>(way)];
  }
  /*! \brief Whether the tensor is charged to the host memory whatever the placement. */
  bool IsChargedToHost(int tensor) const {
    return host >= 0 && (is_output[tensor] != 0 || producer[tensor] < 0);
  }
  /*! \brief Time of a transfer over the links of a route. */
  int64_t TransferNs(std::span<const int> links, int64_t bytes) const;

 private:
  /*! \brief Of a way over links without measured points: the sum of the latencies, the least
   * bandwidth. */
  struct Speed {
    int64_t latency_ns = 0;
    int64_t bandwidth = 0;  // bytes/s; 0: it has measured points, or no links
  };

  /*! \brief Of links without measured points, of which there is one at least. */
  Speed SpeedOf(std::span<const int> links) const;
  /*! \brief TransferNs of a position in `pair_of`. */
  int64_t TransferOverWay(int way, int64_t bytes) const;
  /*! \brief What bytes take on a link beside its latency, as Link.payload_ns. */
  int64_t PayloadNs(int link, int64_t bytes) const;
  void DeriveBatches();
  void DeriveLists();
  void DeriveRoutes();
  void DeriveWays();
  void DeriveTransfers();
  void DeriveTails();
  void DeriveRule();
  void DeriveShared();
  /*! \brief Whether its lists are for this problem. */
  bool HasFitting(const SharedValues& shared) const;

  size_t pairs_ = 0;
  std::vector<Speed> way_speed_;       // [num_ways]
  std::vector<int64_t> way_ns_;        // [sizes][num_ways]; empty: too many to be kept
  std::vector<int> batch_row_;         // [largest batch size + 1], row in batch_run_ns; -1: none
  std::vector<uint8_t> is_made_once_;  // [num_tasks], all that it reads and makes is shared
};

}  // namespace heteroplace::model
