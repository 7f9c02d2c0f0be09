#include "search/mapping_search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "support/jobs.h"
#include "support/random.h"

namespace heteroplace::search {

namespace {

constexpr double kMappingHeat = 0.1;  // temperature at the start, as a part of the makespan
constexpr double kCooling = 1e-4;     // temperature at the end, as a part of the first one

using Clock = std::chrono::steady_clock;

/*! \brief One run of annealing or evolution. */
class Walk {
 public:
  Walk(const model::Problem& problem, std::span<const int> start, std::span<const int> order,
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
    value_ = evaluate_(device_, order_, list::kNever);
    best_ = device_;
    best_value_ = value_;
    evaluations_ = 1;
    const double first_heat = kMappingHeat * static_cast<double>(value_.makespan_ns);
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
    for (int member : problem_.Colocated(task)) {
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
    const list::Value trial =
        evaluate_(device_, order_, value_.violation == 0 ? limit : list::kNever);
    if (trial.makespan_ns == list::kNever || trial.violation > value_.violation) return false;
    if (trial.violation == value_.violation && trial.makespan_ns > limit) return false;
    value_ = trial;
    return true;
  }

  const model::Problem& problem_;
  std::span<const int> order_;
  const MappingOptions& options_;
  const MappingHook& hook_;
  Random random_;
  list::Evaluator evaluate_;
  std::vector<int> genes_;  // first task of each, in the order
  std::vector<int> device_;
  list::Value value_;
  std::vector<int> best_;
  list::Value best_value_;
  std::vector<std::pair<int, int>> undo_;  // (task, old device)
  Clock::time_point begin_;
  double elapsed_s_ = 0;
  double last_hook_s_ = 0;
  int64_t evaluations_ = 0;
  bool was_stopped_ = false;
};

}  // namespace

MappingOutcome SearchMapping(const model::Problem& problem, std::span<const int> start,
                             std::span<const int> order, const MappingOptions& options,
                             const MappingHook& hook) {
  return Walk(problem, start, order, options, hook).Run();
}

}  // namespace heteroplace::search
