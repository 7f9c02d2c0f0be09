#include "search/patterns.h"

#include <algorithm>
#include <numeric>

#include "search/arrangement.h"
#include "search/module_evaluator.h"

namespace heteroplace {

namespace {

constexpr size_t kMaxEnumerated = 256;        // placements of a piece
constexpr size_t kMaxEnumeratedChain = 4096;  // of one whose order is forced

}  // namespace

Patterns::Patterns(const Problem& problem, const Chain& chain)
    : problem_(problem),
      chain_(chain),
      num_memories_(static_cast<size_t>(problem.num_memories)),
      patterns_(chain.classes.size()) {}

int Patterns::Add(int piece_class, const Layout& layout) {
  const Piece& piece = chain_.classes[piece_class];
  Pattern pattern;
  pattern.layout = layout;
  if (piece.num_tasks > 0) pattern.exit_memory = problem_.device_memory[layout.device.back()];
  const bool has_entry =
      std::find(piece.source.begin(), piece.source.end(), kEntry) != piece.source.end();
  Arrangement arrangement(problem_, piece);
  PieceEvaluator evaluator(problem_, piece, arrangement);
  for (int entry = 0; entry < problem_.num_memories; ++entry) {
    if (entry == 0 || has_entry) {
      arrangement.Load(layout.device, layout.order, entry);
      evaluator.Evaluate();
    }
    pattern.time_ns.push_back(evaluator.num_unreachable() > 0 ? kNever : evaluator.makespan_ns());
    pattern.used.insert(pattern.used.end(), arrangement.used().begin(), arrangement.used().end());
  }
  std::vector<Pattern>& others = patterns_[piece_class];
  if (IsDominated(pattern, others)) return -1;
  others.push_back(std::move(pattern));
  return static_cast<int>(others.size()) - 1;
}

bool Patterns::IsAtLeastAsGood(const Pattern& left, const Pattern& right, int entry) const {
  if (left.time_ns[entry] > right.time_ns[entry]) return false;
  const size_t row = static_cast<size_t>(entry) * num_memories_;
  for (size_t memory = 0; memory < num_memories_; ++memory) {
    if (left.used[row + memory] > right.used[row + memory]) return false;
  }
  return true;
}

bool Patterns::IsDominated(const Pattern& pattern, const std::vector<Pattern>& others) const {
  for (int entry = 0; entry < problem_.num_memories; ++entry) {
    const bool is_beaten = std::any_of(others.begin(), others.end(), [&](const Pattern& other) {
      return other.exit_memory == pattern.exit_memory && IsAtLeastAsGood(other, pattern, entry);
    });
    if (!is_beaten) return false;
  }
  return true;
}

void Patterns::Keep(int piece_class, std::span<const int> kept) {
  std::vector<Pattern> left;
  for (int pattern : kept) left.push_back(std::move(patterns_[piece_class][pattern]));
  patterns_[piece_class] = std::move(left);
}

bool IsEnumerated(const Piece& piece) {
  size_t count = 1;
  bool is_chain = true;
  for (int task = 0; task < piece.num_tasks && count <= kMaxEnumeratedChain; ++task) {
    count *= std::max<size_t>(1, piece.allowed[task].size());
    const auto before = piece.predecessors[task];
    is_chain = is_chain && (task == 0 || (!before.empty() && before.back() == task - 1));
  }
  return is_chain ? count <= kMaxEnumeratedChain : count <= kMaxEnumerated && piece.num_tasks <= 2;
}

void AddPlainPatterns(const Problem& problem, const Chain& chain, Patterns& patterns) {
  for (int index = 0; index < static_cast<int>(chain.classes.size()); ++index) {
    const Piece& piece = chain.classes[index];
    Layout layout{std::vector<int>(piece.num_tasks), std::vector<int>(piece.num_tasks)};
    std::iota(layout.order.begin(), layout.order.end(), 0);
    if (IsEnumerated(piece)) {
      std::vector<size_t> choice(piece.num_tasks, 0);
      while (true) {
        bool is_group_torn = false;
        for (int task = 0; task < piece.num_tasks; ++task) {
          layout.device[task] = piece.allowed[task][choice[task]];
          if (piece.group[task] >= 0) {
            const int first = piece.group_tasks[piece.group[task]][0];
            is_group_torn = is_group_torn || layout.device[first] != layout.device[task];
          }
        }
        if (!is_group_torn) patterns.Add(index, layout);
        int task = piece.num_tasks;
        while (task > 0 && ++choice[task - 1] == piece.allowed[task - 1].size()) {
          choice[--task] = 0;
        }
        if (task == 0) break;
      }
      continue;
    }
    for (int device = 0; device < problem.num_devices; ++device) {
      bool is_possible = true;
      for (int task = 0; task < piece.num_tasks; ++task) {
        is_possible = is_possible && piece.Run(task, device) != kImpossible;
      }
      if (!is_possible) continue;
      std::fill(layout.device.begin(), layout.device.end(), device);
      patterns.Add(index, layout);
    }
  }
}

}  // namespace heteroplace
