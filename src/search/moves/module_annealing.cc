#include "search/moves/module_annealing.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "search/evaluate/module_evaluator.h"
#include "search/moves/arrangement.h"
#include "search/moves/moves.h"
#include "support/random.h"

namespace heteroplace::search {

namespace {

constexpr double kEndHeat = 0.00005;   // temperature at the end, as a part of the time
constexpr double kPriceGain = 0.15;    // relative change of a price per share taken too much
constexpr double kMaxGain = 0.5;       // logarithm of the largest change
constexpr double kMaxPrice = 1e4;      // makespans per room; beyond, times are lost in rounding
constexpr double kMaxLimit = 9e18;     // ns, less than the largest int64_t
constexpr int kLookAhead = 1;          // checkpoints behind a segment that are evaluated with it
constexpr int64_t kStopInterval = 64;  // evaluations between two looks at `stop`

class Annealer {
 public:
  Annealer(const model::Problem& problem, const decompose::Module& module, const Branches& branches,
           const ModuleGoal& goal, const AnnealOptions& options)
      : problem_(problem),
        module_(module),
        goal_(goal),
        options_(options),
        price_(goal.price),
        random_(options.seed),
        arrangement_(problem, module),
        evaluator_(problem, module, arrangement_),
        moves_(problem, module, branches, arrangement_, random_) {
    if (goal.whole != nullptr) whole_.emplace(*goal.whole);
  }

  AnnealOutcome Run(const Layout& start, const std::atomic<bool>& stop) {
    arrangement_.Load(start.device, start.order, goal_.entry);
    evaluator_.Evaluate();
    Value();
    Keep();
    if (options_.segment > 0) {
      AnnealSegments(stop);
    } else {
      const int64_t time = std::max<int64_t>(1, evaluator_.makespan_ns());
      Cool(options_.first_heat * static_cast<double>(time), options_.max_evaluations, stop,
           [this] { Keep(); });
    }
    return std::move(outcome_);
  }

 private:
  int64_t Violation() const {
    int64_t total = 0;
    for (size_t memory = 0; memory < goal_.limit_bytes.size(); ++memory) {
      total += std::max<int64_t>(0, arrangement_.used()[memory] - goal_.limit_bytes[memory]);
    }
    return total;
  }

  /*!
   * \brief Makes memories dearer of which a segment took more than its share, and others cheaper.
   * \param used_before [num_memories], bytes in use before the segment was annealed.
   */
  void AdjustPrices(std::span<const int64_t> used_before, int first, int last) {
    const double step = static_cast<double>(last - first);
    const double time = std::max(1.0, static_cast<double>(evaluator_.makespan_ns()));
    const double left = static_cast<double>(module_.num_tasks - first) / step;  // such segments
    for (size_t memory = 0; memory < price_.size(); ++memory) {
      const double before = static_cast<double>(used_before[memory]);
      const double share = (static_cast<double>(options_.target_bytes[memory]) - before) / left;
      const double taken = static_cast<double>(arrangement_.used()[memory]) - before;
      const double room = static_cast<double>(std::max<int64_t>(1, goal_.limit_bytes[memory]));
      const double even = room * step / module_.num_tasks;
      price_[memory] *=
          std::exp(std::clamp(kPriceGain * (taken - share) / even, -kMaxGain, kMaxGain));
      price_[memory] = std::min(price_[memory], kMaxPrice * time / room);
    }
  }

  /*! \brief Price of the memory in use and of the device of the last task. */
  double Price() const {
    double price = 0;
    for (size_t memory = 0; memory < price_.size(); ++memory) {
      price += price_[memory] * static_cast<double>(arrangement_.used()[memory]);
    }
    return module_.num_tasks == 0 ? price : price + goal_.exit_ns[arrangement_.device().back()];
  }

  /*! \brief Makes moves while it gets colder; calls `keep` at each new best. */
  template <typename Keep>
  void Cool(double first, int64_t evaluations, const std::atomic<bool>& stop, Keep keep) {
    const double ratio = kEndHeat / options_.first_heat;
    double temperature = first;
    ModuleValue best = value_;
    for (int64_t step = 0; step < evaluations; ++step) {
      if (step % kStopInterval == 0) {
        if (stop.load(std::memory_order_relaxed)) break;
        const double done = static_cast<double>(step) / static_cast<double>(evaluations);
        temperature = first * std::pow(ratio, done);
      }
      ++outcome_.evaluations;
      if (!moves_.Propose()) continue;
      if (TryMove(temperature)) {
        arrangement_.Keep();
        if (value_ < best) {
          best = value_;
          keep();
        }
      } else {
        arrangement_.Undo();
      }
    }
  }

  /*!
   * \brief Anneals one segment of the order after the other, each for its share of the moves.
   *
   * Memory is spread over them by prices: else the first ones would take all there is.
   */
  void AnnealSegments(const std::atomic<bool>& stop) {
    const int count = module_.num_tasks;
    const int spacing = evaluator_.spacing();
    Tails tails(problem_, module_, arrangement_);
    evaluator_.FindTails(tails);
    price_ = options_.price;
    Horizon horizon;
    int replaced = 0;  // From here on the evaluator does not know what was kept.
    int first = 0;
    // Where they meet differs each time.
    int last = options_.segment / 2 + random_.Below(options_.segment);
    while (first < count && !stop.load(std::memory_order_relaxed)) {
      if (last > count - options_.segment / 2) last = count;
      const int behind = (last / spacing + 1 + kLookAhead) * spacing;
      const bool is_to_end = behind >= count;
      if (!is_to_end) horizon = tails.At(behind);
      evaluator_.Look(replaced, is_to_end ? nullptr : &horizon);
      Value();
      const std::vector<int64_t> used_before = arrangement_.used();
      AnnealSegment(first, last, stop);
      AdjustPrices(used_before, first, last);
      replaced = first;
      first = last;
      last += options_.segment;
    }
    evaluator_.Look(replaced, nullptr);
    outcome_.price = std::exchange(price_, goal_.price);
    Value();
    if (value_ < outcome_.value) Keep();
  }

  /*! \brief Anneals the tasks at positions [first, last) of the order; keeps the best. */
  void AnnealSegment(int first, int last, const std::atomic<bool>& stop) {
    Layout best;
    const auto keep = [&] {
      const auto& order = arrangement_.order();
      best.order.assign(order.begin() + first, order.begin() + last);
      best.device.clear();
      for (int task : best.order) best.device.push_back(arrangement_.device()[task]);
    };
    keep();
    moves_.StayWithin(first, last);
    const double part = static_cast<double>(last - first) / module_.num_tasks;
    const double time = std::max(1.0, static_cast<double>(evaluator_.makespan_ns()) * part);
    // By rounding where segments end, all together have as many as there are.
    const auto until = [this](int position) {
      return options_.max_evaluations * position / module_.num_tasks;
    };
    const int64_t evaluations = until(last) - until(first);
    Cool(options_.first_heat * time, evaluations, stop, keep);
    arrangement_.Replace(first, best.order, best.device);
  }

  /*! \brief Bytes that are lacking at the end of an evaluation that took `violation` for them. */
  int64_t Measured(int64_t violation) {
    if (!whole_) return violation;
    const list::Value found = (*whole_)(arrangement_.device(), arrangement_.order(), list::kNever);
    // What is unreachable counts in another place.
    return found.violation < model::kUnreachablePenalty ? found.violation : violation;
  }

  /*! \brief Takes the value of what the evaluator keeps. */
  void Value() {
    value_ = {Measured(Violation()) + model::Unreachable(evaluator_.num_unreachable()),
              static_cast<double>(evaluator_.makespan_ns()) + Price()};
  }

  /*! \brief Evaluates the proposed move and decides; the evaluator then is as it should be. */
  bool TryMove(double temperature) {
    int64_t violation = Violation();
    const double price = Price();
    // Drawing the limit first lets the evaluation stop as soon as it is exceeded.
    const double limit = value_.cost - temperature * std::log(random_.Unit());
    const int64_t over = value_.violation % model::kUnreachablePenalty;
    if (violation > over || price > limit) return false;
    const bool is_relief = violation < over || value_.violation >= model::kUnreachablePenalty;
    const int64_t limit_ns =
        is_relief ? list::kNever : static_cast<int64_t>(std::min(limit - price, kMaxLimit));
    const int64_t time = evaluator_.Try(limit_ns);
    // Of what is unreachable the last evaluation tells.
    if (time == list::kNever) {
      evaluator_.Reject();
      return false;
    }
    violation = Measured(violation);
    const ModuleValue trial{violation + model::Unreachable(evaluator_.trial_unreachable()),
                            static_cast<double>(time) + price};
    if (trial.violation > value_.violation ||
        (trial.violation == value_.violation && trial.cost > limit)) {
      evaluator_.Reject();
      return false;
    }
    evaluator_.Accept();
    value_ = trial;
    return true;
  }

  void Keep() {
    outcome_.layout.device = arrangement_.device();
    outcome_.layout.order = arrangement_.order();
    outcome_.value = value_;
    outcome_.time_ns = evaluator_.makespan_ns();
  }

  const model::Problem& problem_;
  const decompose::Module& module_;
  const ModuleGoal& goal_;
  const AnnealOptions& options_;
  std::vector<double> price_;  // [num_memories], ns per byte; of the goal, but for segments
  Random random_;
  Arrangement arrangement_;
  ModuleEvaluator evaluator_;
  std::optional<list::Evaluator> whole_;  // of goal_.whole
  Moves moves_;
  ModuleValue value_;
  AnnealOutcome outcome_;
};

}  // namespace

AnnealOutcome Anneal(const model::Problem& problem, const decompose::Module& module,
                     const Branches& branches, const Layout& start, const ModuleGoal& goal,
                     const AnnealOptions& options, const std::atomic<bool>& stop) {
  return Annealer(problem, module, branches, goal, options).Run(start, stop);
}

}  // namespace heteroplace::search
