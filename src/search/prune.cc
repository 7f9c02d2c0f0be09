#include "search/prune.h"

#include <algorithm>

namespace heteroplace {

namespace {

constexpr int kMaxPatterns = 160;  // of a class

}  // namespace

void PrunePatterns(const Chain& chain, const Selector& selector, const std::vector<double>& price,
                   Patterns& patterns, Selection& selection) {
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
  for (int piece_class = 0; piece_class < static_cast<int>(chain.classes.size()); ++piece_class) {
    if (static_cast<int>(patterns.of(piece_class).size()) <= kMaxPatterns) continue;
    std::vector<int> kept;
    for (int piece = 0; piece < chain.num_pieces(); ++piece) {
      if (chain.piece_class[piece] == piece_class) kept.push_back(selection.choice[piece]);
    }
    for (const auto& varied : prices) {
      for (int entry = 0; entry < num_memories; ++entry) {
        for (int exit = 0; exit < num_memories; ++exit) {
          const int best = selector.Best(piece_class, entry, exit, varied);
          if (best >= 0) kept.push_back(best);
        }
      }
    }
    std::sort(kept.begin(), kept.end());
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    for (int piece = 0; piece < chain.num_pieces(); ++piece) {
      if (chain.piece_class[piece] != piece_class) continue;
      int& choice = selection.choice[piece];
      choice = static_cast<int>(std::lower_bound(kept.begin(), kept.end(), choice) - kept.begin());
    }
    patterns.Keep(piece_class, kept);
  }
}

}  // namespace heteroplace
