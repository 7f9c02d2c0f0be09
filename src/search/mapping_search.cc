#include "search/mapping_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "model/memory_use.h"
#include "support/random.h"

namespace heteroplace {

namespace {

constexpr double kFirstHeat = 0.1;     // temperature at the start, as a part of the makespan
constexpr double kCooling = 1e-4;      // temperature at the end, as a part of the first one
constexpr double kHookSeconds = 0.05;  // between two calls of the hook

using Clock = std::chrono::steady_clock;

/*! \brief The tasks that share one device by their label, or the task alone. */
std::span<const int> Members(const Problem& problem, const int& task) {
  const int group = problem.task_group[task];
  return group < 0 ? std::span<const int>(&task, 1) : problem.group_tasks[group];
}

/*! \brief Fills the devices task by task and keeps account of the room. */
class FastestFiller {
 public:
  explicit FastestFiller(const Problem& problem)
      : problem_(problem),
        use_(problem),
        is_there_(static_cast<size_t>(problem.num_tensors) *
                  static_cast<size_t>(problem.num_memories)),
        device_(problem.num_tasks, -1) {}

  void Place(int task) {
    if (device_[task] < 0) {
      const int chosen = Choose(task);
      for (int member : Members(problem_, task)) {
        device_[member] = chosen;
        use_.AddTask(member, chosen);
      }
    }
    const int memory = problem_.device_memory[device_[task]];
    for (int tensor : problem_.task_reads[task]) {
      if (!NeedsCopy(tensor, memory)) continue;
      use_.AddCopy(tensor, memory);
      is_there_[Slot(tensor, memory)] = 1;
    }
  }

  std::vector<int> Take() { return std::move(device_); }

 private:
  size_t Slot(int tensor, int memory) const {
    return static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
           static_cast<size_t>(memory);
  }

  /*! \brief Whether a task in the memory makes a copy; a producer not placed yet is a neighbour. */
  bool NeedsCopy(int tensor, int memory) const {
    const int producer = problem_.producer[tensor];
    if (producer >= 0 && device_[producer] < 0) return false;
    const int home = producer < 0 ? problem_.host : problem_.device_memory[device_[producer]];
    return home >= 0 && home != memory && is_there_[Slot(tensor, memory)] == 0;
  }

  int Choose(int task) const {
    int best = -1;
    int64_t best_lack = 0;
    int64_t best_run = 0;
    for (int device : problem_.allowed[task]) {
      const int memory = problem_.device_memory[device];
      int64_t run = 0;
      int64_t lack = -use_.Free(memory);
      for (int member : Members(problem_, task)) {
        run += problem_.Run(member, device);
        lack += use_.ExtraForTask(member, device);
        for (int tensor : problem_.task_reads[member]) lack += CopyCost(tensor, memory);
      }
      lack = std::max<int64_t>(0, lack);
      if (best < 0 || lack < best_lack || (lack == best_lack && run < best_run)) {
        best = device;
        best_lack = lack;
        best_run = run;
      }
    }
    return best;
  }

  /*! \brief Bytes that a read tensor adds to the memory; a penalty if it cannot get there. */
  int64_t CopyCost(int tensor, int memory) const {
    if (!NeedsCopy(tensor, memory)) return 0;
    const int producer = problem_.producer[tensor];
    const int home = producer < 0 ? problem_.host : problem_.device_memory[device_[producer]];
    if (problem_.Transfer(tensor, home, memory) == kImpossible) return kUnreachablePenalty;
    return use_.ExtraForCopy(tensor, memory);
  }

  const Problem& problem_;
  MemoryUse use_;
  std::vector<uint8_t> is_there_;  // [num_tensors][num_memories], a copy is charged
  std::vector<int> device_;        // [num_tasks], -1: not placed yet
};

/*! \brief One run of annealing or evolution. */
class Walk {
 public:
  Walk(const Problem& problem, std::span<const int> start, std::span<const int> order,
       const MappingOptions& options, const MappingHook& hook)
      : problem_(problem),
        order_(order),
        options_(options),
        hook_(hook),
        random_(options.seed),
        evaluate_(problem),
        device_(start.begin(), start.end()),
        begin_(Clock::now()) {
    std::vector<uint8_t> is_seen(problem.num_groups, 0);
    for (int task : order) {
      if (problem.allowed[task].size() < 2) continue;
      const int group = problem.task_group[task];
      if (group >= 0 && std::exchange(is_seen[group], uint8_t{1}) != 0) continue;
      genes_.push_back(task);
    }
  }

  MappingOutcome Run() {
    value_ = evaluate_(device_, order_, kNever);
    best_ = device_;
    best_value_ = value_;
    evaluations_ = 1;
    const double first_heat = kFirstHeat * static_cast<double>(value_.makespan_ns);
    while (!IsOver()) {
      const bool is_annealing = options_.rule == MappingRule::kAnnealing;
      const double heat = is_annealing ? first_heat * std::pow(kCooling, BudgetUsed()) : 0.0;
      undo_.clear();
      if (is_annealing) {
        MoveOne();
      } else {
        while (undo_.empty()) FlipSome();
      }
      ++evaluations_;
      if (!Accepts(heat)) {
        for (const auto& [task, device] : undo_) device_[task] = device;
      } else if (value_ < best_value_) {
        best_ = device_;
        best_value_ = value_;
      }
    }
    return {std::move(best_), best_value_, evaluations_, was_stopped_};
  }

 private:
  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  double BudgetUsed() const {
    if (options_.max_evaluations < 0) return elapsed_s_ / options_.time_limit_s;
    return static_cast<double>(evaluations_) / static_cast<double>(options_.max_evaluations);
  }

  bool IsOver() {
    if (genes_.empty() || was_stopped_) return true;
    if (best_value_.violation == 0 && best_value_.makespan_ns <= options_.bound_ns) return true;
    if (options_.max_evaluations >= 0 && evaluations_ >= options_.max_evaluations) return true;
    elapsed_s_ = Elapsed();
    if (hook_ && elapsed_s_ - last_hook_s_ >= kHookSeconds) {
      last_hook_s_ = elapsed_s_;
      was_stopped_ = hook_(evaluations_, best_value_.makespan_ns);
    }
    return was_stopped_ || elapsed_s_ >= options_.time_limit_s;
  }

  void Set(int task, int device) {
    if (device_[task] == device) return;
    for (int member : Members(problem_, task)) {
      undo_.emplace_back(member, device_[member]);
      device_[member] = device;
    }
  }

  /*! \brief A random gene goes to a random other device. */
  void MoveOne() {
    const int task = genes_[random_.Below(static_cast<int>(genes_.size()))];
    const auto allowed = problem_.allowed[task];
    const size_t choice = static_cast<size_t>(random_.Below(static_cast<int>(allowed.size()) - 1));
    // The last one stands in for the current device, so the others are equally likely.
    Set(task, allowed[choice] == device_[task] ? allowed.back() : allowed[choice]);
  }

  /*! \brief Each gene goes to a random device with probability 1 / genes; maybe none changes. */
  void FlipSome() {
    const double count = static_cast<double>(genes_.size());
    // Distances between flipped genes are geometric; drawing them saves a draw per gene.
    const double scale = genes_.size() < 2 ? 0.0 : 1.0 / std::log1p(-1.0 / count);
    double position = std::floor(std::log(random_.Unit()) * scale);
    while (position < count) {
      const int task = genes_[static_cast<size_t>(position)];
      const auto allowed = problem_.allowed[task];
      Set(task, allowed[static_cast<size_t>(random_.Below(static_cast<int>(allowed.size())))]);
      position += 1.0 + std::floor(std::log(random_.Unit()) * scale);
    }
  }

  /*! \brief Evaluates the move; if it is accepted it becomes the current value. */
  bool Accepts(double heat) {
    // Drawing the limit first lets the evaluation stop as soon as it is exceeded.
    const double worse = heat > 0.0 ? -heat * std::log(random_.Unit()) : 0.0;
    const int64_t limit = value_.makespan_ns + static_cast<int64_t>(worse);
    const Value trial = evaluate_(device_, order_, value_.violation == 0 ? limit : kNever);
    if (trial.makespan_ns == kNever || trial.violation > value_.violation) return false;
    if (trial.violation == value_.violation && trial.makespan_ns > limit) return false;
    value_ = trial;
    return true;
  }

  const Problem& problem_;
  std::span<const int> order_;
  const MappingOptions& options_;
  const MappingHook& hook_;
  Random random_;
  Evaluator evaluate_;
  std::vector<int> genes_;  // first task of each, in the order
  std::vector<int> device_;
  Value value_;
  std::vector<int> best_;
  Value best_value_;
  std::vector<std::pair<int, int>> undo_;  // (task, old device)
  Clock::time_point begin_;
  double elapsed_s_ = 0;
  double last_hook_s_ = 0;
  int64_t evaluations_ = 0;
  bool was_stopped_ = false;
};

std::vector<size_t> CountPredecessors(const Problem& problem) {
  std::vector<size_t> counts;
  for (int task = 0; task < problem.num_tasks; ++task) {
    counts.push_back(problem.predecessors[task].size());
  }
  return counts;
}

}  // namespace

std::vector<int> BreadthFirstOrder(const Problem& problem) {
  std::vector<int> order;
  std::vector<size_t> waiting = CountPredecessors(problem);
  for (int task = 0; task < problem.num_tasks; ++task) {
    if (waiting[task] == 0) order.push_back(task);
  }
  for (size_t next = 0; next < order.size(); ++next) {
    for (int after : problem.successors[order[next]]) {
      if (--waiting[after] == 0) order.push_back(after);
    }
  }
  return order;
}

std::vector<int> DepthFirstOrder(const Problem& problem) {
  std::vector<int> order;
  std::vector<size_t> waiting = CountPredecessors(problem);
  std::vector<int> stack;
  for (int task = problem.num_tasks - 1; task >= 0; --task) {
    if (waiting[task] == 0) stack.push_back(task);
  }
  while (!stack.empty()) {
    order.push_back(stack.back());
    stack.pop_back();
    const auto readers = problem.successors[order.back()];
    for (size_t index = readers.size(); index-- > 0;) {
      if (--waiting[readers[index]] == 0) stack.push_back(readers[index]);
    }
  }
  return order;
}

std::vector<int> FastestMapping(const Problem& problem, std::span<const int> order) {
  FastestFiller filler(problem);
  for (int task : order) filler.Place(task);
  return filler.Take();
}

MappingOutcome SearchMapping(const Problem& problem, std::span<const int> start,
                             std::span<const int> order, const MappingOptions& options,
                             const MappingHook& hook) {
  return Walk(problem, start, order, options, hook).Run();
}

std::vector<Value> EvaluateMappings(const Problem& problem, std::span<const int> devices,
                                    int num_mappings, std::span<const int> order) {
  Evaluator evaluate(problem);
  std::vector<Value> values;
  const size_t tasks = order.size();
  for (size_t index = 0; index < static_cast<size_t>(num_mappings); ++index) {
    values.push_back(evaluate(devices.subspan(index * tasks, tasks), order, kNever));
  }
  return values;
}

}  // namespace heteroplace
