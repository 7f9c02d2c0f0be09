#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "model/problem.h"
#include "model/steps.h"

namespace heteroplace::throughput {

/*! \brief Collects the steps of a plan for several items as they are scheduled, in any order. */
class StepLog {
 public:
  /*! \brief Adds a step. Steps that it needs were added before it. */
  void Add(const model::Step& step, int64_t start_ns, int64_t finish_ns,
           const std::vector<int>& items) {
    list_.push_back(step);
    items_.AddRow(items);
    times_.emplace_back(start_ns, finish_ns);
  }

  /*!
   * \brief The steps by start, then finish; ties stay in the order of adding.
   *
   * That keeps dependencies and the order of service of each unit and channel, so simulating the
   * steps is never later than they were scheduled.
   */
  model::Steps Sorted(const model::Problem& problem, int num_items) const {
    std::vector<int> order(times_.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order,
                             [this](int left, int right) { return times_[left] < times_[right]; });
    model::Steps steps;
    steps.num_items = num_items;
    for (int index : order) {
      const model::Step& step = list_[index];
      steps.list.push_back(step);
      steps.items.AddRow(items_[index]);
      if (step.kind == model::StepKind::kRun) {
        steps.links.AddRow(std::vector<int>{});
      } else {
        steps.links.AddRow(problem.route_links[problem.Pair(step.src, step.dst)]);
      }
    }
    return steps;
  }

 private:
  std::vector<model::Step> list_;                   // [num_steps]
  model::Csr items_;                                // [num_steps]
  std::vector<std::pair<int64_t, int64_t>> times_;  // [num_steps], start and finish
};

}  // namespace heteroplace::throughput
