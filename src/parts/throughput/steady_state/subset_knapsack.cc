#include "parts/throughput/steady_state/subset_knapsack.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace heteroplace::throughput {

namespace {

constexpr double kNever = -std::numeric_limits<double>::infinity();

/*! \brief Run time of each variable on a device, kImpossible where one of its tasks cannot. */
std::vector<int64_t> RunTimes(const model::Problem& problem, const Hypergraph& graph, int device) {
  std::vector<int64_t> run_ns(graph.num_variables, 0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    int64_t& total = run_ns[graph.variable[task]];
    const int64_t own = problem.Run(task, device);
    const bool is_possible = own != model::kImpossible && total != model::kImpossible;
    total = is_possible ? total + own : model::kImpossible;
  }
  return run_ns;
}

/*! \brief The least time that a copy of each tensor to or from a memory takes of a unit. */
std::vector<int64_t> CopyTimes(const model::Problem& problem, const Hypergraph& graph, int memory,
                               int unit) {
  std::vector<int> pairs;
  bool takes_unit = true;
  for (int other = 0; other < problem.num_memories; ++other) {
    if (other == memory) continue;
    for (const int pair : {problem.Pair(memory, other), problem.Pair(other, memory)}) {
      if (problem.route_links[pair].empty()) continue;
      const auto used = problem.route_resources[pair];
      takes_unit = takes_unit && std::ranges::find(used, unit) != used.end();
      pairs.push_back(pair);
    }
  }
  std::vector<int64_t> copy_ns(graph.edges.size(), 0);
  if (pairs.empty() || !takes_unit) return copy_ns;
  for (size_t edge = 0; edge < graph.edges.size(); ++edge) {
    int64_t least = std::numeric_limits<int64_t>::max();
    for (int pair : pairs) {
      const int src = pair / problem.num_memories, dst = pair % problem.num_memories;
      least = std::min(least, problem.Transfer(graph.edges[edge].tensor, src, dst));
    }
    copy_ns[edge] = least;
  }
  return copy_ns;
}

}  // namespace

SubsetKnapsack::SubsetKnapsack(const model::Problem& problem, int64_t max_states)
    : graph_(problem), order_(graph_, max_states) {
  AddClasses(problem);
}

void SubsetKnapsack::AddClasses(const model::Problem& problem) {
  std::map<std::pair<std::vector<int64_t>, std::vector<int64_t>>, int> known;
  for (int device = 0; device < problem.num_devices; ++device) {
    const int memory = problem.device_memory[device];
    const auto& memories = problem.device_memory;
    const bool is_alone = std::count(memories.begin(), memories.end(), memory) == 1;
    std::vector<int64_t> copies(graph_.edges.size(), 0);
    if (is_alone && !problem.device_units[device].empty()) {
      copies = CopyTimes(problem, graph_, memory, problem.device_units[device].front());
    }
    const auto [found, is_new] = known.try_emplace({RunTimes(problem, graph_, device), copies},
                                                   static_cast<int>(known.size()));
    device_class_.push_back(found->second);
    if (!is_new) continue;
    run_ns_.push_back(found->first.first);
    has_copies_ =
        has_copies_ || std::ranges::any_of(copies, [](int64_t time_ns) { return time_ns > 0; });
    copy_ns_.push_back(std::move(copies));
  }
}

SubsetKnapsack::Change SubsetKnapsack::ChangeOf(int device_class, const std::vector<double>& profit,
                                                const Buckets& buckets,
                                                const SubsetOrder::Step& step,
                                                const SubsetOrder::Move& move) const {
  int64_t load_ns = move.is_in ? run_ns_[device_class][step.variable] : 0;
  if (load_ns == model::kImpossible) return {std::numeric_limits<int64_t>::max(), 0.0};
  for (int cut = move.first_cut; cut < move.last_cut; ++cut) {
    load_ns += copy_ns_[device_class][order_.cuts[cut]];
  }
  const int64_t whole = load_ns / buckets.width_ns;
  const auto rest = static_cast<double>(load_ns - whole * buckets.width_ns);
  return {whole, (move.is_in ? profit[step.variable] : 0.0) - buckets.price_per_ns * rest};
}

SubsetProfits SubsetKnapsack::Evaluate(int device_class, const std::vector<double>& profit,
                                       const Buckets& buckets, int at) {
  const int width = buckets.count + 1;
  layers_.resize(order_.steps.size() + 1);
  layers_[0].assign(width, kNever);
  layers_[0][0] = 0.0;
  for (size_t place = 0; place < order_.steps.size(); ++place) {
    const SubsetOrder::Step& step = order_.steps[place];
    layers_[place + 1].assign(static_cast<size_t>(step.num_states) * width, kNever);
    for (const SubsetOrder::Move& move : step.moves) {
      const Change change = ChangeOf(device_class, profit, buckets, step, move);
      if (change.buckets >= width) continue;
      const double* before = layers_[place].data() + static_cast<size_t>(move.from) * width;
      double* behind =
          layers_[place + 1].data() + static_cast<size_t>(move.to) * width + change.buckets;
      const auto count = static_cast<int>(width - change.buckets);
      for (int b = 0; b < count; ++b) {
        const double value = before[b] + change.profit;
        behind[b] = value > behind[b] ? value : behind[b];
      }
    }
  }
  SubsetProfits found{layers_.back(), {}};
  int of_at = 0;  // the exact number of buckets behind the value at `at`
  const double spare = buckets.price_per_ns * static_cast<double>(buckets.width_ns);
  for (int b = 0; b < width; ++b) {
    const bool is_better = b == 0 || found.most[b] >= found.most[b - 1] + spare;
    if (is_better && b <= at) of_at = b;
    if (!is_better) found.most[b] = found.most[b - 1] + spare;
  }
  found.is_chosen = Chosen(device_class, profit, buckets, of_at);
  return found;
}

std::vector<int64_t> SubsetKnapsack::Chosen(int device_class, const std::vector<double>& profit,
                                            const Buckets& buckets, int at) const {
  const size_t width = static_cast<size_t>(buckets.count) + 1;
  std::vector<int64_t> is_chosen(graph_.num_variables, 0);
  int state = 0;
  for (size_t place = order_.steps.size(); place-- > 0;) {
    const SubsetOrder::Step& step = order_.steps[place];
    const double value = layers_[place + 1][static_cast<size_t>(state) * width + at];
    for (const SubsetOrder::Move& move : step.moves) {
      if (move.to != state) continue;
      const Change change = ChangeOf(device_class, profit, buckets, step, move);
      if (change.buckets > at) continue;
      const auto before = static_cast<size_t>(at - change.buckets);
      // The same sum as before, so the same number.
      if (layers_[place][static_cast<size_t>(move.from) * width + before] + change.profit ==
          value) {
        is_chosen[step.variable] = move.is_in ? 1 : 0;
        state = move.from;
        at = static_cast<int>(before);
        break;
      }
    }
  }
  return is_chosen;
}

}  // namespace heteroplace::throughput
