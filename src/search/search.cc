#include "search/search.h"

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "bounds/lagrangian.h"
#include "list/evaluate.h"
#include "search/assemble.h"
#include "search/bound_rounds.h"
#include "search/branches.h"
#include "search/initial_solutions.h"
#include "search/moves/module_annealing.h"
#include "search/moves/patterns.h"
#include "search/moves/prune.h"
#include "search/moves/selection.h"
#include "search/planner.h"
#include "search/turn_clock.h"
#include "simulate/simulator.h"
#include "support/jobs.h"
#include "support/random.h"

namespace heteroplace::search {

namespace {

constexpr int kPriceRounds = 40;       // of the ascent of prices: Lagrange multipliers
constexpr int kImproveTries = 3000;    // segments replaced in each round
constexpr double kMaxBounding = 0.5;   // part of the time that is left, for one bound
constexpr double kMaxReserving = 0.1;  // part of the time for a reserve of memory
}  // namespace

class PlanSearch::ColumnGeneration {
 public:
  ColumnGeneration(const model::Problem& problem, std::vector<InitialSolution> initial,
                   SearchOptions options)
      : problem_(problem),
        options_(std::move(options)),
        random_(options_.seed),
        evaluate_(problem),
        price_(options_.price),
        initial_(std::move(initial)) {
    price_.resize(static_cast<size_t>(problem.num_memories), 0.0);
  }

  /*! \brief See PlanSearch::Run. */
  SearchOutcome Run(const SearchTurn& turn, const std::vector<InitialSolution>& plans,
                    const SearchHook& hook) {
    clock_.Begin(turn);
    hook_ = &hook;
    stop_ = false;
    was_stopped_ = false;
    bound_ns_ = std::max(bound_ns_, turn.bound_ns);
    if (!planner_) Begin();
    if (!plans.empty()) {
      AddPlans(CompleteSolutions(problem_, plans));
      is_selected_ = false;
    }
    for (bool has_worked = false; !IsOver(); has_worked = true) {
      Select();
      if (IsOver() || (has_worked && clock_.IsStalled())) break;
      is_exhausted_ = !Round();
    }
    if (round_ > 0 || !clock_.IsLate()) Select();  // From what the last jobs have found.
    SearchOutcome outcome{Assemble(),      evaluations_, was_stopped_,
                          price_,          bound_ns_,    !IsDone() && !was_stopped_,
                          clock_.Stalled()};
    clock_.End();
    return outcome;
  }

 private:
  /*! \brief Makes the modules, and their first patterns from the initial solutions. */
  void Begin() {
    initial_ = CompleteSolutions(problem_, initial_);
    if (problem_.counts_lifetimes) {
      const std::vector<int64_t> reserve = LiveReserve(problem_, initial_, [this] {
        return clock_.Elapsed() >= kMaxReserving * clock_.TimeLimit();
      });
      without_tensors_.emplace(problem_.WithoutTensors(reserve));
      charges_ = &*without_tensors_;
    }
    modules_ = decompose::Decompose(*charges_);
    patterns_.emplace(*charges_, modules_);
    selector_.emplace(*charges_, modules_, *patterns_);
    planner_.emplace(*charges_, modules_, *patterns_, *selector_, options_.seed);
    for (const decompose::Module& module : modules_.classes) {
      branches_.push_back(FindBranches(module));
    }
    is_one_module_ = modules_.num_modules() <= 1;
    RankInitial();
    const auto is_late = [this] { return clock_.IsLate(); };
    if (!is_one_module_) AddPlainPatterns(*charges_, modules_, *patterns_, is_late);
    AddPlans(initial_);
  }

  /*! \brief Anneals some modules, and adds what is found; false: there is nothing left to do. */
  bool Round() {
    std::vector<Job> jobs = is_one_module_
                                ? planner_->OneModuleJobs(initial_, selection_.choice[0], round_)
                                : planner_->PatternJobs(price_, round_);
    const bool has_bound = options_.finds_bound && IsBoundRound(is_one_module_, round_);
    if (jobs.empty() && !has_bound) return false;
    if (problem_.counts_lifetimes && is_one_module_) LimitLifetimes(jobs);
    RunAll(jobs, has_bound);
    planner_->UseOutcomes(jobs);
    for (Job& job : jobs) AddToFamily(job.module_class, job.outcome.layout);
    if (has_bound) UseBound();
    ++round_;
    is_selected_ = false;
    return true;
  }

  // Initial solutions.

  /*! \brief Ranks the initial solutions, the best one first. */
  void RankInitial() {
    std::vector<std::pair<list::Value, size_t>> ranked;
    for (const InitialSolution& start : initial_) {
      if (!ranked.empty() && clock_.IsLate()) break;
      ranked.emplace_back(evaluate_(start.device, start.order, list::kNever), ranked.size());
    }
    std::ranges::stable_sort(ranked, std::less<>(), [](const auto& one) { return one.first; });
    std::vector<InitialSolution> sorted(ranked.size());
    for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = std::move(initial_[ranked[i].second]);
    initial_ = std::move(sorted);
    initial_value_ = ranked.front().first;
    best_ns_ = initial_value_.violation == 0 ? initial_value_.makespan_ns : list::kNever;
  }

  /*! \brief Adds plans to the selections, and their layouts of modules to the patterns. */
  void AddPlans(const std::vector<InitialSolution>& plans) {
    std::vector<int> position(problem_.num_tasks);
    for (const InitialSolution& start : plans) {
      if (!selection_.choice.empty() && clock_.IsLate()) return;
      for (int index = 0; index < problem_.num_tasks; ++index) position[start.order[index]] = index;
      std::vector<int> choice;
      choice.reserve(modules_.num_modules());
      for (int module = 0; module < modules_.num_modules(); ++module) {
        choice.push_back(
            AddOrFind(modules_.module_class[module], LayoutOf(modules_, start, position, module)));
      }
      Offer(selector_->Make(std::move(choice)));
    }
  }

  /*! \brief Id of a layout's pattern, or of one that is at least as good where it counts. */
  int AddOrFind(int module_class, const Layout& layout) {
    const int added = patterns_->Add(module_class, layout, Lack(layout));
    if (added >= 0) return added;
    const int exit = layout.device.empty() ? 0 : problem_.device_memory[layout.device.back()];
    const auto& all = patterns_->of(module_class);
    for (size_t index = 0; index < all.size(); ++index) {
      if (all[index].layout.device == layout.device) return static_cast<int>(index);
    }
    const int entry = is_one_module_ ? 0 : exit;
    return std::max(0, selector_->Best(module_class, entry, exit, price_));
  }

  /*! \brief What the layout of the only module lacks by lifetime. */
  int64_t Lack(const Layout& layout) {
    if (!is_one_module_ || !problem_.counts_lifetimes || layout.device.empty()) return 0;
    return evaluate_(layout.device, layout.order, list::kNever).violation;
  }

  /*! \brief Adds a layout to its class and tries it in classes of equal shape. */
  void AddToFamily(int module_class, const Layout& layout) {
    patterns_->Add(module_class, layout, Lack(layout));
    for (int other = 0; other < static_cast<int>(modules_.classes.size()); ++other) {
      if (other != module_class && modules_.shape[other] == modules_.shape[module_class]) {
        patterns_->Add(other, layout);
      }
    }
  }

  /*! \brief Jobs over all tasks measure what they lack themselves, instead of a reserve for it. */
  void LimitLifetimes(std::vector<Job>& jobs) const {
    for (Job& job : jobs) {
      if (job.options.segment > 0) continue;
      job.goal.whole = &problem_;
      for (size_t memory = 0; memory < job.goal.limit_bytes.size(); ++memory) {
        job.goal.limit_bytes[memory] = problem_.memory_bytes[memory] - problem_.base_bytes[memory];
      }
    }
  }

  // Selection.

  void Offer(Selection selection) {
    if (!selection_.choice.empty() && selection_.violation == 0 &&
        selection.time_ns >= selection_.time_ns) {
      return;
    }
    if (problem_.counts_lifetimes && selection.num_unreachable == 0) Measure(selection);
    const bool is_better =
        selection_.choice.empty() || selection.violation < selection_.violation ||
        (selection.violation == selection_.violation && selection.time_ns < selection_.time_ns);
    if (!is_better) return;
    // Gains too small to matter do not prolong the search.
    if (selection_.choice.empty() || selection.violation < selection_.violation ||
        selection.time_ns < selection_.time_ns - selection_.time_ns / 2000) {
      last_gain_ = evaluations_;
      clock_.TellGain();
    }
    selection_ = std::move(selection);
    if (selection_.violation == 0) best_ns_ = std::min(best_ns_, selection_.time_ns);
  }

  /*! \brief Finds what a selection lacks by lifetime; where that is more than modules were told,
   * they get less room from now on. */
  void Measure(Selection& selection) {
    const bool fits_room = selection.violation == 0;
    const model::NativePlan plan = AssemblePlan(*charges_, modules_, *patterns_, selection);
    const simulate::Times times = simulate::Simulate(problem_, model::ToSteps(problem_, plan));
    selection.violation = 0;
    for (int memory = 0; memory < problem_.num_memories; ++memory) {
      const int64_t lack =
          std::max<int64_t>(0, times.peak_bytes[memory] - problem_.memory_bytes[memory]);
      selection.violation += lack;
      if (!fits_room || lack == 0) continue;
      const bool has_plan = !selection_.choice.empty() && selection_.violation == 0;
      const int64_t least = has_plan ? selection_.used[memory] : 0;
      modules_.room_bytes[memory] = std::max(least, modules_.room_bytes[memory] - lack);
    }
  }

  /*! \brief Selects patterns, unless that was done since the latest ones were found. */
  void Select() {
    if (!is_selected_) SelectPatterns();
    is_selected_ = true;
  }

  void SelectPatterns() {
    if (problem_.num_tasks == 0) return;
    if (is_one_module_) {
      for (int pattern = 0; pattern < static_cast<int>(patterns_->of(0).size()); ++pattern) {
        Offer(selector_->Make({pattern}));
      }
      PrunePatterns(modules_, price_, *patterns_, selection_);
      return;
    }
    const double before = clock_.Elapsed();
    const auto is_late = [this] { return clock_.IsLate(); };
    price_ = selector_->FindPrices(price_, selection_.time_ns, kPriceRounds, is_late);
    const Selection found = selector_->BestFor(price_);
    if (!found.choice.empty()) {
      Offer(selector_->Improve(found, price_, kImproveTries, random_, is_late));
    }
    Offer(selector_->Improve(selection_, price_, kImproveTries, random_, is_late));
    PrunePatterns(modules_, price_, *patterns_, selection_);
    clock_.TellSelecting(clock_.Elapsed() - before);
  }

  // Jobs and bounds.

  void FindBound() {
    const double begin_s = clock_.Elapsed();
    bounds::BoundOptions options =
        OptionsOfBound(problem_.num_tasks, is_one_module_, round_, options_.max_evaluations);
    options.time_limit_s = kMaxBounding * std::max(0.0, clock_.JobsEnd() - clock_.Elapsed());
    options.target_ns = best_ns_ == list::kNever ? selection_.time_ns : best_ns_;
    bound_ = bounds::LagrangianBound(problem_, round_ == 0 ? options_.price : price_, options,
                                     [this] { return stop_.load(); });
    clock_.TellBounding(clock_.Elapsed() - begin_s);
  }

  void UseBound() {
    bound_ns_ = std::max(bound_ns_, bound_.bound_ns);
    if (round_ == 0) price_ = bound_.price;
    std::vector<InitialSolution> samples(bound_.samples.size());
    for (size_t i = 0; i < samples.size(); ++i) samples[i].device = std::move(bound_.samples[i]);
    AddPlans(CompleteSolutions(problem_, samples));
  }

  void RunAll(std::vector<Job>& jobs, bool has_bound) {
    if (options_.max_evaluations >= 0) {
      ShareEvaluations(options_.max_evaluations - evaluations_, jobs);
    }
    const int extra = has_bound ? 1 : 0;
    RunJobs(
        static_cast<int>(jobs.size()) + extra, options_.threads,
        [&](int index) {
          if (index < extra) {
            FindBound();
            return;
          }
          Work(jobs[index - extra]);
        },
        [this] { Watch(); });
    for (const Job& job : jobs) evaluations_ += job.outcome.evaluations;
  }

  /*! \brief Does one job; several at once. */
  void Work(Job& job) const {
    const auto anneal = [&](const decompose::Module& module) {
      job.outcome = Anneal(*charges_, module, branches_[job.module_class], job.start, job.goal,
                           job.options, stop_);
    };
    const decompose::Module& module = modules_.classes[job.module_class];
    if (job.withheld.tensor < 0) {
      anneal(module);
    } else {
      anneal(WithoutReaders(*charges_, module, job.withheld));
    }
  }

  // Ends.

  /*! \brief Looks at the clock and asks the hook; called while jobs run. */
  void Watch() {
    if (clock_.Elapsed() >= clock_.JobsEnd()) stop_ = true;
    if (*hook_ && !stop_ && clock_.IsHookDue()) {
      try {
        was_stopped_ = (*hook_)(evaluations_, best_ns_, bound_ns_);
      } catch (...) {
        stop_ = true;  // The jobs must end before the error can leave.
        throw;
      }
      if (was_stopped_) stop_ = true;
    }
  }

  /*! \brief Whether the turn is over. */
  bool IsOver() {
    if (stop_ || IsDone()) return true;
    Watch();
    return stop_;
  }

  /*! \brief Whether no turn could do more. */
  bool IsDone() const {
    return problem_.num_tasks == 0 || is_exhausted_ || best_ns_ <= bound_ns_ ||
           (options_.max_evaluations >= 0 && evaluations_ >= options_.max_evaluations) ||
           (options_.patience > 0 && evaluations_ - last_gain_ >= options_.patience);
  }

  /*! \brief The plan of the best selection, or of the best initial solution if that is better. */
  model::NativePlan Assemble() const {
    const bool is_initial_better = problem_.num_tasks == 0 ||
                                   initial_value_.violation < selection_.violation ||
                                   (initial_value_.violation == selection_.violation &&
                                    initial_value_.makespan_ns <= selection_.time_ns);
    if (is_initial_better) {
      list::Evaluator evaluate(problem_);
      const InitialSolution& start = initial_.front();
      evaluate(start.device, start.order, list::kNever);
      return evaluate.LatestPlan(start.device);
    }
    return AssemblePlan(*charges_, modules_, *patterns_, selection_);
  }

  const model::Problem& problem_;
  SearchOptions options_;
  const SearchHook* hook_ = nullptr;  // of this turn
  TurnClock clock_;
  std::optional<model::Problem> without_tensors_;
  // The problem as modules charge their memories: without tensors where they count by lifetime;
  // then what is chosen is measured.
  const model::Problem* charges_ = &problem_;
  decompose::Modules modules_;
  std::optional<Patterns> patterns_;
  std::optional<Selector> selector_;
  std::optional<JobPlanner> planner_;
  Random random_;
  list::Evaluator evaluate_;
  std::vector<Branches> branches_;  // [num_classes]
  std::vector<double> price_;       // [num_memories]
  bool is_one_module_ = false;
  std::vector<InitialSolution> initial_;  // ranked
  list::Value initial_value_;             // of the first one
  Selection selection_;                   // the best one
  bool is_selected_ = false;              // from all patterns that are known
  bool is_exhausted_ = false;             // no module has anything left to anneal
  int64_t best_ns_ = list::kNever;
  int round_ = 0;
  int64_t evaluations_ = 0;
  int64_t last_gain_ = 0;
  bounds::BoundOutcome bound_;  // the latest one
  int64_t bound_ns_ = 0;        // the best one
  bool was_stopped_ = false;
  std::atomic<bool> stop_{false};  // read by the jobs
};

PlanSearch::PlanSearch(const model::Problem& problem, std::vector<InitialSolution> initial,
                       SearchOptions options)
    : generation_(
          std::make_unique<ColumnGeneration>(problem, std::move(initial), std::move(options))) {}

PlanSearch::~PlanSearch() = default;

SearchOutcome PlanSearch::Run(const SearchTurn& turn, const std::vector<InitialSolution>& plans,
                              const SearchHook& hook) {
  return generation_->Run(turn, plans, hook);
}

}  // namespace heteroplace::search
