#include "parts/throughput/steady_state/relaxation.h"

#include <algorithm>
#include <limits>

namespace heteroplace::throughput {

namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

}  // namespace

Relaxation::Relaxation(const model::Problem& problem, int64_t max_work)
    : graph_(problem),
      num_prices_(static_cast<size_t>(problem.num_resources + problem.num_memories)),
      plan_(EliminationPlan::Make(graph_, max_work)) {
  for (const BaseTable& table : graph_.tables) values_.emplace_back(table.entries.size(), 0.0);
  for (const Elimination& step : plan_.eliminations) {
    values_.emplace_back(static_cast<size_t>(step.size), 0.0);
    choice_.emplace_back(static_cast<size_t>(step.size), uint16_t{0});
  }
  counts_ = values_;
}

RelaxedValue Relaxation::Evaluate(const Prices& prices) {
  FillBase(prices);
  RelaxedValue found;
  found.totals.assign(num_prices_, 0.0);
  for (size_t index = 0; index < plan_.eliminations.size(); ++index) {
    Eliminate(index);
    const Elimination& step = plan_.eliminations[index];
    if (step.multiplicity > 0) {
      found.value += step.multiplicity * values_[graph_.tables.size() + index][0];
    }
  }
  if (found.value < kInfinite) CountTotals(found.totals);
  return found;
}

void Relaxation::FillBase(const Prices& prices) {
  for (size_t table = 0; table < graph_.tables.size(); ++table) {
    const std::vector<Amounts>& entries = graph_.tables[table].entries;
    for (size_t entry = 0; entry < entries.size(); ++entry) {
      double cost = entries[entry].is_possible ? 0.0 : kInfinite;
      for (const auto& [position, amount] : entries[entry].list) {
        cost += prices[static_cast<size_t>(position)] * amount;
      }
      values_[table][entry] = cost;
    }
  }
}

void Relaxation::Eliminate(size_t index) {
  const Elimination& step = plan_.eliminations[index];
  const size_t num_others = step.domain.size() - 1;
  const int num_values = step.domain.back();
  std::vector<double>& result = values_[graph_.tables.size() + index];
  std::vector<int>& at = scratch_.at;
  std::vector<const double*>& row = scratch_.row;
  std::vector<double>& sums = scratch_.sums;
  at.assign(num_others, 0);
  row.resize(step.inputs.size());
  sums.resize(static_cast<size_t>(num_values));
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = values_[static_cast<size_t>(step.inputs[i].table)].data();
  }
  for (size_t entry = 0; entry < result.size(); ++entry) {
    std::ranges::fill(sums, 0.0);
    for (size_t i = 0; i < row.size(); ++i) {
      const int stride = step.inputs[i].strides.back();
      const double scale = step.inputs[i].scale;
      for (int value = 0; value < num_values; ++value) {
        sums[static_cast<size_t>(value)] += scale * row[i][static_cast<ptrdiff_t>(value) * stride];
      }
    }
    const auto least = std::ranges::min_element(sums);
    result[entry] = *least;
    choice_[index][entry] = static_cast<uint16_t>(least - sums.begin());
    for (size_t other = num_others; other-- > 0;) {  // the next entry: last variable fastest
      const bool wraps = ++at[other] == step.domain[other];
      const int change = wraps ? 1 - step.domain[other] : 1;
      for (size_t i = 0; i < row.size(); ++i)
        row[i] += static_cast<ptrdiff_t>(change) * step.inputs[i].strides[other];
      if (!wraps) break;
      at[other] = 0;
    }
  }
}

void Relaxation::CountTotals(std::vector<double>& totals) {
  const size_t num_base = graph_.tables.size();
  for (std::vector<double>& count : counts_) std::ranges::fill(count, 0.0);
  for (size_t index = plan_.eliminations.size(); index-- > 0;) {
    const Elimination& step = plan_.eliminations[index];
    std::vector<double>& count = counts_[num_base + index];
    if (step.domain.size() == 1) count[0] += step.multiplicity;
    for (size_t entry = 0; entry < count.size(); ++entry) {
      if (count[entry] == 0.0) continue;
      for (const Elimination::Input& input : step.inputs) {
        int offset = choice_[index][entry] * input.strides.back();
        size_t rest = entry;
        for (size_t other = step.domain.size() - 1; other-- > 0;) {
          const auto values = static_cast<size_t>(step.domain[other]);
          offset += static_cast<int>(rest % values) * input.strides[other];
          rest /= values;
        }
        counts_[static_cast<size_t>(input.table)][static_cast<size_t>(offset)] +=
            count[entry] * input.scale;
      }
    }
  }
  for (size_t table = 0; table < num_base; ++table) {
    for (size_t entry = 0; entry < counts_[table].size(); ++entry) {
      for (const auto& [position, amount] : graph_.tables[table].entries[entry].list) {
        totals[static_cast<size_t>(position)] += counts_[table][entry] * amount;
      }
    }
  }
}

std::vector<int> Relaxation::Placement() const {
  std::vector<int> value(graph_.domain.size(), -1);  // of the first copy of each variable
  std::vector<int> chosen(plan_.instances.size(), 0);
  std::vector<std::vector<int>> held(plan_.instances.size());  // values of the scope
  for (size_t index = plan_.instances.size(); index-- > 0;) {
    const EliminationInstance& instance = plan_.instances[index];
    const Elimination& step = plan_.eliminations[static_cast<size_t>(instance.elimination)];
    size_t entry = 0;
    for (size_t other = 0; other < instance.scope.size(); ++other) {
      const auto parent = static_cast<size_t>(instance.parent);
      const EliminationInstance& user = plan_.instances[parent];
      const auto at = std::ranges::find(user.scope, instance.scope[other]);
      const int here = at == user.scope.end()
                           ? chosen[parent]
                           : held[parent][static_cast<size_t>(at - user.scope.begin())];
      held[index].push_back(here);
      entry = entry * static_cast<size_t>(step.domain[other]) + static_cast<size_t>(here);
    }
    chosen[index] = choice_[static_cast<size_t>(instance.elimination)][entry];
    value[static_cast<size_t>(instance.variable)] = chosen[index];
  }
  std::vector<int> device;
  device.reserve(graph_.task_variable.size());
  for (int variable : graph_.task_variable) device.push_back(value[static_cast<size_t>(variable)]);
  return device;
}

}  // namespace heteroplace::throughput
