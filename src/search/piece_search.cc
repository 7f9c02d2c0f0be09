#include "search/piece_search.h"

#include <algorithm>
#include <cmath>

#include "sched/random.h"
#include "search/arrangement.h"
#include "search/moves.h"
#include "search/piece_evaluator.h"

namespace heteroplace {

namespace {

constexpr double kLastHeat = 0.00005;  // temperature at the end, as a part of the time
constexpr int64_t kStopInterval = 64;  // evaluations between two looks at `stop`

class Annealer {
 public:
  Annealer(const Problem& problem, const Piece& piece, const Branches& branches,
           const PieceGoal& goal, const AnnealOptions& options)
      : piece_(piece),
        goal_(goal),
        options_(options),
        random_(options.seed),
        arrangement_(problem, piece),
        evaluator_(problem, piece, arrangement_),
        moves_(problem, piece, branches, arrangement_, random_) {}

  AnnealOutcome Run(const Layout& start, const std::atomic<bool>& stop) {
    arrangement_.Load(start.device, start.order, goal_.entry);
    evaluator_.Evaluate();
    value_ = {Violation() + evaluator_.num_unreachable() * kUnreachablePenalty,
              static_cast<double>(evaluator_.makespan_ns()) + Price()};
    Keep();
    const double first =
        options_.first_heat * static_cast<double>(std::max<int64_t>(1, evaluator_.makespan_ns()));
    const double ratio = kLastHeat / options_.first_heat;
    double temperature = first;
    for (int64_t step = 0; step < options_.max_evaluations; ++step) {
      if (step % kStopInterval == 0) {
        if (stop.load(std::memory_order_relaxed)) break;
        const double done =
            static_cast<double>(step) / static_cast<double>(options_.max_evaluations);
        temperature = first * std::pow(ratio, done);
      }
      ++outcome_.evaluations;
      if (!moves_.Propose()) continue;
      if (TryMove(temperature)) {
        arrangement_.Keep();
        if (value_ < outcome_.value) Keep();
      } else {
        arrangement_.Undo();
      }
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

  /*! \brief Price of the memory in use and of the device of the last task. */
  double Price() const {
    double price = 0;
    for (size_t memory = 0; memory < goal_.price.size(); ++memory) {
      price += goal_.price[memory] * static_cast<double>(arrangement_.used()[memory]);
    }
    return piece_.num_tasks == 0 ? price : price + goal_.exit_ns[arrangement_.device().back()];
  }

  /*! \brief Evaluates the proposed move and decides; the evaluator then is as it should be. */
  bool TryMove(double temperature) {
    const int64_t violation = Violation();
    const double price = Price();
    // Drawing the limit first lets the evaluation stop as soon as it is exceeded.
    const double limit = value_.cost - temperature * std::log(random_.Unit());
    const int64_t over = value_.violation % kUnreachablePenalty;
    if (violation > over || price > limit) return false;
    const bool is_relief = violation < over || value_.violation >= kUnreachablePenalty;
    const int64_t limit_ns = is_relief ? kNever : static_cast<int64_t>(limit - price);
    const int64_t time = evaluator_.Try(limit_ns);
    // Of what is unreachable the last evaluation tells.
    if (time == kNever) {
      evaluator_.Reject();
      return false;
    }
    const PieceValue trial{violation + evaluator_.trial_unreachable() * kUnreachablePenalty,
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

  const Piece& piece_;
  const PieceGoal& goal_;
  const AnnealOptions& options_;
  Random random_;
  Arrangement arrangement_;
  PieceEvaluator evaluator_;
  Moves moves_;
  PieceValue value_;
  AnnealOutcome outcome_;
};

}  // namespace

AnnealOutcome Anneal(const Problem& problem, const Piece& piece, const Branches& branches,
                     const Layout& start, const PieceGoal& goal, const AnnealOptions& options,
                     const std::atomic<bool>& stop) {
  return Annealer(problem, piece, branches, goal, options).Run(start, stop);
}

}  // namespace heteroplace
