#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "decompose/module.h"
#include "list/evaluate.h"
#include "model/problem.h"
#include "search/branches.h"

namespace heteroplace::search {

/*! \brief A placement and an order of the tasks of a module. */
struct Layout {
  std::vector<int> device;  // [num_tasks]
  std::vector<int> order;   // [num_tasks], topological
};

/*! \brief What a module is improved for. */
struct ModuleGoal {
  int entry = 0;                     // memory of the cut before the module
  std::vector<double> price;         // [num_memories], ns per byte
  std::vector<double> exit_ns;       // [num_devices], added for the device of the last task
  std::vector<int64_t> limit_bytes;  // [num_memories], more is a violation
  // The whole problem, where the module is all of it and what lacks by lifetime is a violation too;
  // limits are then below what it lacks.
  const model::Problem* whole = nullptr;
};

/*! \brief Less violation first, then less time and price. */
struct ModuleValue {
  int64_t violation = 0;
  double cost = 0;

  bool operator<(const ModuleValue& other) const {
    return violation != other.violation ? violation < other.violation : cost < other.cost;
  }
};

/*! \brief How long and how hot to anneal. */
struct AnnealOptions {
  int64_t max_evaluations = 0;
  uint64_t seed = 0;
  double first_heat = 0.01;  // temperature at the beginning, as a part of the time of the module
  // Segments of the order annealed one after the other, with prices of their own.
  int segment = 0;                    // tasks of one, at least 2; 0: all tasks together
  std::vector<int64_t> target_bytes;  // [num_memories], use at the end that prices aim at
  std::vector<double> price;          // [num_memories], ns per byte to begin with
};

/*! \brief The best layout that annealing met. */
struct AnnealOutcome {
  Layout layout;
  ModuleValue value;
  int64_t time_ns = 0;
  int64_t evaluations = 0;
  std::vector<double> price;  // [num_memories], ns per byte after the last segment; else empty
};

/*!
 * \brief Improves a layout by simulated annealing over placement and order.
 *
 * Moves: a task, a branch or a part of one, a module or a segment of the order to another device;
 * two tasks' or branches' devices exchanged; a task or a branch shifted in the order. The same seed
 * and number of evaluations give the same result, unless `stop` becomes true. Segment by segment,
 * all behind the next checkpoints is a horizon (see Horizon), single tasks are moved, not branches
 * or groups, and the result is the end of the walk if that is better than the beginning.
 *
 * \param branches As found by FindBranches.
 */
AnnealOutcome Anneal(const model::Problem& problem, const decompose::Module& module,
                     const Branches& branches, const Layout& start, const ModuleGoal& goal,
                     const AnnealOptions& options, const std::atomic<bool>& stop);

}  // namespace heteroplace::search
