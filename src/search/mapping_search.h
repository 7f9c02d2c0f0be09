#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "list/evaluate.h"
#include "model/problem.h"

namespace heteroplace::search {

/*! \brief How a search over mappings makes and accepts its moves. */
enum class MappingRule : int {
  kAnnealing = 0,  // one gene per move; worse ones with probability exp(-worse / temperature)
  kEvolution = 1,  // each gene with probability 1 / genes; kept if not worse
};

/*! \brief Rule and budgets of a search over mappings; the first budget to be used up ends it. */
struct MappingOptions {
  MappingRule rule = MappingRule::kAnnealing;
  int64_t max_evaluations = -1;  // -1: no limit
  double time_limit_s = 10.0;
  uint64_t seed = 0;
  int64_t bound_ns = 0;  // a makespan that cannot be beaten: the search ends there
};

/*! \brief What a search over mappings found. */
struct MappingOutcome {
  std::vector<int> device;  // [num_tasks], the best mapping
  list::Value value;        // of it, in the search's order
  int64_t evaluations = 0;
  bool was_stopped = false;  // by the hook
};

/*! \brief Called now and then with (evaluations, best makespan); true ends the search. */
using MappingHook = std::function<bool(int64_t, int64_t)>;

/*!
 * \brief Improves a mapping by simulated annealing or a (1+1) evolutionary algorithm, as DiviML
 * (section V) runs them: the value of a mapping is the makespan of list scheduling in one fixed
 * order.
 *
 * A gene is a task, or a group, with at least two allowed devices. Once a mapping fits, no other
 * is accepted; before, less violation goes before less makespan. Annealing cools geometrically
 * from 0.1 to 1e-5 of the first makespan over its budget: evaluations if they are limited, else
 * time. The same seed and number of evaluations give the same result, unless the time limit ends
 * the search.
 *
 * \param start [num_tasks], allowed devices, one per group.
 * \param order [num_tasks], topological.
 */
MappingOutcome SearchMapping(const model::Problem& problem, std::span<const int> start,
                             std::span<const int> order, const MappingOptions& options,
                             const MappingHook& hook);

}  // namespace heteroplace::search
