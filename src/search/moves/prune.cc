#include "search/moves/prune.h"

#include <algorithm>

namespace heteroplace::search {

namespace {

constexpr int kMaxPatterns = 160;  // of a class

/*! \brief Adds for each two memories the best pattern between them at a price. */
void AddBest(const Patterns& patterns, int module_class, const std::vector<double>& price,
             std::vector<int>& kept) {
  const auto& all = patterns.of(module_class);
  std::vector<int> best(price.size());
  std::vector<double> least(price.size());
  for (int entry = 0; entry < patterns.num_entries(); ++entry) {
    std::ranges::fill(best, -1);
    std::ranges::fill(least, Patterns::kNoCost);
    for (size_t index = 0; index < all.size(); ++index) {
      const double cost = patterns.Cost(all[index], entry, price);
      const auto exit = static_cast<size_t>(all[index].exit_memory);
      if (cost >= least[exit]) continue;
      least[exit] = cost;
      best[exit] = static_cast<int>(index);
    }
    for (int index : best) {
      if (index >= 0) kept.push_back(index);
    }
  }
}

}  // namespace

void PrunePatterns(const decompose::Modules& modules, const std::vector<double>& price,
                   Patterns& patterns, Selection& selection) {
  std::vector<std::vector<double>> prices{price};
  const bool is_free = std::ranges::all_of(price, [](double one) { return one == 0; });
  for (double factor : {0.0, 0.5, 0.8, 1.25, 2.0, 5.0}) {
    if (is_free) break;
    prices.push_back(price);
    for (double& one : prices.back()) one *= factor;
  }
  for (size_t memory = 0; memory < price.size(); ++memory) {
    if (price[memory] == 0) continue;
    for (double factor : {0.3, 3.0}) {
      prices.push_back(price);
      prices.back()[memory] *= factor;
    }
  }
  for (int module_class = 0; module_class < static_cast<int>(modules.classes.size());
       ++module_class) {
    if (static_cast<int>(patterns.of(module_class).size()) <= kMaxPatterns) continue;
    std::vector<int> kept;
    for (int module = 0; module < modules.num_modules(); ++module) {
      if (modules.module_class[module] == module_class) kept.push_back(selection.choice[module]);
    }
    for (const auto& varied : prices) AddBest(patterns, module_class, varied, kept);
    std::ranges::sort(kept);
    kept.erase(std::ranges::unique(kept).begin(), kept.end());
    for (int module = 0; module < modules.num_modules(); ++module) {
      if (modules.module_class[module] != module_class) continue;
      int& choice = selection.choice[module];
      choice = static_cast<int>(std::ranges::lower_bound(kept, choice) - kept.begin());
    }
    patterns.Keep(module_class, kept);
  }
}

}  // namespace heteroplace::search
