#include "search/prune.h"

#include <algorithm>

namespace heteroplace::search {

namespace {

constexpr int kMaxPatterns = 160;  // of a class

}  // namespace

void PrunePatterns(const decompose::Modules& modules, const Selector& selector,
                   const std::vector<double>& price, Patterns& patterns, Selection& selection) {
  const int num_memories = static_cast<int>(price.size());
  std::vector<std::vector<double>> prices{price};
  for (double factor : {0.0, 0.5, 0.8, 1.25, 2.0, 5.0}) {
    prices.push_back(price);
    for (double& one : prices.back()) one *= factor;
  }
  for (size_t memory = 0; memory < price.size(); ++memory) {
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
    for (const auto& varied : prices) {
      for (int entry = 0; entry < num_memories; ++entry) {
        for (int exit = 0; exit < num_memories; ++exit) {
          const int best = selector.Best(module_class, entry, exit, varied);
          if (best >= 0) kept.push_back(best);
        }
      }
    }
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    for (int module = 0; module < modules.num_modules(); ++module) {
      if (modules.module_class[module] != module_class) continue;
      int& choice = selection.choice[module];
      choice = static_cast<int>(std::lower_bound(kept.begin(), kept.end(), choice) - kept.begin());
    }
    patterns.Keep(module_class, kept);
  }
}

}  // namespace heteroplace::search
