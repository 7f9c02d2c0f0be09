// ModuleEvaluator and Arrangement: what changes keep equals what is made anew.
#include <algorithm>
#include <set>
#include <tuple>

#include "check.h"
#include "decompose/module.h"
#include "random_problem.h"
#include "search/branches.h"
#include "search/evaluate/module_evaluator.h"
#include "search/moves/arrangement.h"
#include "search/moves/moves.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

/*! \brief How often a replay ended before the end of the order, and with changed times before. */
int64_t num_converged = 0, num_converged_with_changes = 0;
/*! \brief Tries that a limit cut short, and those that kept it. */
int64_t num_late = 0, num_in_time = 0;

/*! \brief Memory by the static rule and load, by looking at all tasks and tensors. */
void CheckSums(const model::Problem& problem, const decompose::Module& module,
               const search::Arrangement& arrangement) {
  std::vector<int64_t> used(module.num_memories, 0), load(problem.num_units, 0);
  std::vector<int64_t> workspace(module.num_devices, 0);
  std::set<std::pair<int, int>> places;  // (tensor, memory)
  for (int task = 0; task < module.num_tasks; ++task) {
    const int device = arrangement.device()[task];
    const int memory = problem.device_memory[device];
    used[memory] += module.weight_bytes[task];
    workspace[device] = std::max(workspace[device], module.workspace_bytes[task]);
    for (int unit : problem.device_units[device]) load[unit] += module.Run(task, device);
    for (int tensor : module.makes[task]) places.emplace(tensor, memory);
    for (int tensor : module.reads[task]) {
      const int source =
          module.source[tensor] == decompose::kEntry ? arrangement.entry() : module.source[tensor];
      // What no task of the module makes is charged elsewhere where it is.
      if (module.producer[tensor] < 0 && (source == decompose::kEverywhere || source == memory))
        continue;
      places.emplace(tensor, memory);
    }
  }
  for (const auto& [tensor, memory] : places) {
    if (memory == problem.host && module.is_free_at_host[tensor] != 0) continue;
    used[memory] += module.tensor_bytes[tensor];
  }
  for (int device = 0; device < problem.num_devices; ++device) {
    used[problem.device_memory[device]] += workspace[device];
  }
  CHECK_EQ(arrangement.used(), used);
  CHECK_EQ(arrangement.load_ns(), load);
}

void CheckOrder(const decompose::Module& module, const search::Arrangement& arrangement) {
  for (int task = 0; task < module.num_tasks; ++task) {
    CHECK_EQ(arrangement.order()[arrangement.position()[task]], task);
    for (int after : module.successors[task]) {
      CHECK(arrangement.position()[task] < arrangement.position()[after]);
    }
    for (int other :
         module.group[task] < 0 ? std::span<const int>() : module.group_tasks[module.group[task]]) {
      CHECK_EQ(arrangement.device()[task], arrangement.device()[other]);
    }
  }
}

/*! \brief The range of a task is as far as its neighbours in the graph allow. */
void CheckRange(const decompose::Module& module, const search::Arrangement& arrangement, int task) {
  const auto [low, high] = arrangement.Range(task);
  CHECK(low <= arrangement.position()[task] && arrangement.position()[task] <= high);
  const auto blocks = [&](int position, const model::Csr& neighbours) {
    const auto row = neighbours[task];
    return std::find(row.begin(), row.end(), arrangement.order()[position]) != row.end();
  };
  CHECK(low == 0 || blocks(low - 1, module.predecessors));
  CHECK(high == module.num_tasks - 1 || blocks(high + 1, module.successors));
}

/*! \brief Random single changes, as tests choose them: near in the order, to have small effects. */
void ChangeALittle(const decompose::Module& module, search::Arrangement& arrangement,
                   Random& random) {
  for (int changes = 1 + random.Below(2); changes > 0; --changes) {
    const int task = random.Below(module.num_tasks);
    if (random.Below(3) == 0) {
      const auto allowed = module.allowed[task];
      const int choice = random.Below(static_cast<int>(allowed.size()));
      arrangement.SetDevice(task, allowed[static_cast<size_t>(choice)]);
      continue;
    }
    const auto [low, high] = arrangement.Range(task);
    const int from = arrangement.position()[task];
    const int to = std::clamp(from + random.Below(9) - 4, low, high);
    if (to != from) arrangement.Rotate(from, to);
  }
}

auto CopyKey(const model::ScheduledCopy& copy) {
  return std::tuple(copy.tensor, copy.src, copy.dst, copy.start_ns, copy.finish_ns);
}

/*! \brief The kept result equals that of a new evaluator; returns the latter's makespan. */
void CheckKept(const model::Problem& problem, const decompose::Module& module,
               const search::Arrangement& arrangement, const search::ModuleEvaluator& evaluator) {
  search::Arrangement again(problem, module);
  again.Load(arrangement.device(), arrangement.order(), arrangement.entry());
  search::ModuleEvaluator fresh(problem, module, again);
  CHECK_EQ(fresh.Evaluate(), evaluator.makespan_ns());
  CHECK_EQ(fresh.num_unreachable(), evaluator.num_unreachable());
  for (int task = 0; task < module.num_tasks; ++task) {
    CHECK_EQ(evaluator.finish_ns(task), fresh.finish_ns(task));
  }
  CHECK_EQ(again.used(), arrangement.used());
  CHECK_EQ(again.load_ns(), arrangement.load_ns());
}

int64_t TrueMakespan(const model::Problem& problem, const decompose::Module& module,
                     const search::Arrangement& arrangement) {
  search::Arrangement again(problem, module);
  again.Load(arrangement.device(), arrangement.order(), arrangement.entry());
  return search::ModuleEvaluator(problem, module, again).Evaluate();
}

std::vector<int64_t> Finishes(const decompose::Module& module,
                              const search::ModuleEvaluator& evaluator) {
  std::vector<int64_t> finishes;
  for (int task = 0; task < module.num_tasks; ++task) finishes.push_back(evaluator.finish_ns(task));
  return finishes;
}

/*! \brief Tries one change under a limit around the truth, and keeps it or not. */
void TryOne(const model::Problem& problem, const decompose::Module& module,
            search::Arrangement& arrangement, search::ModuleEvaluator& evaluator, Random& random) {
  const search::Arrangement before = arrangement;
  const std::vector<int64_t> finishes = Finishes(module, evaluator);
  const int64_t truth = TrueMakespan(problem, module, arrangement);
  const int64_t limit = random.Below(2) == 0 ? list::kNever : truth + random.Below(7) - 3;
  const int64_t steps = evaluator.num_steps();
  const int64_t result = evaluator.Try(limit);
  CHECK_EQ(result, truth <= limit ? truth : list::kNever);
  if (limit != list::kNever) ++(result == list::kNever ? num_late : num_in_time);
  const int rest = module.num_tasks - arrangement.first_changed();
  // Fewer tasks were run than there are behind the change: it met the state that was kept.
  if (result != list::kNever && evaluator.num_steps() - steps < rest) {
    ++num_converged;
    if (Finishes(module, evaluator) != finishes) ++num_converged_with_changes;
  }
  if (result == list::kNever || random.Below(3) == 0) {
    evaluator.Reject();
    CHECK_EQ(Finishes(module, evaluator), finishes);
    return;
  }
  evaluator.Accept();
  CheckKept(problem, module, arrangement, evaluator);
  arrangement.Keep();
}

/*! \brief A walk over a module; every step is checked against a new evaluation. */
void Walk(const model::Problem& problem, const decompose::Modules& modules, int index, int steps,
          Random& random) {
  const decompose::Module& module = modules.classes[modules.module_class[index]];
  const search::Branches branches = search::FindBranches(module);
  const InitialModule start = RandomInitialModule(problem, modules, index, random);
  search::Arrangement arrangement(problem, module);
  arrangement.Load(start.device, start.order, start.entry);
  search::ModuleEvaluator evaluator(problem, module, arrangement);
  evaluator.Evaluate();
  search::Moves moves(problem, module, branches, arrangement, random);
  for (int step = 0; step < steps; ++step) {
    const std::vector<int> device = arrangement.device(), order = arrangement.order();
    if (random.Below(2) == 0) {
      moves.Propose();
    } else {
      ChangeALittle(module, arrangement, random);
    }
    CheckOrder(module, arrangement);
    CheckSums(problem, module, arrangement);
    CheckRange(module, arrangement, random.Below(module.num_tasks));
    TryOne(problem, module, arrangement, evaluator, random);
    if (!arrangement.is_changed()) continue;
    arrangement.Undo();
    CHECK(arrangement.device() == device && arrangement.order() == order);
    CheckOrder(module, arrangement);
    CheckSums(problem, module, arrangement);
  }
  CheckKept(problem, module, arrangement, evaluator);
  search::Arrangement again(problem, module);
  again.Load(arrangement.device(), arrangement.order(), arrangement.entry());
  search::ModuleEvaluator fresh(problem, module, again);
  const auto left = evaluator.Copies(), right = fresh.Copies();
  CHECK(std::equal(left.begin(), left.end(), right.begin(), right.end(),
                   [](const auto& a, const auto& b) { return CopyKey(a) == CopyKey(b); }));
}

void WalkOverSmallProblem(Random& random) {
  Shape shape;
  shape.is_path = random.Below(2) == 0;
  shape.max_tasks = 40;
  shape.may_lack_routes = random.Below(4) == 0;
  const model::Problem problem = MakeProblem(shape, random);
  const decompose::Modules modules = decompose::Decompose(problem);
  Walk(problem, modules, random.Below(modules.num_modules()), 20, random);
}

void WalkOverLargeModule(Random& random) {
  Shape shape;
  shape.min_tasks = 260;
  shape.max_tasks = 500;
  shape.reach = 4 + random.Below(30);
  shape.max_run_ns = random.Below(2) == 0 ? 2 : 9;
  shape.output_percent = random.Below(2) == 0 ? 1 : 50;
  const model::Problem problem = MakeProblem(shape, random);
  const decompose::Modules modules = decompose::Decompose(problem);
  Walk(problem, modules, LargestModule(modules), 40, random);
}

}  // namespace

int main() {
  ForSeeds("small modules", 1500, WalkOverSmallProblem);
  ForSeeds("large modules", 200, WalkOverLargeModule);
  std::printf("converged %ld, with changed times %ld; late %ld, in time %ld\n", long{num_converged},
              long{num_converged_with_changes}, long{num_late}, long{num_in_time});
  current_case = "all cases together";
  CHECK(num_converged > NumCases(200) && num_converged_with_changes > NumCases(50));
  CHECK(num_late > NumCases(1000) && num_in_time > NumCases(1000));
  return 0;
}
