#include "search/moves/selection.h"

#include <algorithm>
#include <cmath>

namespace heteroplace::search {

namespace {

constexpr int kVariants = 24;         // of the prices, when segments are replaced
constexpr double kSpread = 0.7;       // of the logarithms of their factors
constexpr double kPenaltyRate = 3.0;  // of overflow, in prices

}  // namespace

Selector::Selector(const model::Problem& problem, const decompose::Modules& modules,
                   const Patterns& patterns)
    : problem_(problem),
      modules_(modules),
      patterns_(patterns),
      num_memories_(static_cast<size_t>(problem.num_memories)),
      reach_((modules.module_class.size() + 1) * num_memories_),
      from_(reach_.size()) {}

void Selector::AddModule(int module, int pattern, int entry, int64_t sign,
                         Selection& totals) const {
  const Pattern& chosen = patterns_.of(modules_.module_class[module])[pattern];
  if (chosen.time_ns[entry] == list::kNever) {
    totals.num_unreachable += sign;
  } else {
    totals.time_ns += sign * chosen.time_ns[entry];
  }
  const size_t row = static_cast<size_t>(entry) * num_memories_;
  for (size_t memory = 0; memory < num_memories_; ++memory) {
    totals.used[memory] += sign * chosen.used[row + memory];
  }
}

Selection Selector::Make(std::vector<int> choice) const {
  Selection selection;
  selection.used.assign(num_memories_, 0);
  int entry = 0;
  for (int module = 0; module < modules_.num_modules(); ++module) {
    AddModule(module, choice[module], entry, 1, selection);
    entry = ExitOf(module, choice[module]);
  }
  selection.choice = std::move(choice);
  selection.violation = Violation(selection.used) + model::Unreachable(selection.num_unreachable);
  return selection;
}

int64_t Selector::Violation(std::span<const int64_t> used) const {
  int64_t total = 0;
  for (size_t memory = 0; memory < num_memories_; ++memory) {
    total += std::max<int64_t>(0, used[memory] - modules_.room_bytes[memory]);
  }
  return total;
}

double Selector::Penalty(std::span<const int64_t> used, std::span<const double> rate) const {
  double total = 0;
  for (size_t memory = 0; memory < num_memories_; ++memory) {
    const int64_t over = used[memory] - modules_.room_bytes[memory];
    if (over > 0) total += rate[memory] * static_cast<double>(over);
  }
  return total;
}

int Selector::Best(int module_class, int entry, int exit, std::span<const double> price) const {
  const auto& all = patterns_.of(module_class);
  int best = -1;
  double least = Patterns::kNoCost;
  for (size_t index = 0; index < all.size(); ++index) {
    if (all[index].exit_memory != exit) continue;
    const double cost = patterns_.Cost(all[index], entry, price);
    if (cost < least) {
      least = cost;
      best = static_cast<int>(index);
    }
  }
  return best;
}

Selector::Table Selector::MakeTable(std::span<const double> price) const {
  const size_t cells = modules_.classes.size() * num_memories_ * num_memories_;
  Table table{std::vector<int>(cells, -1), std::vector<double>(cells, Patterns::kNoCost)};
  for (int module_class = 0; module_class < static_cast<int>(modules_.classes.size());
       ++module_class) {
    const auto& all = patterns_.of(module_class);
    for (size_t index = 0; index < all.size(); ++index) {
      for (int entry = 0; entry < problem_.num_memories; ++entry) {
        const double cost = patterns_.Cost(all[index], entry, price);
        const size_t cell = Cell(module_class, entry, all[index].exit_memory);
        if (cost < table.cost[cell]) {
          table.cost[cell] = cost;
          table.pattern[cell] = static_cast<int>(index);
        }
      }
    }
  }
  return table;
}

bool Selector::FindPath(const Table& table, int begin, int end, int entry, int exit,
                        std::vector<int>& choice) {
  const size_t width = num_memories_;
  double* reach = reach_.data();
  std::fill_n(reach, width, Patterns::kNoCost);
  reach[entry] = 0;
  for (int module = begin; module < end; ++module) {
    const size_t row = static_cast<size_t>(module - begin) * width;
    const double* costs = table.cost.data() + Cell(modules_.module_class[module], 0, 0);
    for (size_t to = 0; to < width; ++to) {
      double least = Patterns::kNoCost;
      int best = -1;
      for (size_t from = 0; from < width; ++from) {
        const double cost = reach[row + from] + costs[from * width + to];
        if (cost < least) {
          least = cost;
          best = static_cast<int>(from);
        }
      }
      reach[row + width + to] = least;
      from_[row + width + to] = best;
    }
  }
  const double* last = reach + static_cast<size_t>(end - begin) * width;
  int memory = exit >= 0 ? exit : static_cast<int>(std::min_element(last, last + width) - last);
  if (last[memory] >= Patterns::kNoCost) return false;
  choice.resize(static_cast<size_t>(end - begin));
  for (int module = end - 1; module >= begin; --module) {
    const int before =
        from_[static_cast<size_t>(module - begin + 1) * width + static_cast<size_t>(memory)];
    choice[static_cast<size_t>(module - begin)] =
        table.pattern[Cell(modules_.module_class[module], before, memory)];
    memory = before;
  }
  return true;
}

Selection Selector::BestFor(std::span<const double> price) {
  std::vector<int> choice;
  if (!FindPath(MakeTable(price), 0, modules_.num_modules(), 0, -1, choice)) return {};
  return Make(std::move(choice));
}

std::vector<double> Selector::FindPrices(std::vector<double> price, int64_t target_ns, int rounds,
                                         const std::function<bool()>& stop) {
  std::vector<double> best = price;
  double highest = -Patterns::kNoCost;
  double step = 1.0;
  int without_gain = 0;
  for (int round = 0; round < rounds && !stop(); ++round) {
    const Selection selection = BestFor(price);
    if (selection.choice.empty()) break;
    double dual = static_cast<double>(selection.time_ns);
    double norm = 0;
    std::vector<double> slope(num_memories_);
    for (size_t memory = 0; memory < num_memories_; ++memory) {
      slope[memory] = static_cast<double>(selection.used[memory] - modules_.room_bytes[memory]);
      dual += price[memory] * slope[memory];
      // Scaled by the room, so that small memories count like large ones.
      slope[memory] /= std::max(1.0, static_cast<double>(modules_.room_bytes[memory]));
      if (price[memory] > 0 || slope[memory] > 0) norm += slope[memory] * slope[memory];
    }
    if (dual > highest) {
      highest = dual;
      best = price;
      without_gain = 0;
    } else if (++without_gain >= 4) {
      step /= 2;
      without_gain = 0;
    }
    if (norm == 0) break;
    const double gap = std::max(static_cast<double>(target_ns) - dual,
                                1e-4 * static_cast<double>(selection.time_ns));
    for (size_t memory = 0; memory < num_memories_; ++memory) {
      const double room = std::max(1.0, static_cast<double>(modules_.room_bytes[memory]));
      price[memory] = std::max(0.0, price[memory] + step * gap / norm * slope[memory] / room);
    }
  }
  return best;
}

Selection Selector::Improve(Selection selection, std::span<const double> price, int tries,
                            Random& random, const std::function<bool()>& stop) {
  const int count = modules_.num_modules();
  double total_room = 1;
  for (int64_t room : modules_.room_bytes) total_room += static_cast<double>(room);
  // A memory without a price still needs one, or its overflow would cost nothing.
  const double floor = 0.3 * static_cast<double>(selection.time_ns) / total_room;
  std::vector<double> rate(num_memories_);
  std::vector<Table> tables;
  for (int variant = 0; variant < kVariants; ++variant) {
    if (stop()) return selection;
    std::vector<double> varied(price.begin(), price.end());
    for (size_t memory = 0; memory < num_memories_ && variant > 0; ++memory) {
      const double factor = std::exp(kSpread * (random.Unit() + random.Unit() - 1.0) * 2.0);
      varied[memory] =
          variant % 3 == 0 ? std::max(varied[memory], floor) * factor : varied[memory] * factor;
    }
    tables.push_back(MakeTable(varied));
  }
  for (size_t memory = 0; memory < num_memories_; ++memory) {
    rate[memory] = kPenaltyRate * std::max(price[memory], floor);
  }
  Selection best = selection;
  double cost = static_cast<double>(selection.time_ns) + Penalty(selection.used, rate);
  std::vector<int> choice;
  std::vector<int> entry(static_cast<size_t>(count) + 1, 0);
  for (int module = 0; module < count; ++module) {
    entry[module + 1] = ExitOf(module, selection.choice[module]);
  }
  const double log_count = std::log(static_cast<double>(std::max(1, count)));
  for (int attempt = 0; attempt < tries && !stop(); ++attempt) {
    const int length = std::clamp(static_cast<int>(std::exp(random.Unit() * log_count)), 1, count);
    const int begin = random.Below(count - length + 1);
    const int end = begin + length;
    const int exit = end == count ? -1 : entry[end];
    const Table& table = tables[static_cast<size_t>(random.Below(kVariants))];
    if (!FindPath(table, begin, end, entry[begin], exit, choice)) continue;
    Selection trial{{}, selection.time_ns, selection.used, selection.num_unreachable, 0};
    int before = entry[begin];
    for (int module = begin; module < end; ++module) {
      AddModule(module, selection.choice[module], entry[module], -1, trial);
      AddModule(module, choice[module - begin], before, 1, trial);
      before = ExitOf(module, choice[module - begin]);
    }
    const double trial_cost = static_cast<double>(trial.time_ns) + Penalty(trial.used, rate);
    if (trial.num_unreachable > selection.num_unreachable) continue;
    if (trial.num_unreachable == selection.num_unreachable && trial_cost > cost) continue;
    cost = trial_cost;
    for (int module = begin; module < end; ++module) {
      selection.choice[module] = choice[module - begin];
      entry[module + 1] = ExitOf(module, selection.choice[module]);
    }
    selection.time_ns = trial.time_ns;
    selection.used = std::move(trial.used);
    selection.num_unreachable = trial.num_unreachable;
    selection.violation = Violation(selection.used) + model::Unreachable(selection.num_unreachable);
    if (selection.violation < best.violation ||
        (selection.violation == best.violation && selection.time_ns < best.time_ns)) {
      best = selection;
    }
  }
  return best;
}

std::vector<double> Selector::Slack(std::span<const double> price) const {
  const int count = modules_.num_modules();
  const size_t width = num_memories_;
  const Table table = MakeTable(price);
  std::vector<double> after((static_cast<size_t>(count) + 1) * width, 0.0);
  for (int module = count - 1; module >= 0; --module) {
    for (int from = 0; from < problem_.num_memories; ++from) {
      double least = Patterns::kNoCost;
      for (int to = 0; to < problem_.num_memories; ++to) {
        least = std::min(least, table.cost[Cell(modules_.module_class[module], from, to)] +
                                    after[(static_cast<size_t>(module) + 1) * width + to]);
      }
      after[static_cast<size_t>(module) * width + from] = least;
    }
  }
  std::vector<double> slack(table.cost.size(), Patterns::kNoCost);
  std::vector<double> reach(width, Patterns::kNoCost), next(width);
  reach[0] = 0;
  const double optimum = after[0];
  for (int module = 0; module < count; ++module) {
    std::ranges::fill(next, Patterns::kNoCost);
    for (int from = 0; from < problem_.num_memories; ++from) {
      for (int to = 0; to < problem_.num_memories; ++to) {
        const size_t cell = Cell(modules_.module_class[module], from, to);
        const double cost = reach[from] + table.cost[cell];
        next[to] = std::min(next[to], cost);
        const double path = cost + after[(static_cast<size_t>(module) + 1) * width + to];
        slack[cell] = std::min(slack[cell], path - optimum);
      }
    }
    reach.swap(next);
  }
  return slack;
}

}  // namespace heteroplace::search
