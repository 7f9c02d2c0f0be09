#pragma once

#include <cstdint>
#include <vector>

#include "model/problem.h"

namespace heteroplace::decompose {

/*! \brief Homes of a tensor that no task of a module makes, where they are no memory id. */
inline constexpr int kEverywhere = -1;  // a model input of a cluster without host
inline constexpr int kEntry = -2;       // made by the cut before the module, wherever that was put

/*!
 * \brief The tasks between two cuts of a graph, with local ids, as a small problem of its own.
 *
 * A cut is a task that every other task comes before or after and that no tensor passes by: when
 * it ends, nothing else is under way. So the makespan of a plan is the sum of the times of its
 * modules, and the time of a module depends on its own placement and on the memory of the cut
 * before it. The last task of a module is the next cut, except in the last module. Tasks are in
 * topological order. Equal modules share one object. Immutable.
 */
struct Module {
  int num_tasks = 0;
  int num_tensors = 0;
  size_t num_devices = 0;
  size_t num_memories = 0;
  std::vector<int64_t> run_ns;           // [num_tasks][num_devices], kImpossible: not allowed
  std::vector<int64_t> weight_bytes;     // [num_tasks]
  std::vector<int64_t> workspace_bytes;  // [num_tasks]
  std::vector<int> group;                // [num_tasks], -1: free
  model::Csr group_tasks;                // [num_groups]
  model::Csr allowed;                    // [num_tasks], device ids
  model::Csr reads;                      // [num_tasks], tensors
  model::Csr makes;                      // [num_tasks], tensors
  model::Csr predecessors;               // [num_tasks]
  model::Csr successors;                 // [num_tasks]
  model::Csr readers;                    // [num_tensors], tasks
  std::vector<int> producer;             // [num_tensors], -1: none here
  std::vector<int> source;               // [num_tensors], home of a tensor without producer here
  std::vector<uint8_t> is_from_cut;      // [num_tensors], made by the last task before the module
  std::vector<int64_t> tensor_bytes;     // [num_tensors]
  std::vector<int64_t> charged_bytes;    // [num_tensors], by the static rule
  std::vector<uint8_t> is_free_at_host;  // [num_tensors], the host has room set aside for it
  std::vector<int> host_outputs;         // tensors that go to the host at the end
  const model::Problem* problem = nullptr;  // that it is a part of, which must outlive it
  std::vector<int> size_of;                 // [num_tensors], as in the problem
  std::vector<int64_t> tail_ns;             // [num_tasks], shortest possible time after its finish
  bool has_exit = false;                    // the last task is a cut
  bool has_workspace = false;               // some task needs workspace

  /*! \brief Run time of a task on a device, or kImpossible. */
  int64_t Run(int task, int device) const {
    return run_ns[static_cast<size_t>(task) * num_devices + static_cast<size_t>(device)];
  }
  /*! \brief Time to copy a tensor between memories, or kImpossible. */
  int64_t Transfer(int tensor, int src, int dst) const {
    return problem->TransferOfSize(size_of[tensor], src, dst);
  }
};

/*! \brief A graph as a modules of modules. */
struct Modules {
  std::vector<Module> classes;    // distinct modules
  std::vector<int> module_class;  // [num_modules]
  std::vector<int> first_task;    // [num_modules + 1]; the tasks of a module are consecutive
  std::vector<int> shape;         // [num_classes]; equal: the same tasks and tensors, other costs
  // [num_memories], what modules may use together. Of several modules each is then free of
  // workspace: room for the largest on each device is set aside.
  std::vector<int64_t> room_bytes;

  /*! \brief Number of modules. */
  int num_modules() const { return static_cast<int>(module_class.size()); }
};

/*!
 * \brief Cuts a problem into modules; one module if it has no cut, if one would have almost all
 * tasks, or if there are so many pairs of memories that looking at all of them for each module
 * would take longer than it gains.
 *
 * Tasks of a group stay in one module. Complexity: O(tasks * devices + reads).
 */
Modules Decompose(const model::Problem& problem);

/*!
 * \brief The same at every task that all others come before or after, whatever tensors pass by.
 *
 * Times of such modules still add up to at most the makespan, which is what bounds need; but a
 * module does not start from a clean state, and groups may be torn.
 */
Modules DecomposeForBounds(const model::Problem& problem);

}  // namespace heteroplace::decompose
