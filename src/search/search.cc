#include "search/search.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <numeric>

#include "sched/evaluate.h"
#include "sched/list_schedule.h"
#include "sched/random.h"
#include "sched/ranks.h"
#include "search/branches.h"
#include "search/jobs.h"
#include "search/patterns.h"
#include "search/piece_evaluator.h"
#include "search/piece_search.h"
#include "search/selection.h"

namespace heteroplace {

namespace {

constexpr double kFirstHeat = 0.01;      // temperature of the first rounds, as a part of the time
constexpr double kLaterHeat = 0.004;     // and of the later ones
constexpr int64_t kRoundPerTask = 60;    // evaluations of a job in the first round, per task
constexpr int64_t kRoundBase = 1500;     // and in any case
constexpr int kMaxDoublings = 5;         // of the length of a job
constexpr int kJobsOfOnePiece = 4;       // independent runs if there is nothing to divide
constexpr int kMaxPatterns = 160;        // of a class
constexpr int kPriceRounds = 40;         // of the ascent of prices
constexpr int kImproveTries = 3000;      // stretches replaced in each round
constexpr double kHookSeconds = 0.05;    // between two calls of the hook
constexpr double kMaxSlackRatio = 0.25;  // of a pair of memories that is still searched

using Clock = std::chrono::steady_clock;

/*! \brief One run of annealing. */
struct Job {
  int piece_class = 0;
  Layout start;
  PieceGoal goal;
  AnnealOptions options;
  AnnealOutcome outcome;
};

class ChainSearch {
 public:
  ChainSearch(const Problem& problem, const SearchOptions& options, const SearchHook& hook)
      : problem_(problem),
        options_(options),
        hook_(hook),
        chain_(Decompose(problem)),
        patterns_(problem, chain_),
        selector_(problem, chain_, patterns_),
        random_(options.seed),
        price_(options.price),
        begin_(Clock::now()) {
    for (const Piece& piece : chain_.classes) branches_.push_back(FindBranches(piece));
    is_one_piece_ = chain_.num_pieces() <= 1;
    price_.resize(static_cast<size_t>(problem.num_memories), 0.0);
  }

  SearchOutcome Run(const std::vector<SearchStart>& starts) {
    starts_ = starts;
    CompleteStarts();
    LoadStarts(starts_);
    if (!is_one_piece_) AddPlainPatterns(problem_, chain_, patterns_);
    AddStarts(starts_);
    for (round_ = 0; !IsOver(); ++round_) {
      SelectPatterns();
      if (IsOver()) break;
      std::vector<Job> jobs = is_one_piece_ ? OnePieceJobs(starts_) : ChainJobs();
      if (jobs.empty()) break;
      RunAll(jobs);
      for (Job& job : jobs) AddToFamily(job.piece_class, job.outcome.layout);
    }
    SelectPatterns();
    return {Assemble(), evaluations_, was_stopped_, price_};
  }

 private:
  // Starts.

  /*! \brief Puts groups on one device each and finds the orders that are missing. */
  void CompleteStarts() {
    std::vector<double> rank;
    for (SearchStart& start : starts_) {
      for (int group = 0; group < problem_.num_groups; ++group) {
        const auto tasks = problem_.group_tasks[group];
        if (tasks.empty()) continue;
        const bool is_fine = problem_.Run(tasks[0], start.device[tasks[0]]) != kImpossible;
        const int device = is_fine ? start.device[tasks[0]] : problem_.allowed[tasks[0]][0];
        for (int task : tasks) start.device[task] = device;
      }
      if (!start.order.empty()) continue;
      if (rank.empty()) {
        rank = UpwardRanks(problem_, std::vector<uint8_t>(problem_.num_devices, 1));
      }
      const Schedule schedule = ListSchedule(problem_, start.device, rank);
      start.order.resize(problem_.num_tasks);
      std::iota(start.order.begin(), start.order.end(), 0);
      // Ids are in topological order, which breaks ties between tasks that take no time.
      std::stable_sort(start.order.begin(), start.order.end(), [&](int left, int right) {
        return schedule.start_ns[left] < schedule.start_ns[right];
      });
    }
  }

  void LoadStarts(const std::vector<SearchStart>& starts) {
    Evaluator evaluate(problem_);
    for (const SearchStart& start : starts) {
      const Value value = evaluate(start.device, start.order, kNever);
      if (start_.device.empty() || value < start_value_) {
        start_ = start;
        start_value_ = value;
      }
    }
    best_ns_ = start_value_.violation == 0 ? start_value_.makespan_ns : kNever;
  }

  /*! \brief The part of a plan for one piece, with local ids. */
  Layout Part(const SearchStart& start, const std::vector<int>& position, int piece) const {
    const int begin = chain_.first_task[piece], end = chain_.first_task[piece + 1];
    Layout layout;
    layout.device.assign(start.device.begin() + begin, start.device.begin() + end);
    layout.order.resize(static_cast<size_t>(end - begin));
    std::iota(layout.order.begin(), layout.order.end(), 0);
    std::sort(layout.order.begin(), layout.order.end(), [&](int left, int right) {
      return position[begin + left] < position[begin + right];
    });
    return layout;
  }

  void AddStarts(const std::vector<SearchStart>& starts) {
    std::vector<int> position(problem_.num_tasks);
    for (const SearchStart& start : starts) {
      for (int index = 0; index < problem_.num_tasks; ++index) position[start.order[index]] = index;
      std::vector<int> choice;
      for (int piece = 0; piece < chain_.num_pieces(); ++piece) {
        choice.push_back(AddOrFind(chain_.piece_class[piece], Part(start, position, piece)));
      }
      Offer(selector_.Make(std::move(choice)));
    }
  }

  /*! \brief Id of a layout's pattern, or of one that is at least as good where it counts. */
  int AddOrFind(int piece_class, const Layout& layout) {
    const int added = patterns_.Add(piece_class, layout);
    if (added >= 0) return added;
    const int exit = layout.device.empty() ? 0 : problem_.device_memory[layout.device.back()];
    const auto& all = patterns_.of(piece_class);
    for (size_t index = 0; index < all.size(); ++index) {
      if (all[index].layout.device == layout.device) return static_cast<int>(index);
    }
    return std::max(0, selector_.Best(piece_class, exit, exit, price_));
  }

  /*! \brief Adds a layout to its class and tries it in classes of equal shape. */
  void AddToFamily(int piece_class, const Layout& layout) {
    patterns_.Add(piece_class, layout);
    for (int other = 0; other < static_cast<int>(chain_.classes.size()); ++other) {
      if (other != piece_class && chain_.shape[other] == chain_.shape[piece_class]) {
        patterns_.Add(other, layout);
      }
    }
  }

  // Selection.

  void Offer(const Selection& selection) {
    const bool is_better =
        selection_.choice.empty() || selection.violation < selection_.violation ||
        (selection.violation == selection_.violation && selection.time_ns < selection_.time_ns);
    if (!is_better) return;
    // Gains too small to matter do not prolong the search.
    if (selection_.choice.empty() || selection.violation < selection_.violation ||
        selection.time_ns < selection_.time_ns - selection_.time_ns / 2000) {
      last_gain_ = evaluations_;
    }
    selection_ = selection;
    if (selection.violation == 0) best_ns_ = std::min(best_ns_, selection.time_ns);
  }

  void SelectPatterns() {
    if (problem_.num_tasks == 0) return;
    if (is_one_piece_) {
      for (int pattern = 0; pattern < static_cast<int>(patterns_.of(0).size()); ++pattern) {
        Offer(selector_.Make({pattern}));
      }
      Prune();
      return;
    }
    price_ = selector_.FindPrices(price_, selection_.time_ns, kPriceRounds);
    Offer(selector_.Improve(selector_.BestFor(price_), price_, kImproveTries, random_));
    Offer(selector_.Improve(selection_, price_, kImproveTries, random_));
    Prune();
  }

  /*! \brief Drops patterns that are neither selected nor best for a price near the present one. */
  void Prune() {
    std::vector<std::vector<double>> prices{price_};
    for (double factor : {0.0, 0.5, 0.8, 1.25, 2.0, 5.0}) {
      prices.push_back(price_);
      for (double& price : prices.back()) price *= factor;
    }
    for (size_t memory = 0; memory < price_.size(); ++memory) {
      for (double factor : {0.3, 3.0}) {
        prices.push_back(price_);
        prices.back()[memory] *= factor;
      }
    }
    for (int piece_class = 0; piece_class < static_cast<int>(chain_.classes.size());
         ++piece_class) {
      if (static_cast<int>(patterns_.of(piece_class).size()) <= kMaxPatterns) continue;
      std::vector<int> kept;
      for (int piece = 0; piece < chain_.num_pieces(); ++piece) {
        if (chain_.piece_class[piece] == piece_class) kept.push_back(selection_.choice[piece]);
      }
      for (const auto& price : prices) {
        for (int entry = 0; entry < problem_.num_memories; ++entry) {
          for (int exit = 0; exit < problem_.num_memories; ++exit) {
            const int best = selector_.Best(piece_class, entry, exit, price);
            if (best >= 0) kept.push_back(best);
          }
        }
      }
      std::sort(kept.begin(), kept.end());
      kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
      for (int piece = 0; piece < chain_.num_pieces(); ++piece) {
        if (chain_.piece_class[piece] != piece_class) continue;
        int& choice = selection_.choice[piece];
        choice =
            static_cast<int>(std::lower_bound(kept.begin(), kept.end(), choice) - kept.begin());
      }
      patterns_.Keep(piece_class, kept);
    }
  }

  // Jobs.

  Job MakeJob(int piece_class, const Layout& start, int index) {
    const int64_t tasks = chain_.classes[piece_class].num_tasks;
    Job job;
    job.piece_class = piece_class;
    job.start = start;
    job.options.max_evaluations = (kRoundBase + kRoundPerTask * tasks)
                                  << std::min(round_ / 2, kMaxDoublings);
    job.options.first_heat = round_ < 2 || round_ % 4 == 3 ? kFirstHeat : kLaterHeat;
    job.options.seed = Random(options_.seed * 0x10001U + static_cast<uint64_t>(round_) * 4096U +
                              static_cast<uint64_t>(index))
                           .Next();
    job.goal.price.assign(price_.size(), 0.0);
    job.goal.exit_ns.assign(problem_.num_devices, 0.0);
    job.goal.limit_bytes = chain_.room_bytes;
    return job;
  }

  std::vector<Job> OnePieceJobs(const std::vector<SearchStart>& starts) {
    std::vector<Job> jobs;
    const Pattern& best = patterns_.of(0)[selection_.choice[0]];
    for (int index = 0; index < kJobsOfOnePiece; ++index) {
      const size_t turn =
          static_cast<size_t>(round_) * kJobsOfOnePiece + static_cast<size_t>(index);
      const bool is_fresh = turn < starts.size() || index == kJobsOfOnePiece - 1;
      if (is_fresh) {
        const SearchStart& start = starts[turn % starts.size()];
        jobs.push_back(MakeJob(0, {start.device, start.order}, index));
        jobs.back().options.first_heat = kFirstHeat;
      } else {
        jobs.push_back(MakeJob(0, best.layout, index));
      }
    }
    return jobs;
  }

  /*! \brief For each class the pairs of memories where a better pattern would pay most. */
  std::vector<Job> ChainJobs() {
    const std::vector<double> slack = selector_.Slack(price_);
    const size_t width = static_cast<size_t>(problem_.num_memories);
    std::vector<Job> jobs;
    for (int piece_class = 0; piece_class < static_cast<int>(chain_.classes.size());
         ++piece_class) {
      const Piece& piece = chain_.classes[piece_class];
      if (IsEnumerated(piece)) continue;
      std::vector<std::pair<double, int>> pairs;
      double typical = 0;
      for (size_t pair = 0; pair < width * width; ++pair) {
        const double loss = slack[static_cast<size_t>(piece_class) * width * width + pair];
        if (loss < Patterns::kNoCost) pairs.emplace_back(loss, static_cast<int>(pair));
      }
      if (pairs.empty()) continue;
      std::sort(pairs.begin(), pairs.end());
      const int entry = pairs[0].second / problem_.num_memories;
      const int exit = pairs[0].second % problem_.num_memories;
      const int known = selector_.Best(piece_class, entry, exit, price_);
      typical = patterns_.Cost(patterns_.of(piece_class)[known], entry, price_);
      size_t useful = 1;
      while (useful < pairs.size() && pairs[useful].first <= kMaxSlackRatio * typical) ++useful;
      AddPairJob(jobs, piece_class, pairs[0].second);
      if (useful > 1) {
        const size_t other = 1 + static_cast<size_t>(round_) % (useful - 1);
        AddPairJob(jobs, piece_class, pairs[other].second);
      }
    }
    return jobs;
  }

  void AddPairJob(std::vector<Job>& jobs, int piece_class, int pair) {
    const int entry = pair / problem_.num_memories;
    const int exit = pair % problem_.num_memories;
    const int best = selector_.Best(piece_class, entry, exit, price_);
    if (best < 0) return;
    const auto& all = patterns_.of(piece_class);
    int start = best;
    if (round_ % 3 == 1) {  // For variety from another one with the same ends.
      for (int attempt = 0; attempt < 4 && start == best; ++attempt) {
        const int other = random_.Below(static_cast<int>(all.size()));
        if (all[other].exit_memory == exit && all[other].time_ns[entry] != kNever) start = other;
      }
    }
    Job job = MakeJob(piece_class, all[start].layout, static_cast<int>(jobs.size()));
    job.goal.entry = entry;
    job.goal.price = price_;
    for (int device = 0; device < problem_.num_devices; ++device) {
      if (problem_.device_memory[device] != exit) job.goal.exit_ns[device] = Patterns::kNoCost;
    }
    jobs.push_back(std::move(job));
  }

  void RunAll(std::vector<Job>& jobs) {
    if (options_.max_evaluations >= 0) {
      // The last round gets what is left, in equal parts.
      const int64_t left = options_.max_evaluations - evaluations_;
      int64_t wanted = 0;
      for (const Job& job : jobs) wanted += job.options.max_evaluations;
      const double part = std::min(1.0, static_cast<double>(left) / static_cast<double>(wanted));
      int64_t given = 0;
      wanted = 0;
      for (Job& job : jobs) {
        wanted += job.options.max_evaluations;
        const auto until = static_cast<int64_t>(std::llround(part * static_cast<double>(wanted)));
        job.options.max_evaluations = until - given;
        given = until;
      }
    }
    RunJobs(
        static_cast<int>(jobs.size()), options_.threads,
        [&](int index) {
          Job& job = jobs[index];
          job.outcome = Anneal(problem_, chain_.classes[job.piece_class],
                               branches_[job.piece_class], job.start, job.goal, job.options, stop_);
        },
        [this] { Watch(); });
    for (const Job& job : jobs) evaluations_ += job.outcome.evaluations;
  }

  // Ends.

  double Elapsed() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  /*! \brief Looks at the clock and asks the hook; called while jobs run. */
  void Watch() {
    const double now = Elapsed();
    if (now >= options_.time_limit_s) stop_ = true;
    if (hook_ && now - last_hook_s_ >= kHookSeconds) {
      last_hook_s_ = now;
      try {
        was_stopped_ = hook_(evaluations_, best_ns_);
      } catch (...) {
        stop_ = true;  // The jobs must end before the error can leave.
        throw;
      }
      if (was_stopped_) stop_ = true;
    }
  }

  bool IsOver() {
    if (stop_ || problem_.num_tasks == 0) return true;
    Watch();
    return stop_ || best_ns_ <= options_.bound_ns ||
           (options_.max_evaluations >= 0 && evaluations_ >= options_.max_evaluations) ||
           (options_.patience > 0 && evaluations_ - last_gain_ >= options_.patience);
  }

  /*! \brief The schedule of the best selection, or of the best start if that is better. */
  Schedule Assemble() const {
    const bool is_start_better = problem_.num_tasks == 0 ||
                                 start_value_.violation < selection_.violation ||
                                 (start_value_.violation == selection_.violation &&
                                  start_value_.makespan_ns <= selection_.time_ns);
    if (is_start_better) {
      Evaluator evaluate(problem_);
      evaluate(start_.device, start_.order, kNever);
      return evaluate.LatestSchedule(start_.device);
    }
    Schedule schedule;
    schedule.device.resize(problem_.num_tasks);
    schedule.start_ns.resize(problem_.num_tasks);
    int entry = 0;
    int64_t now = 0;
    for (int index = 0; index < chain_.num_pieces(); ++index) {
      now += AppendPiece(index, entry, now, schedule);
      const int choice = selection_.choice[index];
      entry = patterns_.of(chain_.piece_class[index])[choice].exit_memory;
    }
    schedule.makespan_ns = now;
    schedule.violation = selection_.violation;
    return schedule;
  }

  /*! \brief Adds a piece that is entered at `now`; returns its time. */
  int64_t AppendPiece(int index, int entry, int64_t now, Schedule& schedule) const {
    const int piece_class = chain_.piece_class[index];
    const Piece& piece = chain_.classes[piece_class];
    const Layout& layout = patterns_.of(piece_class)[selection_.choice[index]].layout;
    Arrangement arrangement(problem_, piece);
    arrangement.Load(layout.device, layout.order, entry);
    PieceEvaluator evaluator(problem_, piece, arrangement);
    const std::vector<ScheduledCopy> copies = evaluator.Copies();
    const int first = chain_.first_task[index];
    for (int task = 0; task < piece.num_tasks; ++task) {
      const int device = layout.device[task];
      schedule.device[first + task] = device;
      schedule.start_ns[first + task] = now + evaluator.finish_ns(task) - piece.Run(task, device);
    }
    const std::vector<int> tensors = TensorsOf(index);
    for (const ScheduledCopy& copy : copies) {
      schedule.copies.push_back(
          {tensors[copy.tensor], copy.src, copy.dst, now + copy.start_ns, now + copy.finish_ns});
    }
    return evaluator.makespan_ns();
  }

  /*! \brief Global ids of a piece's tensors, numbered as Decompose does. */
  std::vector<int> TensorsOf(int index) const {
    const Piece& piece = chain_.classes[chain_.piece_class[index]];
    std::vector<int> tensors(piece.num_tensors);
    for (int task = 0; task < piece.num_tasks; ++task) {
      const int global = chain_.first_task[index] + task;
      for (size_t read = 0; read < piece.reads[task].size(); ++read) {
        tensors[piece.reads[task][read]] = problem_.task_reads[global][read];
      }
      for (size_t made = 0; made < piece.makes[task].size(); ++made) {
        tensors[piece.makes[task][made]] = problem_.task_makes[global][made];
      }
    }
    return tensors;
  }

  const Problem& problem_;
  const SearchOptions& options_;
  const SearchHook& hook_;
  Chain chain_;
  Patterns patterns_;
  Selector selector_;
  Random random_;
  std::vector<Branches> branches_;  // [num_classes]
  std::vector<double> price_;       // [num_memories]
  Clock::time_point begin_;
  bool is_one_piece_ = false;
  std::vector<SearchStart> starts_;
  SearchStart start_;  // the best one
  Value start_value_;
  Selection selection_;  // the best one
  int64_t best_ns_ = kNever;
  int round_ = 0;
  int64_t evaluations_ = 0;
  int64_t last_gain_ = 0;
  double last_hook_s_ = 0;
  bool was_stopped_ = false;
  std::atomic<bool> stop_{false};  // read by the jobs
};

}  // namespace

SearchOutcome Search(const Problem& problem, const std::vector<SearchStart>& starts,
                     const SearchOptions& options, const SearchHook& hook) {
  return ChainSearch(problem, options, hook).Run(starts);
}

}  // namespace heteroplace
