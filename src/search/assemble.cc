#include "search/assemble.h"

#include "search/evaluate/module_evaluator.h"
#include "search/moves/arrangement.h"

namespace heteroplace::search {

namespace {

/*! \brief Global ids of a module's tensors, numbered as Decompose does. */
std::vector<int> TensorsOf(const model::Problem& problem, const decompose::Modules& modules,
                           int index) {
  const decompose::Module& module = modules.classes[modules.module_class[index]];
  std::vector<int> tensors(module.num_tensors);
  for (int task = 0; task < module.num_tasks; ++task) {
    const int global = modules.first_task[index] + task;
    for (size_t read = 0; read < module.reads[task].size(); ++read) {
      tensors[module.reads[task][read]] = problem.task_reads[global][read];
    }
    for (size_t made = 0; made < module.makes[task].size(); ++made) {
      tensors[module.makes[task][made]] = problem.task_makes[global][made];
    }
  }
  return tensors;
}

/*! \brief Adds a module that is entered at `now`; returns its time. */
int64_t AppendModule(const model::Problem& problem, const decompose::Modules& modules, int index,
                     const Layout& layout, int entry, int64_t now, model::NativePlan& plan) {
  const int module_class = modules.module_class[index];
  const decompose::Module& module = modules.classes[module_class];
  Arrangement arrangement(problem, module);
  arrangement.Load(layout.device, layout.order, entry);
  ModuleEvaluator evaluator(problem, module, arrangement, false);
  const std::vector<model::ScheduledCopy> copies = evaluator.Copies();
  const int first = modules.first_task[index];
  for (int task = 0; task < module.num_tasks; ++task) {
    const int device = layout.device[task];
    plan.device[first + task] = device;
    plan.start_ns[first + task] = now + evaluator.finish_ns(task) - module.Run(task, device);
  }
  const std::vector<int> tensors = TensorsOf(problem, modules, index);
  for (const model::ScheduledCopy& copy : copies) {
    plan.copies.push_back(
        {tensors[copy.tensor], copy.src, copy.dst, now + copy.start_ns, now + copy.finish_ns});
  }
  return evaluator.makespan_ns();
}

}  // namespace

model::NativePlan AssemblePlan(const model::Problem& problem, const decompose::Modules& modules,
                               const Patterns& patterns, const Selection& selection) {
  model::NativePlan plan;
  plan.device.resize(problem.num_tasks);
  plan.start_ns.resize(problem.num_tasks);
  int entry = 0;
  int64_t now = 0;
  for (int index = 0; index < modules.num_modules(); ++index) {
    const Pattern& pattern = patterns.of(modules.module_class[index])[selection.choice[index]];
    now += AppendModule(problem, modules, index, pattern.layout, entry, now, plan);
    entry = pattern.exit_memory;
  }
  plan.makespan_ns = now;
  plan.violation = selection.violation;
  return plan;
}

}  // namespace heteroplace::search
