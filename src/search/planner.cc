#include "search/planner.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace heteroplace::search {

namespace {

constexpr double kFirstHeat = 0.01;  // temperature of the first rounds, as a part of the time
constexpr double kLastHeat = 0.0012;
constexpr double kLaterHeat = 0.004;  // and of the later ones
constexpr int kFewTasks = 48;  // of a module in which a task is so large a part of the time that
constexpr double kFirstHeatOfFew = 0.06;  // these lead out of valleys
constexpr double kLaterHeatOfFew = 0.01;
constexpr int64_t kMinPerTask = 30;  // evaluations of the shortest job of one module, per task
constexpr int64_t kMinBase = 1000;   // and in any case
constexpr int64_t kStepsOfJob = 6'000'000;  // tasks times evaluations of the shortest other job
constexpr int64_t kMaxGrowth = 8;           // of its length
constexpr int kMaxDoublings = 6;            // of the length of a job, if there is one module
constexpr std::array<int, 3> kSegments = {32, 64, 128};  // tasks of a segment, by round
constexpr double kFill = 0.98;                           // of the room that prices aim at
constexpr double kScarceFill = 0.9;                      // of a memory, from which on it is scarce
constexpr int kMaxOfScarce = 3000;      // tasks of a module that is then annealed as a whole too
constexpr double kScarceHeat = 0.1;     // temperature of a whole module there, as kFirstHeat
constexpr double kSegmentHeat = 0.01;   // temperature, as a part of the time of the segment
constexpr int64_t kFirstPerTask = 5;    // evaluations per task in the first round of segments
constexpr int64_t kMaxOfRun = 300'000;  // evaluations of a run, unless the first has more
constexpr std::array<double, 2> kFirstPrices = {0.5, 1.0};  // by run, makespans per room
constexpr size_t kFreshInitial = 6;  // of the ranked ones; later all take turns
constexpr int kJobsOfOneModule = 4;  // independent runs if there is nothing to divide
constexpr double kNearRatio = 0.05;  // of a pair of memories half as promising as the best
constexpr int kJobsOfRound = 8;      // in a round at least
constexpr int kMaxJobs = 64;         // in a round
constexpr double kWithholdingHeat = 0.005;
constexpr double kWithholdingShare = 1.0;  // of what all other jobs of the round take
constexpr double kWithholdingDecay = 0.5;  // of that share by each that gains nothing
constexpr int64_t kWithholdingGrowth = 4;  // the same is tried again for so many times as long
constexpr int kWithholdingAttempts = 8;    // to find what was not

double FirstHeat(int num_tasks) { return num_tasks <= kFewTasks ? kFirstHeatOfFew : kFirstHeat; }
double LaterHeat(int num_tasks) { return num_tasks <= kFewTasks ? kLaterHeatOfFew : kLaterHeat; }

}  // namespace

JobPlanner::JobPlanner(const model::Problem& problem, const decompose::Modules& modules,
                       const Patterns& patterns, const Selector& selector, uint64_t seed)
    : problem_(problem),
      modules_(modules),
      patterns_(patterns),
      selector_(selector),
      seed_(seed),
      random_(seed),
      spent_(modules.classes.size() * static_cast<size_t>(problem.num_memories) *
                 static_cast<size_t>(problem.num_memories),
             0),
      withholding_share_(kWithholdingShare),
      num_modules_(modules.classes.size(), 0) {
  for (int module_class : modules.module_class) ++num_modules_[module_class];
}

JobPlanner::Between JobPlanner::BetweenOf(size_t cell) const {
  const auto memories = static_cast<size_t>(problem_.num_memories);
  return {static_cast<int>(cell / memories / memories),
          static_cast<int>(cell / memories % memories), static_cast<int>(cell % memories)};
}

int64_t JobPlanner::LeastLength(int module_class) const {
  return kMinBase + kMinPerTask * modules_.classes[module_class].num_tasks;
}

/*!
 * \brief Evaluations of the next job of a class and pair: as many as it had so far, so that many
 * small modules all get their turn before any of them is searched at length.
 */
int64_t JobPlanner::PairLength(size_t cell, size_t pairs, int round) const {
  const int module_class = static_cast<int>(cell / pairs);
  const int64_t tasks = std::max<int64_t>(1, modules_.classes[module_class].num_tasks);
  const int64_t growth = std::min<int64_t>(1 + round / 2, kMaxGrowth);
  const int64_t most = std::max<int64_t>(kMinBase, kStepsOfJob / tasks) * growth;
  return std::min(most, std::max(LeastLength(module_class), spent_[cell]));
}

Job JobPlanner::MakeJob(int module_class, const Layout& start, int64_t length, int round,
                        int index) const {
  Job job;
  job.module_class = module_class;
  job.start = start;
  job.options.max_evaluations = length;
  // In turn: to leave a valley, to look around in it, to go down in it.
  const int tasks = modules_.classes[module_class].num_tasks;
  job.options.first_heat = round < 2 || round % 4 == 3 ? FirstHeat(tasks)
                           : round % 2 == 0            ? LaterHeat(tasks)
                                                       : kLastHeat;
  job.options.seed =
      Random(seed_ * 0x10001U + static_cast<uint64_t>(round) * 4096U + static_cast<uint64_t>(index))
          .Next();
  job.goal.price.assign(static_cast<size_t>(problem_.num_memories), 0.0);
  job.goal.exit_ns.assign(problem_.num_devices, 0.0);
  job.goal.limit_bytes = modules_.room_bytes;
  return job;
}

std::vector<Job> JobPlanner::OneModuleJobs(const std::vector<InitialSolution>& initial,
                                           int best_pattern, int round) {
  const Pattern& best = patterns_.of(0)[best_pattern];
  const int tasks = modules_.classes[0].num_tasks;
  if (tasks > kFewTasks) return SegmentJobs(best, round);
  std::vector<Job> jobs;
  const int64_t length = LeastLength(0) << std::min(round / 2, kMaxDoublings);
  for (int index = 0; index < kJobsOfOneModule; ++index) {
    // The first only goes down from the best plan; the others take turns with the initial solutions
    // at first.
    const size_t turn =
        static_cast<size_t>(round * (kJobsOfOneModule - 1) + std::max(0, index - 1));
    const bool is_fresh = index > 0 && (turn < std::min(initial.size(), kFreshInitial) ||
                                        index == kJobsOfOneModule - 1);
    if (is_fresh) {
      const InitialSolution& start = initial[turn % initial.size()];
      jobs.push_back(MakeJob(0, {start.device, start.order}, length, round, index));
      jobs.back().options.first_heat = FirstHeat(tasks);
    } else {
      jobs.push_back(MakeJob(0, best.layout, length, round, index));
      jobs.back().options.first_heat = index == 0 ? kLastHeat : LaterHeat(tasks);
    }
  }
  return jobs;
}

/*!
 * \brief Whether a memory is almost full, so that what tasks take of it counts more than where
 * their neighbours are: segments see too little of that, and it takes heat to exchange much.
 */
bool JobPlanner::IsScarce(const Pattern& best) const {
  for (size_t memory = 0; memory < modules_.room_bytes.size(); ++memory) {
    const auto room = static_cast<double>(modules_.room_bytes[memory]);
    if (static_cast<double>(best.used[memory]) > kScarceFill * room) return true;
  }
  return false;
}

/*!
 * \brief Independent runs over a large module, segment by segment; where memory is scarce by turns
 * as a whole too.
 */
std::vector<Job> JobPlanner::SegmentJobs(const Pattern& best, int round) const {
  const int tasks = modules_.classes[0].num_tasks;
  const int64_t per_task =
      std::min(kFirstPerTask << std::min(round, 30), std::max(kFirstPerTask, kMaxOfRun / tasks));
  const size_t turn = static_cast<size_t>(round) % kSegments.size();
  const bool is_of_all = turn + 1 == kSegments.size() && tasks <= kMaxOfScarce && IsScarce(best);
  std::vector<Job> jobs;
  for (int run = 0; run < static_cast<int>(kFirstPrices.size()); ++run) {
    Job job = MakeJob(0, best.layout, per_task * tasks, round, run);
    job.options.first_heat = is_of_all ? kScarceHeat : kSegmentHeat;
    job.options.segment = is_of_all ? tasks : kSegments[turn];
    job.options.price = segment_price_;
    for (int64_t room : modules_.room_bytes) {
      job.options.target_bytes.push_back(static_cast<int64_t>(kFill * static_cast<double>(room)));
      if (round > 0) continue;
      job.options.price.push_back(kFirstPrices[run] * static_cast<double>(best.time_ns[0]) /
                                  static_cast<double>(std::max<int64_t>(1, room)));
    }
    jobs.push_back(std::move(job));
  }
  return jobs;
}

std::vector<Job> JobPlanner::PatternJobs(std::span<const double> price, int round) {
  const std::vector<double> slack = selector_.Slack(price);
  const size_t pairs = static_cast<size_t>(problem_.num_memories * problem_.num_memories);
  std::vector<std::pair<double, size_t>> useful;  // (what it may gain, class and pair)
  for (size_t cell = 0; cell < slack.size(); ++cell) {
    const auto [module_class, entry, exit] = BetweenOf(cell);
    if (slack[cell] >= Patterns::kNoCost || IsEnumerated(modules_.classes[module_class])) continue;
    const int known = selector_.Best(module_class, entry, exit, price);
    if (known < 0) continue;
    const double cost = patterns_.Cost(patterns_.of(module_class)[known], entry, price);
    const double nearness = kNearRatio / (kNearRatio + slack[cell] / std::max(1.0, cost));
    const double tasks = modules_.classes[module_class].num_tasks;
    useful.emplace_back(num_modules_[module_class] * cost * nearness * nearness * tasks, cell);
  }
  // A round is at most as long as all before it: new patterns soon change what is promising.
  const int64_t growth = std::min<int64_t>(1 + round / 2, kMaxGrowth);
  const int64_t end = steps_ + std::min(kJobsOfRound * kStepsOfJob * growth, steps_);
  std::vector<Job> jobs;
  while (!useful.empty() && static_cast<int>(jobs.size()) < kMaxJobs) {
    if (static_cast<int>(jobs.size()) >= kJobsOfRound && steps_ >= end) break;
    const auto best =
        std::ranges::max_element(useful, [this, pairs, round](const auto& left, const auto& right) {
          return left.first / Spent(left.second, pairs, round) <
                 right.first / Spent(right.second, pairs, round);
        });
    AddPairJob(jobs, best->second, price, round);
  }
  AddWithholdingJob(jobs, useful, price, round);
  return jobs;
}

/*! \brief Evaluations that a class and pair had so far; never 0. */
double JobPlanner::Spent(size_t cell, size_t pairs, int round) const {
  return static_cast<double>(spent_[cell] + PairLength(cell, pairs, round));
}

void JobPlanner::AddPairJob(std::vector<Job>& jobs, size_t cell, std::span<const double> price,
                            int round) {
  const size_t pairs = static_cast<size_t>(problem_.num_memories * problem_.num_memories);
  const auto [module_class, entry, exit] = BetweenOf(cell);
  const int best = selector_.Best(module_class, entry, exit, price);
  const auto& all = patterns_.of(module_class);
  int start = best;
  if (round % 3 == 1) {  // For variety from another one with the same ends.
    for (int attempt = 0; attempt < 4 && start == best; ++attempt) {
      const int other = random_.Below(static_cast<int>(all.size()));
      if (all[other].exit_memory == exit && all[other].time_ns[entry] != list::kNever)
        start = other;
    }
  }
  const int64_t length = PairLength(cell, pairs, round);
  spent_[cell] += length;
  steps_ += length * modules_.classes[module_class].num_tasks;
  jobs.push_back(PairJob({module_class, entry, exit}, all[start].layout, price, length, round,
                         static_cast<int>(jobs.size())));
}

Job JobPlanner::PairJob(const Between& between, const Layout& start, std::span<const double> price,
                        int64_t length, int round, int index) const {
  Job job = MakeJob(between.module_class, start, length, round, index);
  job.goal.entry = between.entry;
  job.goal.price.assign(price.begin(), price.end());
  for (int device = 0; device < problem_.num_devices; ++device) {
    if (problem_.device_memory[device] != between.exit) {
      job.goal.exit_ns[device] = Patterns::kNoCost;
    }
  }
  return job;
}

/*!
 * \brief Adds a job that does without some long copies of a best pattern, if it has any.
 *
 * It may take as long as all that the pair had so far, as it must find a new balance. The pair is
 * drawn by what it may gain. Random numbers are the job's own: where none is added all is as it
 * was.
 */
void JobPlanner::AddWithholdingJob(std::vector<Job>& jobs,
                                   std::span<const std::pair<double, size_t>> useful,
                                   std::span<const double> price, int round) {
  double steps = 0, gains = 0;
  for (const Job& job : jobs) {
    const int tasks = modules_.classes[job.module_class].num_tasks;
    steps += static_cast<double>(job.options.max_evaluations) * tasks;
  }
  for (const auto& [gain, cell] : useful) gains += gain;
  Random random(~(seed_ * 0x10001U + static_cast<uint64_t>(round)));
  for (int attempt = 0; attempt < kWithholdingAttempts && !jobs.empty(); ++attempt) {
    double drawn = random.Unit() * gains;
    size_t which = 0;
    while (which + 1 < useful.size() && drawn > useful[which].first) drawn -= useful[which++].first;
    const size_t cell = useful[which].second;
    const Between between = BetweenOf(cell);
    const decompose::Module& module = modules_.classes[between.module_class];
    const int known = selector_.Best(between.module_class, between.entry, between.exit, price);
    const Pattern& best = patterns_.of(between.module_class)[known];
    Withheld withheld = ChooseWithheld(problem_, module, best.layout, between.entry,
                                       best.time_ns[between.entry], random);
    if (withheld.tensor < 0) continue;
    const auto most = static_cast<int64_t>(withholding_share_ * steps / module.num_tasks);
    const int64_t length =
        std::min(most, std::max(LeastLength(between.module_class), spent_[cell]));
    int64_t& longest = withheld_[{cell, withheld}];
    const int64_t least = std::max(LeastLength(between.module_class), kWithholdingGrowth * longest);
    if (length < least) continue;
    longest = length;
    steps_ += length * module.num_tasks;
    Job job = PairJob(between, best.layout, price, length, round, static_cast<int>(jobs.size()));
    job.options.first_heat = kWithholdingHeat;
    MoveToAllowed(WithoutReaders(problem_, module, withheld), random, job.start);
    job.withheld = std::move(withheld);
    job.known_cost = patterns_.Cost(best, between.entry, price);
    // The longest one first, beside which the others then run.
    jobs.insert(jobs.begin(), std::move(job));
    return;
  }
}

void JobPlanner::UseOutcomes(const std::vector<Job>& jobs) {
  for (const Job& job : jobs) {
    if (job.withheld.tensor < 0) continue;
    const bool has_gained = job.outcome.value.cost < job.known_cost;
    withholding_share_ = has_gained ? kWithholdingShare : kWithholdingDecay * withholding_share_;
  }
  if (jobs.empty() || jobs.front().options.segment == 0) return;
  const auto best = std::ranges::min_element(jobs, [](const Job& left, const Job& right) {
    return left.outcome.value < right.outcome.value;
  });
  segment_price_ = best->outcome.price;
}

void ShareEvaluations(int64_t left, std::vector<Job>& jobs) {
  int64_t requested = 0;
  for (const Job& job : jobs) requested += job.options.max_evaluations;
  const double part = std::min(1.0, static_cast<double>(left) / static_cast<double>(requested));
  int64_t given = 0;
  requested = 0;
  for (Job& job : jobs) {
    requested += job.options.max_evaluations;
    const auto until = static_cast<int64_t>(std::llround(part * static_cast<double>(requested)));
    job.options.max_evaluations = until - given;
    given = until;
  }
}

}  // namespace heteroplace::search
