// Decompose: cuts as they are defined, and plans whose modules add up.
#include <algorithm>
#include <numeric>

#include "check.h"
#include "decompose/module.h"
#include "list/evaluate.h"
#include "random_problem.h"
#include "search/evaluate/module_evaluator.h"
#include "search/moves/arrangement.h"

using namespace heteroplace;
using namespace heteroplace::test;

namespace {

int64_t num_modules = 0, num_shared = 0;

model::Problem MakeAny(Random& random) {
  Shape shape;
  shape.is_path = random.Below(4) != 0;
  shape.max_tasks = shape.is_path ? 60 : 12;
  shape.reach = 1 + random.Below(4);
  shape.has_groups = random.Below(3) == 0;
  // Where a copy that takes no time fits depends on what ended just before it.
  shape.has_empty_tensors = false;
  return MakeProblem(shape, random);
}

/*! \brief Whether each task comes before or after the given one, by reachability. */
bool IsBetweenAll(const model::Problem& problem, int cut) {
  std::vector<bool> is_related(static_cast<size_t>(problem.num_tasks), false);
  const auto mark = [&](const model::Csr& neighbours) {
    std::vector<int> stack{cut};
    while (!stack.empty()) {
      const int task = stack.back();
      stack.pop_back();
      is_related[task] = true;
      for (int next : neighbours[task]) {
        if (!is_related[next]) stack.push_back(next);
      }
    }
  };
  mark(problem.predecessors);
  mark(problem.successors);
  return std::find(is_related.begin(), is_related.end(), false) == is_related.end();
}

/*! \brief Whether a copy or a group may pass the end of a task. */
bool IsPassed(const model::Problem& problem, int cut) {
  std::vector<int> low(static_cast<size_t>(problem.num_groups), problem.num_tasks);
  std::vector<int> high(static_cast<size_t>(problem.num_groups), -1);
  for (int task = 0; task < problem.num_tasks; ++task) {
    const int group = problem.task_group[task];
    if (group >= 0) {
      low[group] = std::min(low[group], task);
      high[group] = std::max(high[group], task);
    }
    if (task <= cut) continue;
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer < 0 ? problem.host >= 0 : producer < cut) return true;
    }
  }
  for (int group = 0; group < problem.num_groups; ++group) {
    if (low[group] <= cut && high[group] > cut) return true;
  }
  return std::any_of(problem.outputs.begin(), problem.outputs.end(), [&](int tensor) {
    return problem.host >= 0 && problem.producer[tensor] >= 0 && problem.producer[tensor] <= cut;
  });
}

/*! \brief Modules begin exactly behind the tasks that are cuts, unless one has almost all. */
void CutsAsDefined(Random& random) {
  const model::Problem problem = MakeAny(random);
  std::vector<int> modules{0}, bound_modules{0};
  for (int task = 0; task + 1 < problem.num_tasks; ++task) {
    if (!IsBetweenAll(problem, task)) continue;
    bound_modules.push_back(task + 1);
    if (!IsPassed(problem, task)) modules.push_back(task + 1);
  }
  modules.push_back(problem.num_tasks);
  bound_modules.push_back(problem.num_tasks);
  int longest = 0;
  for (size_t index = 0; index + 1 < modules.size(); ++index) {
    longest = std::max(longest, modules[index + 1] - modules[index]);
  }
  // One that has more than three quarters of the tasks is taken for all of them.
  if (4 * longest > 3 * problem.num_tasks) modules = {0, problem.num_tasks};
  CHECK_EQ(decompose::Decompose(problem).first_task, modules);
  CHECK_EQ(decompose::DecomposeForBounds(problem).first_task, bound_modules);
}

/*! \brief A module has the costs of its tasks, and no group is torn. */
void CheckModules(const model::Problem& problem, const decompose::Modules& modules) {
  for (int index = 0; index < modules.num_modules(); ++index) {
    const decompose::Module& module = modules.classes[modules.module_class[index]];
    const int first = modules.first_task[index];
    CHECK_EQ(module.num_tasks, modules.first_task[index + 1] - first);
    CHECK_EQ(module.has_exit, index + 1 < modules.num_modules());
    for (int task = 0; task < module.num_tasks; ++task) {
      for (int device = 0; device < problem.num_devices; ++device) {
        CHECK_EQ(module.Run(task, device), problem.Run(first + task, device));
      }
      CHECK_EQ(module.weight_bytes[task], problem.weight_bytes[first + task]);
      CHECK_EQ(module.reads[task].size(), problem.task_reads[first + task].size());
      const int group = problem.task_group[first + task];
      CHECK_EQ(module.group[task] >= 0, group >= 0);
      if (group < 0) continue;
      std::vector<int> members;
      for (int member : module.group_tasks[module.group[task]]) members.push_back(first + member);
      const auto whole = problem.group_tasks[group];
      CHECK_EQ(members, std::vector<int>(whole.begin(), whole.end()));
    }
  }
}

/*! \brief What one module of a plan takes, entered from a memory. */
struct Part {
  int64_t time_ns;
  std::vector<int64_t> used;
  int exit_memory;
};

Part EvaluatePart(const model::Problem& problem, const decompose::Modules& modules, int index,
                  const std::vector<int>& device, const std::vector<int>& order, int entry) {
  const decompose::Module& module = modules.classes[modules.module_class[index]];
  const int begin = modules.first_task[index], end = modules.first_task[index + 1];
  std::vector<int> part_order;
  for (int task : order) {
    if (task >= begin && task < end) part_order.push_back(task - begin);
  }
  search::Arrangement arrangement(problem, module);
  arrangement.Load({device.begin() + begin, device.begin() + end}, part_order, entry);
  search::ModuleEvaluator evaluator(problem, module, arrangement);
  const int64_t time = evaluator.Evaluate();
  CHECK_EQ(evaluator.num_unreachable(), int64_t{0});
  return {time, arrangement.used(), problem.device_memory[device[static_cast<size_t>(end) - 1]]};
}

/*! \brief Time and memory of a plan are the sums over its modules; modules follow each other. */
void PlansAddUp(Random& random) {
  model::Problem problem = MakeAny(random);
  const std::vector<int> device = RandomDevices(problem, random);
  const std::vector<int> order = RandomOrder(problem, random);
  list::Evaluator evaluate(problem);
  const list::Value value = evaluate(device, order, list::kNever);
  const model::NativePlan plan = evaluate.LatestPlan(device);
  const decompose::Modules modules = decompose::Decompose(problem);
  CheckModules(problem, modules);
  num_modules += modules.num_modules();
  num_shared += modules.num_modules() - static_cast<int64_t>(modules.classes.size());
  int64_t time = 0;
  std::vector<int64_t> used(problem.base_bytes);
  int entry = 0;
  for (int index = 0; index < modules.num_modules(); ++index) {
    const Part part = EvaluatePart(problem, modules, index, device, order, entry);
    time += part.time_ns;
    for (size_t memory = 0; memory < used.size(); ++memory) used[memory] += part.used[memory];
    entry = part.exit_memory;
  }
  CHECK_EQ(time, value.makespan_ns);
  model::MemoryUse use(problem);
  for (int task = 0; task < problem.num_tasks; ++task) use.AddTask(task, device[task]);
  for (const model::ScheduledCopy& copy : plan.copies) use.AddCopy(copy.tensor, copy.dst);
  if (modules.num_modules() == 1) CHECK_EQ(used, use.used());
  // Of several modules room for the largest workspace is set aside instead.
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    const int64_t room = modules.room_bytes[memory] + problem.base_bytes[memory];
    CHECK(used[memory] + problem.memory_bytes[memory] - room >= use.used()[memory]);
  }
  const decompose::Modules bound_modules = decompose::DecomposeForBounds(problem);
  for (int index = 1; index < bound_modules.num_modules(); ++index) {
    const int cut = bound_modules.first_task[index] - 1;
    for (int task = 0; task < problem.num_tasks; ++task) {
      if (task > cut) CHECK(plan.start_ns[task] >= evaluate.finish_ns(cut));
      if (task < cut) CHECK(evaluate.finish_ns(task) <= plan.start_ns[cut]);
    }
  }
}

/*! \brief Modules with equal tasks, tensors and costs are one object. */
void EqualModulesShare(Random& random) {
  Shape shape;
  shape.is_path = true;
  shape.has_groups = false;
  shape.min_tasks = shape.max_tasks = 3 + random.Below(40);
  model::Problem problem = MakeProblem(shape, random);
  // One cost for everything: modules differ in their shape only, of which there are two.
  std::fill(problem.run_ns.begin(), problem.run_ns.end(), 3);
  std::fill(problem.weight_bytes.begin(), problem.weight_bytes.end(), 5);
  std::fill(problem.tensor_bytes.begin(), problem.tensor_bytes.end(), 7);
  problem.batch_run_ns.clear();
  problem.Finish();
  const decompose::Modules modules = decompose::Decompose(problem);
  // The first and the last modules also differ in where they begin and end; a task alone, with its
  // cut, is a module, so that a block falls into modules of at most 4 shapes.
  CHECK(modules.classes.size() <= 2 + 2 * 4);
  const int last = static_cast<int>(modules.classes.size()) - 1;
  CHECK_EQ(*std::max_element(modules.module_class.begin(), modules.module_class.end()), last);
}

}  // namespace

int main() {
  ForSeeds("cuts", 4000, CutsAsDefined);
  ForSeeds("sums", 4000, PlansAddUp);
  ForSeeds("classes", 1000, EqualModulesShare);
  std::printf("modules %ld, shared %ld\n", long{num_modules}, long{num_shared});
  current_case = "all cases together";
  CHECK(num_modules > NumCases(20000) && num_shared > NumCases(2000));
  return 0;
}
