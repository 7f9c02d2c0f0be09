#include "bounds/lagrangian.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "bounds/module_bound.h"
#include "decompose/module.h"
#include "support/jobs.h"

namespace heteroplace::bounds {

namespace {

// Sums of some 10^5 doubles: their rounding must not lift the bound above the truth.
constexpr double kRoundingRatio = 1e-9;
constexpr double kRoundingNs = 1e-6;
constexpr double kLargestBound = 9e18;  // beyond int64: nonsense prices

constexpr double kMomentum = 0.6;     // of the direction in which prices move
constexpr double kMinGap = 0.005;     // to aim above the present value, as a part of it
constexpr double kMinNorm = 0.02;     // of the direction, so that steps stay bounded
constexpr double kFirstPolish = 0.4;  // steps of the last search over prices, relative
constexpr double kLastPolish = 0.02;
constexpr double kMinUnit = 0.02;
constexpr int kPolishTurns = 3;
constexpr double kMinStep = 0.004;  // ends the ascent
constexpr int kPricePatience = 4;   // rounds without gain before the step is halved

/*! \brief Pairs of devices of all distinct modules: with more their bounds take gigabytes. */
constexpr size_t kMaxPairs = size_t{1} << 22;

using Clock = ModuleBound::Clock;

class BoundSearch {
 public:
  BoundSearch(const model::Problem& problem, decompose::Modules modules,
              const BoundOptions& options, const std::function<bool()>& stop)
      : problem_(problem),
        options_(options),
        stop_(stop),
        modules_(std::move(modules)),
        width_(static_cast<size_t>(problem.num_devices)),
        deadline_(Deadline(options.time_limit_s)) {
    for (const decompose::Module& module : modules_.classes) {
      module_bounds_.emplace_back(problem, module, options.num_samples > 0);
      class_tasks_ += module.num_tasks;
    }
    tables_.resize(modules_.classes.size());
    for (int memory = 0; memory < problem.num_memories; ++memory) {
      room_.push_back(
          static_cast<double>(problem.memory_bytes[memory] - problem.base_bytes[memory]));
    }
  }

  BoundOutcome Run(std::vector<double> price) {
    BoundOutcome outcome{0, price, 0, {}};
    if (options_.has_fixed_prices) {
      std::vector<double> slope;
      double value = 0;
      outcome.bound_ns = BoundAt(price, slope, value);
      outcome.rounds = 1;
      if (value < ModuleBound::kImpossibleBound) AddSamples(outcome);
      return outcome;
    }
    std::vector<double> direction(price.size(), 0.0);
    double step = 1.0;
    int without_gain = 0;
    for (; outcome.rounds < options_.rounds && step > kMinStep && !IsOver(); ++outcome.rounds) {
      std::vector<double> slope;
      double value = 0;
      const int64_t bound = std::max<int64_t>(0, BoundAt(price, slope, value));
      if (value >= ModuleBound::kImpossibleBound) break;  // There is no plan.
      if (bound > outcome.bound_ns || outcome.rounds == 0) {
        const int64_t least = outcome.bound_ns + outcome.bound_ns / 5000;
        if (bound > least) without_gain = 0;
        outcome.bound_ns = std::max(bound, outcome.bound_ns);
        outcome.price = price;
      } else {
        ++without_gain;
      }
      if (without_gain >= kPricePatience) {
        // From the best prices again, in smaller steps.
        step /= 2;
        without_gain = 0;
        price = outcome.price;
        std::ranges::fill(direction, 0.0);
      }
      if (!Move(price, slope, value, step, direction)) break;
    }
    Polish(outcome);
    std::vector<double> slope;
    if (options_.num_samples > 0 &&
        Evaluate(outcome.price, slope) < ModuleBound::kImpossibleBound) {
      AddSamples(outcome);
      for (int device = 0; device < problem_.num_devices; ++device) SampleAround(device, outcome);
    }
    return outcome;
  }

 private:
  bool IsOver() {
    const bool is_used_up = options_.max_work > 0 && least_work_ >= options_.max_work;
    return is_used_up || Clock::now() >= deadline_ || (stop_ && stop_());
  }

  /*! \brief What a look at a task takes, in those of four devices: it tries all pairs of devices.
   */
  double LookWork() const {
    return std::max(1.0, problem_.num_devices * problem_.num_devices / 16.0);
  }

  static Clock::time_point Deadline(double seconds) {
    // A century keeps the sum within the clock's range.
    const std::chrono::duration<double> left(std::min(seconds, 3e9));
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(left);
  }

  /*! \brief The least integer that is certainly not above the makespan. Negative where the room
   * costs more than the plan. */
  int64_t Rounded(double value, const std::vector<double>& price) const {
    // The value is a difference: what counts is the size of its two parts.
    double size = value;
    for (size_t memory = 0; memory < price.size(); ++memory) {
      size += 2 * price[memory] * std::abs(room_[memory]);
    }
    const double safe = std::ceil(value - kRoundingRatio * std::abs(size) - kRoundingNs);
    return std::abs(safe) >= kLargestBound ? 0 : static_cast<int64_t>(safe);
  }

  /*! \brief Bound at some prices, in whole ns, never above the truth. */
  int64_t BoundAt(const std::vector<double>& price, std::vector<double>& slope, double& value) {
    value = Evaluate(price, slope);
    return value >= ModuleBound::kImpossibleBound ? 0 : Rounded(value, price);
  }

  /*!
   * \brief Varies one price after the other, in ever smaller steps, as long as the bound gains.
   *
   * Subgradients taken from unfinished inner ascents are not exact enough to end with.
   */
  void Polish(BoundOutcome& outcome) {
    std::vector<double> slope;
    double value = 0;
    for (double step = kFirstPolish; step >= kLastPolish && !IsOver(); step /= 2) {
      bool has_gained = true;
      for (int turn = 0; turn < kPolishTurns && has_gained; ++turn) {
        has_gained = false;
        // Behind the memories: all prices together.
        for (size_t memory = 0; memory <= room_.size(); ++memory) {
          // A price of zero moves in steps of what would make its room cost as much as the bound.
          const bool is_all = memory == room_.size();
          const double unit =
              is_all ? 0.0 : static_cast<double>(outcome.bound_ns) / std::max(1.0, room_[memory]);
          for (double sign : {1.0, -1.0}) {
            if (IsOver()) return;
            std::vector<double> price = outcome.price;
            if (is_all) {
              for (double& one : price) one *= 1.0 + sign * step;
            } else {
              price[memory] = std::max(
                  0.0, price[memory] + sign * step * std::max(price[memory], kMinUnit * unit));
            }
            if (price == outcome.price) continue;
            const int64_t bound = BoundAt(price, slope, value);
            if (bound <= outcome.bound_ns) continue;
            outcome.bound_ns = bound;
            outcome.price = price;
            has_gained = true;
            break;
          }
        }
      }
    }
  }

  /*!
   * \brief Moves the prices along a mean of the subgradients so far, which zigzag between memories
   * that stand in for each other; false if there is nowhere to go.
   */
  bool Move(std::vector<double>& price, const std::vector<double>& slope, double value, double step,
            std::vector<double>& direction) const {
    double norm = 0;
    for (size_t memory = 0; memory < price.size(); ++memory) {
      // Scaled by the room, so that small memories count like large ones.
      const double scaled = slope[memory] / std::max(1.0, room_[memory]);
      direction[memory] = kMomentum * direction[memory] + (1.0 - kMomentum) * scaled;
      if (price[memory] <= 0) direction[memory] = std::max(0.0, direction[memory]);
      norm += direction[memory] * direction[memory];
    }
    if (norm < 1e-12) return false;
    const double gap =
        std::max(static_cast<double>(options_.target_ns) - value, kMinGap * std::abs(value));
    for (size_t memory = 0; memory < price.size(); ++memory) {
      const double change = step * gap / std::max(norm, kMinNorm) * direction[memory];
      price[memory] = std::max(0.0, price[memory] + change / std::max(1.0, room_[memory]));
    }
    return true;
  }

  /*! \brief The bound at some prices; slope: bytes used beyond the room. */
  double Evaluate(const std::vector<double>& price, std::vector<double>& slope) {
    FillTables(price);
    const size_t states = width_ + 1;  // the device of the latest cut, and none
    std::vector<double> reach(states, ModuleBound::kImpossibleBound), next(states);
    std::vector<int> from(static_cast<size_t>(modules_.num_modules()) * states, -1);
    reach[0] = 0;
    for (int module = 0; module < modules_.num_modules(); ++module) {
      const auto& table = tables_[modules_.module_class[module]];
      std::ranges::fill(next, ModuleBound::kImpossibleBound);
      for (size_t entry = 0; entry < states; ++entry) {
        if (reach[entry] >= ModuleBound::kImpossibleBound) continue;
        for (size_t exit = 0; exit < states; ++exit) {
          const double cost = reach[entry] + table[entry * states + exit];
          if (cost < next[exit]) {
            next[exit] = cost;
            from[static_cast<size_t>(module) * states + exit] = static_cast<int>(entry);
          }
        }
      }
      reach.swap(next);
    }
    const auto last = std::ranges::min_element(reach);
    double value = *last;
    if (value >= ModuleBound::kImpossibleBound) return value;
    slope.assign(price.size(), 0.0);
    int state = static_cast<int>(last - reach.begin());
    path_.assign(static_cast<size_t>(modules_.num_modules()) + 1, state - 1);
    for (int module = modules_.num_modules() - 1; module >= 0; --module) {
      const int before = from[static_cast<size_t>(module) * states + static_cast<size_t>(state)];
      if (before < 0) break;
      module_bounds_[modules_.module_class[module]].AddUsed(before - 1, state - 1, slope);
      state = before;
      path_[static_cast<size_t>(module)] = before - 1;
    }
    for (size_t memory = 0; memory < price.size(); ++memory) {
      value -= price[memory] * room_[memory];
      slope[memory] -= room_[memory];
    }
    return value;
  }

  /*! \brief Adds placements along the latest path. */
  void AddSamples(BoundOutcome& outcome) {
    for (int sample = 0; sample < options_.num_samples; ++sample) {
      outcome.samples.push_back(Sample(static_cast<double>(sample) / options_.num_samples));
    }
  }

  /*! \brief Adds a placement with all cuts on one device, if they may be there. */
  void SampleAround(int device, BoundOutcome& outcome) {
    for (int module = 0; module + 1 < modules_.num_modules(); ++module) {
      const int cut = modules_.first_task[module + 1] - 1;
      if (problem_.Run(cut, device) == model::kImpossible) return;
    }
    std::ranges::fill(path_, device);
    path_.front() = -1;
    path_.back() = -1;
    outcome.samples.push_back(Sample(0.0));
  }

  /*! \brief A placement along the latest path. */
  std::vector<int> Sample(double turn) const {
    std::vector<int> device(static_cast<size_t>(problem_.num_tasks));
    for (int task = 0; task < problem_.num_tasks; ++task) {
      device[task] = problem_.allowed[task].empty() ? 0 : problem_.allowed[task][0];
    }
    for (int module = 0; module < modules_.num_modules(); ++module) {
      const int begin = modules_.first_task[module], end = modules_.first_task[module + 1];
      // Modules take turns too: their counts of trees need not divide the weights evenly.
      turn = std::fmod(turn + 0.618033988749895, 1.0);
      module_bounds_[modules_.module_class[module]].Sample(
          path_[module], path_[module + 1], turn,
          std::span<int>(device).subspan(static_cast<size_t>(begin),
                                         static_cast<size_t>(end - begin)));
    }
    return device;
  }

  /*! \brief The part of the work that a class gets: as its part of the tasks. */
  int64_t WorkPerRound(const decompose::Module& module) const {
    const int rounds = std::max(1, options_.rounds);
    if (options_.max_work == 0) return std::numeric_limits<int64_t>::max() / 2 / rounds;
    return static_cast<int64_t>(static_cast<double>(options_.max_work) * module.num_tasks /
                                class_tasks_ / rounds / LookWork()) +
           1;
  }

  /*! \brief Bounds of all classes for all pairs of devices. */
  void FillTables(const std::vector<double>& price) {
    const int devices = problem_.num_devices;
    std::vector<uint8_t> is_first(modules_.classes.size(), 0);
    if (modules_.num_modules() > 0) is_first[modules_.module_class[0]] = 1;
    RunJobs(static_cast<int>(modules_.classes.size()), options_.threads, [&](int index) {
      const size_t states = width_ + 1;
      module_bounds_[index].Limit(WorkPerRound(modules_.classes[index]), deadline_);
      auto& table = tables_[index];
      table.assign(states * states, ModuleBound::kImpossibleBound);
      const bool has_exit = modules_.classes[index].has_exit;
      for (int entry = is_first[index] != 0 ? -1 : 0; entry < devices; ++entry) {
        if (is_first[index] != 0 && entry >= 0) break;
        for (int exit = has_exit ? 0 : -1; exit < devices; ++exit) {
          if (!has_exit && exit >= 0) break;
          table[static_cast<size_t>(entry + 1) * states + static_cast<size_t>(exit + 1)] =
              module_bounds_[index].Bound(entry, exit, price, options_.iterations);
        }
      }
    });
    // Whatever is left of the work, other prices look at all tasks once for all pairs of devices.
    double looks = 0;
    for (size_t index = 0; index < tables_.size(); ++index) {
      const auto finite =
          std::count_if(tables_[index].begin(), tables_[index].end(),
                        [](double bound) { return bound < ModuleBound::kImpossibleBound; });
      looks += static_cast<double>(finite) * modules_.classes[index].num_tasks;
    }
    least_work_ += static_cast<int64_t>(looks * LookWork());
  }

  const model::Problem& problem_;
  const BoundOptions& options_;
  const std::function<bool()>& stop_;
  decompose::Modules modules_;
  size_t width_;
  std::vector<ModuleBound> module_bounds_;   // [num_classes]
  std::vector<std::vector<double>> tables_;  // [num_classes], [entry + 1][exit + 1]
  std::vector<double> room_;                 // [num_memories], bytes
  std::vector<int> path_;                    // [num_modules + 1], device of the cut before, or -1
  Clock::time_point deadline_;
  double class_tasks_ = 0;  // of all classes
  int64_t least_work_ = 0;  // of all evaluations so far
};

}  // namespace

BoundOutcome LagrangianBound(const model::Problem& problem, std::vector<double> price,
                             const BoundOptions& options, const std::function<bool()>& stop) {
  price.resize(static_cast<size_t>(problem.num_memories), 0.0);
  // Sets of devices and memories are words of 32 bits.
  if (problem.num_devices > 32 || problem.num_memories > 32) return {0, std::move(price), 0, {}};
  // A tensor may be gone before the next one comes: only what every order needs is charged.
  const model::Problem without_tensors = problem.WithoutTensors({});
  decompose::Modules modules = decompose::DecomposeForBounds(without_tensors);
  const auto states = static_cast<size_t>(problem.num_devices) + 1;
  if (modules.classes.size() > kMaxPairs / (states * states)) return {0, std::move(price), 0, {}};
  return BoundSearch(without_tensors, std::move(modules), options, stop).Run(std::move(price));
}

}  // namespace heteroplace::bounds
