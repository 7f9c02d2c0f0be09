// Search: never worse than its initial solutions, sound schedules, the same for any number of
// threads.
#include <algorithm>

#include "bounds/lagrangian.h"
#include "check.h"
#include "list/evaluate.h"
#include "model/native_plan.h"
#include "random_problem.h"
#include "search/search.h"
#include "search/turn_clock.h"
#include "simulate/simulator.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

model::Problem MakeTight(Random& random) {
  Shape shape;
  shape.is_path = random.Below(2) == 0;
  shape.max_tasks = shape.is_path ? 30 : 16;
  // A copy that takes no time passes through a channel that is taken; simulated, it waits.
  shape.has_empty_tensors = false;
  model::Problem problem = MakeProblem(shape, random);
  Tighten(problem, RandomDevices(problem, random), 30, random);
  return problem;
}

std::vector<search::InitialSolution> MakeInitial(const model::Problem& problem, Random& random) {
  std::vector<search::InitialSolution> initial;
  for (int count = 1 + random.Below(3); count > 0; --count) {
    initial.push_back({RandomDevices(problem, random), {}});
    if (random.Below(4) != 0) initial.back().order = RandomOrder(problem, random);
  }
  return initial;
}

search::SearchOptions MakeOptions(uint64_t seed, int64_t evaluations) {
  search::SearchOptions options;
  options.max_evaluations = evaluations;
  options.seed = seed;
  return options;
}

/*! \brief A search in one turn without a limit of time. */
search::SearchOutcome Search(const model::Problem& problem,
                             const std::vector<search::InitialSolution>& initial,
                             const search::SearchOptions& options, const search::SearchHook& hook) {
  search::SearchTurn turn;
  turn.time_limit_s = 1e6;
  return search::PlanSearch(problem, initial, options).Run(turn, {}, hook);
}

/*! \brief The best value of the initial solutions that have an order. */
list::Value BestOf(const model::Problem& problem,
                   const std::vector<search::InitialSolution>& initial) {
  list::Value best{list::kNever, std::numeric_limits<int64_t>::max()};
  list::Evaluator evaluate(problem);
  for (const search::InitialSolution& start : initial) {
    if (start.order.empty()) continue;
    best = std::min(best, evaluate(start.device, start.order, list::kNever));
  }
  return best;
}

/*! \brief A plan runs as it says: allowed, groups whole, in time, within the memories. */
void CheckPlan(const model::Problem& problem, const model::NativePlan& plan) {
  for (int task = 0; task < problem.num_tasks; ++task) {
    CHECK(problem.Run(task, plan.device[task]) != model::kImpossible);
    const int group = problem.task_group[task];
    if (group < 0) continue;
    CHECK_EQ(plan.device[task], plan.device[problem.group_tasks[group][0]]);
  }
  const simulate::Times times = simulate::Simulate(problem, model::ToSteps(problem, plan));
  CHECK(times.makespan_ns <= plan.makespan_ns);
  int64_t violation = 0;
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    violation += std::max<int64_t>(0, times.peak_bytes[memory] - problem.memory_bytes[memory]);
  }
  // Of what cannot reach its readers the bytes are told by the static rule.
  CHECK(violation <= plan.violation);
}

void NeverWorseThanItsStarts(Random& random) {
  const model::Problem problem = MakeTight(random);
  const std::vector<search::InitialSolution> initial = MakeInitial(problem, random);
  const int64_t evaluations = random.Below(3) == 0 ? random.Below(50) : 800;
  const search::SearchOutcome outcome =
      Search(problem, initial, MakeOptions(random.Next(), evaluations), nullptr);
  CheckPlan(problem, outcome.plan);
  const list::Value found{outcome.plan.makespan_ns, outcome.plan.violation};
  CHECK(!(BestOf(problem, initial) < found));
  CHECK(outcome.evaluations <= evaluations);
  CHECK(!outcome.was_stopped);
}

void CheckSame(const search::SearchOutcome& left, const search::SearchOutcome& right) {
  CHECK_EQ(left.plan.device, right.plan.device);
  CHECK_EQ(left.plan.start_ns, right.plan.start_ns);
  CHECK_EQ(left.plan.makespan_ns, right.plan.makespan_ns);
  CHECK_EQ(left.evaluations, right.evaluations);
  CHECK_EQ(left.price, right.price);
}

void SameForAnyThreads(Random& random) {
  const model::Problem problem = MakeTight(random);
  const std::vector<search::InitialSolution> initial = MakeInitial(problem, random);
  search::SearchOptions options = MakeOptions(random.Next(), 8000);
  const search::SearchOutcome one = Search(problem, initial, options, nullptr);
  for (options.threads = 2; options.threads <= 3; ++options.threads) {
    CheckSame(one, Search(problem, initial, options, nullptr));
  }
}

/*!
 * \brief Modules that are searched segment by segment: sound, never worse than the initial
 * solutions, the same for any number of threads; also where nothing can fit and prices of many
 * bytes only rise.
 */
void LargeModules(Random& random) {
  Shape shape;
  shape.min_tasks = 260;
  shape.max_tasks = 320;
  shape.reach = 300;
  shape.has_empty_tensors = false;
  model::Problem problem = MakeProblem(shape, random);
  const bool can_fit = random.Below(3) > 0;
  if (can_fit) {
    Tighten(problem, RandomDevices(problem, random), 30, random);
  } else {
    std::fill(problem.memory_bytes.begin(), problem.memory_bytes.end(), 0);
    for (int64_t& bytes : problem.weight_bytes) bytes *= 10'000'000;
    for (int64_t& time : problem.run_ns) time *= time == model::kImpossible ? 1 : 1'000'000;
    problem.Finish();
  }
  const std::vector<search::InitialSolution> initial = MakeInitial(problem, random);
  search::SearchOptions options = MakeOptions(random.Next(), 4000);
  options.threads = 3;
  options.finds_bound = false;
  const search::SearchOutcome found = Search(problem, initial, options, nullptr);
  CheckPlan(problem, found.plan);
  const list::Value value{found.plan.makespan_ns, found.plan.violation};
  CHECK(!(BestOf(problem, initial) < value));
  CHECK(can_fit || value.violation > 0);
  options.threads = 1;
  CheckSame(found, Search(problem, initial, options, nullptr));
}

/*! \brief A search without other limits ends when its hook says so, with a sound plan. */
void StoppedByItsHook(Random& random) {
  Shape shape;
  shape.min_tasks = 30;
  shape.max_tasks = 60;
  shape.is_path = random.Below(2) == 0;
  shape.has_empty_tensors = false;
  const model::Problem problem = MakeProblem(shape, random);
  const std::vector<search::InitialSolution> initial = MakeInitial(problem, random);
  search::SearchOptions options = MakeOptions(random.Next(), -1);
  options.threads = 1 + random.Below(3);
  int num_calls = 0;
  const search::SearchOutcome outcome =
      Search(problem, initial, options, [&](int64_t, int64_t, int64_t) {
        ++num_calls;
        return true;
      });
  // A modules of enumerated modules may be through before the hook is first asked.
  CHECK_EQ(num_calls, outcome.was_stopped ? 1 : 0);
  CheckPlan(problem, outcome.plan);
  const list::Value found{outcome.plan.makespan_ns, outcome.plan.violation};
  CHECK(!(BestOf(problem, initial) < found));
}

/*! \brief Nothing that the search finds is below the bound, whatever prices both begin with. */
void NotBelowTheBound(Random& random) {
  const model::Problem problem = MakeTight(random);
  const search::SearchOutcome found =
      Search(problem, MakeInitial(problem, random), MakeOptions(random.Next(), 800), nullptr);
  if (found.plan.violation != 0) return;
  std::vector<double> price = found.price;
  if (random.Below(2) == 0) {
    for (double& one : price) one = random.Unit();
  }
  bounds::BoundOptions options;
  options.rounds = 4;
  options.iterations = 40;
  options.threads = 1 + random.Below(2);
  options.target_ns = found.plan.makespan_ns;
  options.time_limit_s = 1e6;
  const bounds::BoundOutcome bound = bounds::LagrangianBound(problem, price, options, nullptr);
  CHECK(bound.bound_ns <= found.plan.makespan_ns);
}

void TimeOfBoundsIsNoStall() {
  search::SearchTurn turn;
  turn.stall_share = 1e-9;
  search::TurnClock clock;
  clock.Begin(turn);
  while (!clock.IsStalled()) continue;
  clock.TellBounding(1000.0);
  CHECK(!clock.IsStalled());
}

}  // namespace

int main(int count, char** arguments) {
  // Under the slower thread sanitizer, "threads": only what has threads.
  const bool is_threads_only = count > 1 && std::string(arguments[1]) == "threads";
  if (!is_threads_only) {
    TimeOfBoundsIsNoStall();
    ForSeeds("never worse", 150, NeverWorseThanItsStarts);
  }
  ForSeeds("same for any threads", 24, SameForAnyThreads);
  ForSeeds("large modules", 10, LargeModules);
  ForSeeds("stopped", 12, StoppedByItsHook);
  ForSeeds("not below the bound", 150, NotBelowTheBound);
  return 0;
}
