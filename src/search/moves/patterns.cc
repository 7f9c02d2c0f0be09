#include "search/moves/patterns.h"

#include <algorithm>
#include <numeric>

#include "search/evaluate/module_evaluator.h"
#include "search/moves/arrangement.h"

namespace heteroplace::search {

namespace {

constexpr size_t kMaxEnumerated = 256;       // placements of a module
constexpr size_t kMaxEnumeratedPath = 4096;  // of one whose order is forced

}  // namespace

Patterns::Patterns(const model::Problem& problem, const decompose::Modules& modules)
    : problem_(problem),
      modules_(modules),
      num_memories_(static_cast<size_t>(problem.num_memories)),
      num_entries_(modules.num_modules() > 1 ? problem.num_memories : 1),
      patterns_(modules.classes.size()) {}

int Patterns::Add(int module_class, const Layout& layout, int64_t lack_bytes) {
  const decompose::Module& module = modules_.classes[module_class];
  Pattern pattern;
  pattern.layout = layout;
  pattern.lack_bytes = lack_bytes;
  if (module.num_tasks > 0) pattern.exit_memory = problem_.device_memory[layout.device.back()];
  const bool has_entry = std::ranges::find(module.source, decompose::kEntry) != module.source.end();
  Arrangement arrangement(problem_, module);
  ModuleEvaluator evaluator(problem_, module, arrangement, false);
  for (int entry = 0; entry < num_entries_; ++entry) {
    if (entry == 0 || has_entry) {
      arrangement.Load(layout.device, layout.order, entry);
      evaluator.Evaluate();
    }
    pattern.time_ns.push_back(evaluator.num_unreachable() > 0 ? list::kNever
                                                              : evaluator.makespan_ns());
    pattern.used.insert(pattern.used.end(), arrangement.used().begin(), arrangement.used().end());
  }
  std::vector<Pattern>& others = patterns_[module_class];
  if (IsDominated(pattern, others)) return -1;
  others.push_back(std::move(pattern));
  return static_cast<int>(others.size()) - 1;
}

bool Patterns::IsAtLeastAsGood(const Pattern& left, const Pattern& right, int entry) const {
  if (left.time_ns[entry] > right.time_ns[entry]) return false;
  if (left.lack_bytes > right.lack_bytes) return false;
  const size_t row = static_cast<size_t>(entry) * num_memories_;
  for (size_t memory = 0; memory < num_memories_; ++memory) {
    if (left.used[row + memory] > right.used[row + memory]) return false;
  }
  return true;
}

bool Patterns::IsDominated(const Pattern& pattern, const std::vector<Pattern>& others) const {
  for (int entry = 0; entry < num_entries_; ++entry) {
    const bool is_beaten = std::ranges::any_of(others, [&](const Pattern& other) {
      return other.exit_memory == pattern.exit_memory && IsAtLeastAsGood(other, pattern, entry);
    });
    if (!is_beaten) return false;
  }
  return true;
}

void Patterns::Keep(int module_class, std::span<const int> kept) {
  std::vector<Pattern> left;
  for (int pattern : kept) left.push_back(std::move(patterns_[module_class][pattern]));
  patterns_[module_class] = std::move(left);
}

bool IsEnumerated(const decompose::Module& module) {
  size_t count = 1;
  bool is_path = true;
  for (int task = 0; task < module.num_tasks && count <= kMaxEnumeratedPath; ++task) {
    count *= std::max<size_t>(1, module.allowed[task].size());
    const auto before = module.predecessors[task];
    is_path = is_path && (task == 0 || (!before.empty() && before.back() == task - 1));
  }
  return is_path ? count <= kMaxEnumeratedPath : count <= kMaxEnumerated && module.num_tasks <= 2;
}

void AddPlainPatterns(const model::Problem& problem, const decompose::Modules& modules,
                      Patterns& patterns, const std::function<bool()>& stop) {
  for (int index = 0; index < static_cast<int>(modules.classes.size()); ++index) {
    if (stop()) return;
    const decompose::Module& module = modules.classes[index];
    Layout layout{std::vector<int>(module.num_tasks), std::vector<int>(module.num_tasks)};
    std::iota(layout.order.begin(), layout.order.end(), 0);
    if (IsEnumerated(module)) {
      std::vector<size_t> choice(module.num_tasks, 0);
      while (true) {
        bool is_group_torn = false;
        for (int task = 0; task < module.num_tasks; ++task) {
          layout.device[task] = module.allowed[task][choice[task]];
          if (module.group[task] >= 0) {
            const int first = module.group_tasks[module.group[task]][0];
            is_group_torn = is_group_torn || layout.device[first] != layout.device[task];
          }
        }
        if (!is_group_torn) patterns.Add(index, layout);
        int task = module.num_tasks;
        while (task > 0 && ++choice[task - 1] == module.allowed[task - 1].size()) {
          choice[--task] = 0;
        }
        if (task == 0) break;
      }
      continue;
    }
    for (int device = 0; device < problem.num_devices; ++device) {
      bool is_possible = true;
      for (int task = 0; task < module.num_tasks; ++task) {
        is_possible = is_possible && module.Run(task, device) != model::kImpossible;
      }
      if (!is_possible) continue;
      std::ranges::fill(layout.device, device);
      patterns.Add(index, layout);
    }
  }
}

}  // namespace heteroplace::search
