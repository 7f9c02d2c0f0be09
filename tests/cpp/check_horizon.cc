// Horizons: what is tried before one, against new evaluations of the whole arrangement.
#include <algorithm>
#include <limits>
#include <set>
#include <tuple>

#include "check.h"
#include "decompose/module.h"
#include "random_problem.h"
#include "search/branches.h"
#include "search/evaluate/horizon.h"
#include "search/evaluate/module_evaluator.h"
#include "search/moves/arrangement.h"
#include "search/moves/moves.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

/*! \brief Makespans at a horizon, those that must be exact, and those that are. */
int64_t num_compared = 0, num_claimed = 0, num_equal = 0;
/*! \brief The same with nothing changed. */
int64_t num_unchanged = 0, num_without_gaps = 0, num_met = 0;
/*! \brief Makespans at a horizon behind which tensors lack routes. */
int64_t num_unreachable = 0;

/*! \brief A copy and the position of its first reader; num_tasks: it leaves at the end. */
struct PlacedCopy {
  model::ScheduledCopy copy;
  int position;
};

/*! \brief All of an arrangement, by an evaluator of its own. */
struct Truth {
  int64_t makespan_ns = 0;
  int64_t num_unreachable = 0;
  std::vector<int64_t> finish_ns;  // [num_tasks]
  std::vector<PlacedCopy> copies;  // in order of making
};

int FirstReader(const model::Problem& problem, const decompose::Module& module,
                const search::Arrangement& arrangement, int tensor, int memory) {
  int first = module.num_tasks;
  for (int reader : module.readers[tensor]) {
    if (problem.device_memory[arrangement.device()[reader]] != memory) continue;
    first = std::min(first, arrangement.position()[reader]);
  }
  return first;
}

/*! \brief The same arrangement, loaded at once; its sums must be the same. */
search::Arrangement LoadAgain(const model::Problem& problem, const decompose::Module& module,
                              const search::Arrangement& arrangement) {
  search::Arrangement again(problem, module);
  again.Load(arrangement.device(), arrangement.order(), arrangement.entry());
  CHECK_EQ(again.used(), arrangement.used());
  CHECK_EQ(again.load_ns(), arrangement.load_ns());
  CHECK_EQ(again.position(), arrangement.position());
  return again;
}

Truth FindTruth(const model::Problem& problem, const decompose::Module& module,
                const search::Arrangement& arrangement) {
  const search::Arrangement again = LoadAgain(problem, module, arrangement);
  search::ModuleEvaluator fresh(problem, module, again);
  Truth truth;
  for (const model::ScheduledCopy& copy : fresh.Copies()) {
    truth.copies.push_back(
        {copy, FirstReader(problem, module, arrangement, copy.tensor, copy.dst)});
  }
  truth.makespan_ns = fresh.makespan_ns();
  truth.num_unreachable = fresh.num_unreachable();
  for (int task = 0; task < module.num_tasks; ++task) {
    truth.finish_ns.push_back(fresh.finish_ns(task));
  }
  return truth;
}

/*! \brief Whether a copy behind a position starts before the end of one before it on a channel. */
bool HasGap(const model::Problem& problem, const Truth& truth, int position) {
  std::vector<int64_t> end(static_cast<size_t>(problem.num_resources), 0);
  for (const bool is_behind : {false, true}) {
    for (const auto& [copy, place] : truth.copies) {
      if ((place >= position) != is_behind) continue;
      for (int resource : problem.route_resources[problem.Pair(copy.src, copy.dst)]) {
        if (resource < problem.num_units) continue;
        if (is_behind && copy.start_ns < end[resource]) return true;
        if (!is_behind) end[resource] = std::max(end[resource], copy.finish_ns);
      }
    }
  }
  return false;
}

/*! \brief What copies behind a position do to others. */
struct Behind {
  std::set<std::tuple<int, int, int>> on_units;  // (tensor, src, dst) of those that occupy units
  bool is_ordered = true;  // the order of service of everything behind does not depend on times
};

Behind FindBehind(const model::Problem& problem, const decompose::Module& module,
                  const Truth& truth, int position) {
  Behind behind;
  for (const auto& [copy, place] : truth.copies) {
    const auto resources = problem.route_resources[problem.Pair(copy.src, copy.dst)];
    if (place < position || resources.empty()) continue;
    behind.on_units.emplace(copy.tensor, copy.src, copy.dst);
    const bool has_channel = std::any_of(resources.begin(), resources.end(), [&](int resource) {
      return resource >= problem.num_units;
    });
    // Copies in gaps of channels, and outputs at the end, in order of their making.
    if (has_channel || place == module.num_tasks) behind.is_ordered = false;
  }
  return behind;
}

/*! \brief What no plan with this beginning falls short of, by run times alone. */
int64_t LowerBound(const model::Problem& problem, const decompose::Module& module,
                   const search::Arrangement& arrangement, const Truth& truth, int position) {
  int64_t bound = 0;
  std::vector<int64_t> end_ns(static_cast<size_t>(problem.num_units), 0);
  for (int index = 0; index < module.num_tasks; ++index) {
    const int task = arrangement.order()[index], device = arrangement.device()[task];
    const int64_t finish = truth.finish_ns[task];
    if (index < position) bound = std::max(bound, finish + module.tail_ns[task]);
    for (int unit : problem.device_units[device]) {
      end_ns[unit] = index < position ? finish : end_ns[unit] + module.Run(task, device);
    }
  }
  for (int64_t end : end_ns) bound = std::max(bound, end);
  return bound;
}

/*! \brief An arrangement of the largest module of a problem, and what works on it. */
struct Bench {
  Bench(const model::Problem& problem_given, Random& random_given)
      : problem(problem_given),
        random(random_given),
        modules(decompose::Decompose(problem)),
        index(LargestModule(modules)),
        module(modules.classes[modules.module_class[index]]),
        branches(search::FindBranches(module)),
        arrangement(problem, module),
        evaluator(problem, module, arrangement),
        moves(problem, module, branches, arrangement, random),
        tails(problem, module, arrangement) {
    const InitialModule start = RandomInitialModule(problem, modules, index, random);
    arrangement.Load(start.device, start.order, start.entry);
  }

  /*! \brief A random position where checkpoints are, behind `first`; num_tasks: the end. */
  int PickHorizon(int first) {
    const int behind = (first / evaluator.spacing() + 1 + random.Below(3)) * evaluator.spacing();
    return std::min(behind, module.num_tasks);
  }

  const model::Problem& problem;
  Random& random;
  decompose::Modules modules;
  int index;
  const decompose::Module& module;
  search::Branches branches;
  search::Arrangement arrangement;
  search::ModuleEvaluator evaluator;
  search::Moves moves;
  search::Tails tails;
};

/*! \brief A problem of some hundred tasks; what takes long is running, copying, or both. */
model::Problem MakeLarge(Random& random) {
  Shape shape;
  shape.min_tasks = 200;
  shape.max_tasks = 400;
  shape.reach = random.Below(3) == 0 ? 400 : 4 + random.Below(30);
  shape.max_run_ns = random.Below(2) == 0 ? 2 : 9;
  shape.output_percent = random.Below(2) == 0 ? 1 : 30;
  shape.may_lack_routes = random.Below(4) > 0;
  model::Problem problem = MakeProblem(shape, random);
  const bool needs_copies = random.Below(8) > 0;
  while (needs_copies && problem.num_memories < 2) problem = MakeProblem(shape, random);
  const int64_t factor = random.Below(2) == 0 ? 1 : 2 + random.Below(20);
  const int64_t input_factor = random.Below(3) == 0 ? 200 : 1;
  const bool has_instant_copies = random.Below(3) == 0;
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    int64_t& bytes = problem.tensor_bytes[tensor];
    bytes *= has_instant_copies && random.Below(2) == 0 ? 0 : factor;
    if (problem.producer[tensor] < 0) bytes *= input_factor;
  }
  for (int64_t& latency : problem.link_latency_ns) latency *= has_instant_copies ? 0 : factor;
  problem.Finish();
  return problem;
}

/*! \brief What the evaluator keeps is all of the truth. */
void CheckKept(const Bench& bench, const Truth& truth) {
  CHECK_EQ(bench.evaluator.makespan_ns(), truth.makespan_ns);
  CHECK_EQ(bench.evaluator.num_unreachable(), truth.num_unreachable);
  for (int task = 0; task < bench.module.num_tasks; ++task) {
    CHECK_EQ(bench.evaluator.finish_ns(task), truth.finish_ns[task]);
  }
}

/*! \brief Of an arrangement as it was, a horizon tells the makespan, but for copies in gaps. */
void TellsTheMakespan(Random& random) {
  const model::Problem problem = MakeLarge(random);
  Bench bench(problem, random);
  const Truth truth = FindTruth(problem, bench.module, bench.arrangement);
  for (int position = bench.PickHorizon(0); position < bench.module.num_tasks;
       position = bench.PickHorizon(position + 20)) {
    bench.evaluator.FindTails(bench.tails);
    const search::Horizon horizon = bench.tails.At(position);
    bench.evaluator.Look(random.Below(position), &horizon);
    // Away and back again: it must be replayed.
    const int task = bench.arrangement.order()[random.Below(position)];
    const int device = bench.arrangement.device()[task];
    bench.arrangement.SetDevice(task, bench.module.allowed[task].back());
    bench.arrangement.SetDevice(task, bench.module.allowed[task].front());
    bench.arrangement.SetDevice(task, device);
    const int64_t makespan = bench.evaluator.Try(list::kNever);
    CHECK(makespan <= truth.makespan_ns);
    CHECK_EQ(bench.evaluator.trial_unreachable(), truth.num_unreachable);
    bench.evaluator.Reject();
    bench.arrangement.Undo();
    const bool has_gap = HasGap(problem, truth, position);
    if (!has_gap) CHECK_EQ(makespan, truth.makespan_ns);
    ++num_unchanged;
    if (!has_gap) ++num_without_gaps;
    if (makespan == truth.makespan_ns) ++num_met;
  }
}

/*! \brief A makespan at a horizon against the truth: where both must be equal, and from below. */
void CompareAt(const Bench& bench, const Behind& planned, int position, int64_t makespan,
               const Truth& truth) {
  CHECK(makespan >= LowerBound(bench.problem, bench.module, bench.arrangement, truth, position));
  const Behind behind = FindBehind(bench.problem, bench.module, truth, position);
  const bool is_claimed =
      planned.is_ordered && behind.is_ordered && planned.on_units == behind.on_units;
  if (is_claimed) CHECK_EQ(makespan, truth.makespan_ns);
  ++num_compared;
  if (is_claimed) ++num_claimed;
  if (makespan == truth.makespan_ns) ++num_equal;
  if (truth.num_unreachable > 0) ++num_unreachable;
}

/*! \brief Tries a random move, with and without a limit, and keeps it or not. */
void TryOne(Bench& bench, const Behind& planned, int position) {
  if (!bench.moves.Propose()) return;
  const Truth truth = FindTruth(bench.problem, bench.module, bench.arrangement);
  const int64_t makespan = bench.evaluator.Try(list::kNever);
  CHECK_EQ(bench.evaluator.trial_unreachable(), truth.num_unreachable);
  CompareAt(bench, planned, position, makespan, truth);
  if (bench.random.Below(2) == 0) {
    bench.evaluator.Reject();
    const int64_t limit = makespan + bench.random.Below(5) - 2;
    CHECK_EQ(bench.evaluator.Try(limit), makespan <= limit ? makespan : list::kNever);
    if (makespan > limit || bench.random.Below(2) == 0) {
      bench.evaluator.Reject();
      bench.arrangement.Undo();
      return;
    }
  }
  bench.evaluator.Accept();
  bench.arrangement.Keep();
  CHECK_EQ(bench.evaluator.makespan_ns(), makespan);
  for (int index = 0; index < position; ++index) {
    const int task = bench.arrangement.order()[index];
    CHECK_EQ(bench.evaluator.finish_ns(task), truth.finish_ns[task]);
  }
}

/*! \brief Moves within a segment; what it is in the end may be what it was on the way. */
void WalkWithin(Bench& bench, const Behind& planned, int first, int last, int position) {
  const std::vector<int> device = bench.arrangement.device(), order = bench.arrangement.order();
  bench.moves.StayWithin(first, last);
  std::vector<int> tasks, devices;
  const int chosen = bench.random.Below(8);
  for (int step = 0; step < 8; ++step) {
    if (step == chosen) {
      const auto& now = bench.arrangement.order();
      tasks.assign(now.begin() + first, now.begin() + last);
      for (int task : tasks) devices.push_back(bench.arrangement.device()[task]);
    }
    TryOne(bench, planned, position);
  }
  if (bench.random.Below(3) > 0) bench.arrangement.Replace(first, tasks, devices);
  CHECK(!bench.arrangement.is_changed());
  LoadAgain(bench.problem, bench.module, bench.arrangement);
  const bool is_whole = first == 0 && last == bench.module.num_tasks;
  for (int index = 0; index < bench.module.num_tasks; ++index) {
    const int task = bench.arrangement.order()[index];
    const bool is_within = index >= first && index < last;
    if (!is_within) CHECK_EQ(task, order[index]);
    // Part of a group may be outside.
    const bool may_move = is_whole || (is_within && bench.module.group[task] < 0);
    if (!may_move) CHECK_EQ(bench.arrangement.device()[task], device[task]);
  }
}

/*! \brief Segment by segment over a module, twice; at the end all is as if made anew. */
void WalkOverSegments(Random& random) {
  const model::Problem problem = MakeLarge(random);
  Bench bench(problem, random);
  const int count = bench.module.num_tasks;
  for (int round = 0; round < 2; ++round) {
    bench.evaluator.FindTails(bench.tails);
    const Truth plan = FindTruth(problem, bench.module, bench.arrangement);
    search::Horizon horizon;
    int changed = 0, first = 0;
    while (first < count) {
      const int last =
          std::min(first + 1 + random.Below(random.Below(20) == 0 ? 2 * count : 90), count);
      const int position = bench.PickHorizon(last);
      if (position < count) horizon = bench.tails.At(position);
      bench.evaluator.Look(changed, position < count ? &horizon : nullptr);
      const Truth truth = FindTruth(problem, bench.module, bench.arrangement);
      const Behind planned = FindBehind(problem, bench.module, plan, position);
      CompareAt(bench, planned, position, bench.evaluator.makespan_ns(), truth);
      if (position == count) CheckKept(bench, truth);
      WalkWithin(bench, planned, first, last, position);
      changed = first;
      first = last;
    }
    bench.evaluator.Look(changed, nullptr);
    CheckKept(bench, FindTruth(problem, bench.module, bench.arrangement));
  }
  // The copies that are kept are those that are there: changes everywhere have their true effect.
  bench.moves.StayWithin(0, count);
  for (int step = 0; step < 10; ++step) {
    if (!bench.moves.Propose()) continue;
    const Truth truth = FindTruth(problem, bench.module, bench.arrangement);
    CHECK_EQ(bench.evaluator.Try(list::kNever), truth.makespan_ns);
    bench.evaluator.Accept();
    bench.arrangement.Keep();
    CheckKept(bench, truth);
  }
}

}  // namespace

int main() {
  ForSeeds("tells the makespan", 150, TellsTheMakespan);
  ForSeeds("segments", 80, WalkOverSegments);
  std::printf("unchanged %ld, without gaps %ld, met %ld\n", long{num_unchanged},
              long{num_without_gaps}, long{num_met});
  std::printf("compared %ld, must be equal %ld, are equal %ld; unreachable %ld\n",
              long{num_compared}, long{num_claimed}, long{num_equal}, long{num_unreachable});
  current_case = "all cases together";
  CHECK(num_without_gaps > NumCases(300) && num_met > num_unchanged * 9 / 10);
  CHECK(num_claimed > NumCases(500) && num_equal > num_compared / 3);
  CHECK(Stride() > 1 || num_unreachable > 80);  // few cases lack many routes
  return 0;
}
