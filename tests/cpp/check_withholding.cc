// Withholding: what is kept out of memories takes long to get there and can be done without, and
// annealing keeps to it.
#include <algorithm>
#include <atomic>
#include <cstdio>

#include "check.h"
#include "decompose/module.h"
#include "random_problem.h"
#include "search/branches.h"
#include "search/evaluate/module_evaluator.h"
#include "search/moves/arrangement.h"
#include "search/moves/module_annealing.h"
#include "search/moves/withholding.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

int64_t num_withheld = 0, num_several = 0;

/*! \brief A module of a random problem in a random layout, and what is withheld from it. */
struct Case {
  explicit Case(Random& random) : problem(MakeOne(random)), modules(decompose::Decompose(problem)) {
    const int index = LargestModule(modules);
    const InitialModule initial = RandomInitialModule(problem, modules, index, random);
    entry = initial.entry;
    layout = {initial.device, initial.order};
    search::Arrangement arrangement(problem, module());
    arrangement.Load(layout.device, layout.order, entry);
    search::ModuleEvaluator evaluator(problem, module(), arrangement);
    evaluator.Evaluate();
    time_ns = evaluator.makespan_ns();
    withheld = search::ChooseWithheld(problem, module(), layout, entry, time_ns, random);
    if (withheld.tensor < 0) return;
    ++num_withheld;
    if (withheld.memories.size() > 1) ++num_several;
  }

  static model::Problem MakeOne(Random& random) {
    Shape shape;
    shape.is_path = random.Below(2) == 0;
    shape.min_tasks = 10;
    shape.max_tasks = 40;
    shape.max_devices = 8;
    shape.max_memories = 6;
    shape.reach = 20;
    shape.has_groups = random.Below(3) == 0;
    shape.has_empty_tensors = false;
    shape.may_lack_routes = random.Below(4) == 0;
    return MakeProblem(shape, random);
  }

  const decompose::Module& module() const {
    return modules.classes[modules.module_class[LargestModule(modules)]];
  }
  int MemoryOf(const search::Layout& given, int task) const {
    return problem.device_memory[given.device[task]];
  }
  bool IsReader(int task) const {
    const auto readers = module().readers[withheld.tensor];
    return std::find(readers.begin(), readers.end(), task) != readers.end();
  }
  /*! \brief Whether nothing is read where it is withheld. */
  bool DoesWithout(const search::Layout& given) const {
    const auto readers = module().readers[withheld.tensor];
    return std::none_of(readers.begin(), readers.end(),
                        [&](int task) { return withheld.KeepsOutOf(MemoryOf(given, task)); });
  }

  model::Problem problem;
  decompose::Modules modules;
  int entry = 0;
  search::Layout layout;
  int64_t time_ns = 0;
  search::Withheld withheld;
};

/*! \brief Copies that take long, of a tensor that several read where it will not be any more. */
void LongCopiesForSeveralReaders(Random& random) {
  const Case given(random);
  if (given.withheld.tensor < 0) return;
  const decompose::Module& module = given.module();
  CHECK(std::is_sorted(given.withheld.memories.begin(), given.withheld.memories.end()));
  search::Arrangement arrangement(given.problem, module);
  arrangement.Load(given.layout.device, given.layout.order, given.entry);
  const int home = arrangement.Home(given.withheld.tensor);
  CHECK(home >= 0 && !given.withheld.KeepsOutOf(home));
  int most = 0;
  for (int memory : given.withheld.memories) {
    const int64_t transfer = module.Transfer(given.withheld.tensor, home, memory);
    CHECK(transfer != model::kImpossible && 20 * transfer > given.time_ns - 20);
    int readers = 0;
    for (int task : module.readers[given.withheld.tensor]) {
      CHECK(module.group[task] < 0);
      if (given.MemoryOf(given.layout, task) == memory) ++readers;
    }
    most = std::max(most, readers);
  }
  CHECK(most >= 2);
  size_t num_others = 0;
  for (int memory = 0; memory < given.problem.num_memories; ++memory) {
    const bool is_reached =
        module.Transfer(given.withheld.tensor, home, memory) != model::kImpossible;
    if (memory != home && is_reached) ++num_others;
  }
  CHECK(num_others == 1 || given.withheld.memories.size() < num_others);
}

/*! \brief Readers lose the devices of those memories, and nothing else changes. */
void OnlyReadersLoseDevices(Random& random) {
  const Case given(random);
  if (given.withheld.tensor < 0) return;
  const decompose::Module& module = given.module();
  const decompose::Module without = search::WithoutReaders(given.problem, module, given.withheld);
  for (int task = 0; task < module.num_tasks; ++task) {
    std::vector<int> expected;
    for (int device : module.allowed[task]) {
      const bool is_lost =
          given.IsReader(task) && given.withheld.KeepsOutOf(given.problem.device_memory[device]);
      CHECK_EQ(without.Run(task, device), is_lost ? model::kImpossible : module.Run(task, device));
      if (!is_lost) expected.push_back(device);
    }
    CHECK(!expected.empty());
    CHECK_EQ(std::vector<int>(without.allowed[task].begin(), without.allowed[task].end()),
             expected);
  }
  search::Layout moved = given.layout;
  search::MoveToAllowed(without, random, moved);
  CHECK(given.DoesWithout(moved));
  CHECK_EQ(moved.order, given.layout.order);
  for (int task = 0; task < module.num_tasks; ++task) {
    const bool must_move =
        given.IsReader(task) && given.withheld.KeepsOutOf(given.MemoryOf(given.layout, task));
    CHECK(module.Run(task, moved.device[task]) != model::kImpossible);
    if (!must_move) CHECK_EQ(moved.device[task], given.layout.device[task]);
  }
}

/*! \brief Annealing of what is left does without as well. */
void AnnealingDoesWithout(Random& random) {
  Case given(random);
  if (given.withheld.tensor < 0) return;
  const decompose::Module& module = given.module();
  const decompose::Module without = search::WithoutReaders(given.problem, module, given.withheld);
  search::MoveToAllowed(without, random, given.layout);
  search::ModuleGoal goal;
  goal.entry = given.entry;
  goal.price.assign(static_cast<size_t>(given.problem.num_memories), 0.0);
  goal.exit_ns.assign(static_cast<size_t>(given.problem.num_devices), 0.0);
  goal.limit_bytes = given.modules.room_bytes;
  search::AnnealOptions options;
  options.max_evaluations = 2000;
  options.seed = random.Next();
  const std::atomic<bool> stop{false};
  const search::AnnealOutcome found = search::Anneal(
      given.problem, without, search::FindBranches(module), given.layout, goal, options, stop);
  CHECK(given.DoesWithout(found.layout));
  for (int task = 0; task < module.num_tasks; ++task) {
    CHECK(module.Run(task, found.layout.device[task]) != model::kImpossible);
  }
}

}  // namespace

int main() {
  ForSeeds("long copies for several readers", 800, LongCopiesForSeveralReaders);
  ForSeeds("only readers lose devices", 800, OnlyReadersLoseDevices);
  ForSeeds("annealing does without", 240, AnnealingDoesWithout);
  std::printf("withheld %ld, from several memories %ld\n", long{num_withheld}, long{num_several});
  current_case = "all cases together";
  CHECK(num_withheld >= NumCases(280) && num_several >= NumCases(30));
  return 0;
}
