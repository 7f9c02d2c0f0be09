#include "sched/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "sched/evaluate.h"
#include "sched/random.h"

namespace heteroplace {

namespace {

// Chosen by trials on randomly wired networks of 100 tasks on a CPU of two cores.
constexpr double kFirstHeat = 0.01;     // temperature of a fresh start, as a part of the makespan
constexpr double kLaterHeat = 0.004;    // the same when continuing from the best
constexpr double kLastHeat = 0.0001;    // temperature at the end of a round
constexpr int64_t kRoundPerTask = 100;  // evaluations of the first rounds, per task
constexpr int64_t kRoundBase = 2000;    // and in any case
constexpr int kMaxDoublings = 5;        // of the length of a round
constexpr int kMaxShift = 32;           // positions that a task moves in the order
constexpr int kMaxChain = 8;
constexpr int kMaxWindow = 4;
constexpr int64_t kHookInterval = 256;  // evaluations between two looks at the clock
constexpr double kHookSeconds = 0.05;   // between two calls of the hook

using Clock = std::chrono::steady_clock;

/*! \brief The current (placement, order), its moves, and how to take the latest one back. */
class State {
 public:
  State(const Problem& problem, Random& random)
      : problem_(problem), random_(random), position_(problem.num_tasks) {
    for (int task = 0; task < problem.num_tasks; ++task) {
      if (problem.allowed[task].size() > 1) movable_.push_back(task);
    }
  }

  void Load(const SearchStart& start) {
    current_ = start;
    for (int index = 0; index < problem_.num_tasks; ++index) {
      position_[current_.order[index]] = index;
    }
    undo_devices_.clear();
    undo_shifts_.clear();
  }

  const SearchStart& current() const { return current_; }

  /*! \brief Makes a random move; false if it changed nothing. */
  bool Propose() {
    undo_devices_.clear();
    undo_shifts_.clear();
    const int kind = random_.Below(100);
    if (movable_.empty() || kind < 35) {
      Shift(random_.Below(problem_.num_tasks));
    } else if (kind < 60) {
      MoveTask(PickMovable());
    } else if (kind < 70) {
      const int task = PickMovable();
      MoveTask(task);
      Shift(task);
    } else if (kind < 82) {
      MoveChain();
    } else if (kind < 92) {
      MoveWindow();
    } else {
      Exchange();
    }
    return !undo_devices_.empty() || !undo_shifts_.empty();
  }

  void Undo() {
    for (size_t index = undo_shifts_.size(); index-- > 0;) {
      Rotate(undo_shifts_[index].second, undo_shifts_[index].first);
    }
    for (size_t index = undo_devices_.size(); index-- > 0;) {
      current_.device[undo_devices_[index].first] = undo_devices_[index].second;
    }
  }

 private:
  int PickMovable() { return movable_[random_.Below(static_cast<int>(movable_.size()))]; }

  int PickDevice(int task) {
    const auto allowed = problem_.allowed[task];
    return allowed[static_cast<size_t>(random_.Below(static_cast<int>(allowed.size())))];
  }

  void SetDevice(int task, int device) {
    if (current_.device[task] == device) return;
    if (problem_.task_group[task] < 0) {
      SetOne(task, device);
    } else {
      for (int member : problem_.group_tasks[problem_.task_group[task]]) SetOne(member, device);
    }
  }

  void SetOne(int task, int device) {
    undo_devices_.emplace_back(task, current_.device[task]);
    current_.device[task] = device;
  }

  void MoveTask(int task) {
    const auto allowed = problem_.allowed[task];
    // One of the others, by skipping the current device.
    int choice = random_.Below(static_cast<int>(allowed.size()) - 1);
    if (allowed[static_cast<size_t>(choice)] == current_.device[task] ||
        IsAfterCurrent(task, choice)) {
      ++choice;
    }
    SetDevice(task, allowed[static_cast<size_t>(choice)]);
  }

  /*! \brief Whether position `choice` of the allowed devices is not before the current one. */
  bool IsAfterCurrent(int task, int choice) const {
    const auto allowed = problem_.allowed[task];
    for (int index = 0; index < choice; ++index) {
      if (allowed[static_cast<size_t>(index)] == current_.device[task]) return true;
    }
    return false;
  }

  void MoveChain() {
    int task = PickMovable();
    const int device = PickDevice(task);
    for (int length = 2 + random_.Below(kMaxChain - 1); length > 0; --length) {
      if (problem_.Run(task, device) != kImpossible) SetDevice(task, device);
      const auto next = problem_.successors[task];
      if (next.empty()) return;
      task = next[static_cast<size_t>(random_.Below(static_cast<int>(next.size())))];
    }
  }

  void MoveWindow() {
    const int length = std::min(2 + random_.Below(kMaxWindow - 1), problem_.num_tasks);
    const int first = random_.Below(problem_.num_tasks - length + 1);
    for (int index = first; index < first + length; ++index) {
      const int task = current_.order[index];
      SetDevice(task, PickDevice(task));
    }
  }

  void Exchange() {
    const int left = PickMovable();
    const int reach =
        std::min(position_[left] + 1 + random_.Below(kMaxChain), problem_.num_tasks - 1);
    const int right = current_.order[reach];
    const int left_device = current_.device[left];
    const int right_device = current_.device[right];
    if (problem_.Run(left, right_device) == kImpossible) return;
    if (problem_.Run(right, left_device) == kImpossible) return;
    SetDevice(left, right_device);
    SetDevice(right, left_device);
  }

  /*! \brief Moves a task in the order, between its producers and its readers. */
  void Shift(int task) {
    const int from = position_[task];
    int lowest = std::max(0, from - kMaxShift);
    int highest = std::min(problem_.num_tasks - 1, from + kMaxShift);
    for (int before : problem_.predecessors[task]) {
      lowest = std::max(lowest, position_[before] + 1);
    }
    for (int after : problem_.successors[task]) {
      highest = std::min(highest, position_[after] - 1);
    }
    if (lowest >= highest) return;
    int to = lowest + random_.Below(highest - lowest);
    if (to >= from) ++to;
    Rotate(from, to);
    undo_shifts_.emplace_back(from, to);
  }

  void Rotate(int from, int to) {
    const int task = current_.order[from];
    const int step = from < to ? 1 : -1;
    for (int index = from; index != to; index += step) {
      current_.order[index] = current_.order[index + step];
      position_[current_.order[index]] = index;
    }
    current_.order[to] = task;
    position_[task] = to;
  }

  const Problem& problem_;
  Random& random_;
  SearchStart current_;
  std::vector<int> position_;                      // [num_tasks], place in the order
  std::vector<int> movable_;                       // tasks with more than one allowed device
  std::vector<std::pair<int, int>> undo_devices_;  // (task, old device), in order of change
  std::vector<std::pair<int, int>> undo_shifts_;   // (from, to)
};

class Annealer {
 public:
  Annealer(const Problem& problem, const SearchOptions& options, const SearchHook& hook)
      : problem_(problem),
        options_(options),
        hook_(hook),
        random_(options.seed),
        evaluate_(problem),
        state_(problem, random_),
        begin_(Clock::now()) {}

  SearchOutcome Run(const std::vector<SearchStart>& starts) {
    for (const SearchStart& start : starts) {
      const Value value = evaluate_(start.device, start.order, kNever);
      values_.push_back(value);
      if (best_.device.empty() || value < best_value_) Keep(start, value);
    }
    const int count = static_cast<int>(starts.size());
    for (int round = 0; !IsOver(); ++round) {
      const int cycle = round / count;
      const int64_t length = (kRoundBase + kRoundPerTask * problem_.num_tasks)
                             << std::min(cycle, kMaxDoublings);
      if (round < count) {
        Anneal(starts[round], values_[round], kFirstHeat, length);
      } else if (round % 4 == 3) {
        const int pick = random_.Below(count);
        Anneal(starts[pick], values_[pick], kFirstHeat, length);
      } else {
        const SearchStart start = best_;
        Anneal(start, best_value_, kLaterHeat, length);
      }
    }
    evaluate_(best_.device, best_.order, kNever);
    return {evaluate_.LatestSchedule(best_.device), evaluations_, was_stopped_};
  }

 private:
  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  bool IsOver() {
    if (is_over_) return true;
    is_over_ = problem_.num_tasks == 0 ||
               (best_value_.violation == 0 && best_value_.makespan_ns <= options_.bound_ns) ||
               (options_.max_evaluations >= 0 && evaluations_ >= options_.max_evaluations) ||
               (options_.patience > 0 && evaluations_ - last_gain_ >= options_.patience);
    if (!is_over_ && evaluations_ % kHookInterval == 0) {
      const double now = Elapsed();
      is_over_ = now >= options_.time_limit_s;
      if (hook_ && now - last_hook_s_ >= kHookSeconds) {
        last_hook_s_ = now;
        was_stopped_ = hook_(evaluations_, best_value_.makespan_ns);
        is_over_ = is_over_ || was_stopped_;
      }
    }
    return is_over_;
  }

  void Keep(const SearchStart& plan, const Value& value) {
    // Gains too small to matter do not prolong the search.
    const bool is_real_gain =
        best_value_.makespan_ns == kNever || value.violation < best_value_.violation ||
        value.makespan_ns < best_value_.makespan_ns - best_value_.makespan_ns / 2000;
    if (is_real_gain) last_gain_ = evaluations_;
    best_ = plan;
    best_value_ = value;
  }

  /*! \brief Evaluations that the rest of the budget allows, judged by the speed so far. */
  int64_t Affordable() const {
    if (options_.max_evaluations >= 0) return options_.max_evaluations - evaluations_;
    const double left = options_.time_limit_s - Elapsed();
    const double speed = static_cast<double>(evaluations_ + 1) / std::max(Elapsed(), 1e-6);
    return std::max<int64_t>(1, static_cast<int64_t>(std::min(left * speed, 1e15)));
  }

  void Anneal(const SearchStart& start, Value value, double heat, int64_t length) {
    state_.Load(start);
    const double first = heat * static_cast<double>(value.makespan_ns);
    const int64_t begin = evaluations_;
    int64_t end = begin + length;
    if (options_.max_evaluations >= 0) end = std::min(end, begin + Affordable());
    double temperature = first;
    for (int64_t step = 0; evaluations_ < end && !IsOver(); ++step) {
      if (step % kHookInterval == 0) {
        if (step == kHookInterval && options_.max_evaluations < 0) {
          end = std::min(end, evaluations_ + Affordable());
        }
        const double done = static_cast<double>(evaluations_ - begin) /
                            static_cast<double>(std::max<int64_t>(1, end - begin));
        temperature = first * std::pow(kLastHeat / heat, done);
      }
      ++evaluations_;
      if (!state_.Propose()) continue;
      const Value trial = Evaluate(value, temperature);
      const bool is_accepted = trial.makespan_ns != kNever && trial.violation <= value.violation;
      if (!is_accepted) {
        state_.Undo();
        continue;
      }
      value = trial;
      if (value < best_value_) Keep(state_.current(), value);
    }
  }

  /*! \brief Value of the proposed move; kNever if it is to be rejected. */
  Value Evaluate(const Value& value, double temperature) {
    const SearchStart& plan = state_.current();
    // Drawing the limit first lets the evaluation stop as soon as it is exceeded.
    const double worse = -temperature * std::log(random_.Unit());
    const int64_t limit = value.makespan_ns + static_cast<int64_t>(worse);
    if (value.violation == 0) return evaluate_(plan.device, plan.order, limit);
    const Value trial = evaluate_(plan.device, plan.order, kNever);
    if (trial.violation == value.violation && trial.makespan_ns > limit) {
      return {kNever, trial.violation};
    }
    return trial;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  const SearchHook& hook_;
  Random random_;
  Evaluator evaluate_;
  State state_;
  Clock::time_point begin_;
  std::vector<Value> values_;  // of the starts
  SearchStart best_;
  Value best_value_;
  int64_t evaluations_ = 0;
  int64_t last_gain_ = 0;
  double last_hook_s_ = 0;
  bool is_over_ = false;
  bool was_stopped_ = false;
};

}  // namespace

SearchOutcome Search(const Problem& problem, const std::vector<SearchStart>& starts,
                     const SearchOptions& options, const SearchHook& hook) {
  return Annealer(problem, options, hook).Run(starts);
}

std::vector<int64_t> WhatIf(const Problem& problem, const SearchStart& plan) {
  Evaluator evaluate(problem);
  std::vector<int> device = plan.device;
  std::vector<int64_t> makespan;
  for (int task = 0; task < problem.num_tasks; ++task) {
    const int group = problem.task_group[task];
    const auto set = [&](int place) {
      if (group < 0) {
        device[task] = place;
      } else {
        for (int member : problem.group_tasks[group]) device[member] = place;
      }
    };
    for (int place = 0; place < problem.num_devices; ++place) {
      if (problem.Run(task, place) == kImpossible) {
        makespan.push_back(kImpossible);
        continue;
      }
      set(place);
      const Value value = evaluate(device, plan.order, kNever);
      makespan.push_back(value.violation == 0 ? value.makespan_ns : kImpossible);
    }
    set(plan.device[task]);
  }
  return makespan;
}

}  // namespace heteroplace
