#include "simulate/step_check.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "support/error.h"

namespace heteroplace::simulate {

namespace {

bool IsId(int id, int count) { return id >= 0 && id < count; }

bool AreIds(std::span<const int> ids, int count) {
  return std::ranges::all_of(ids, [&](int id) { return IsId(id, count); });
}

/*! \brief Whether a list is pairs of something and a memory that exist. */
bool ArePlaces(std::span<const int> pairs, int count, int num_memories) {
  bool exists = pairs.size() % 2 == 0;
  for (size_t at = 0; exists && at < pairs.size(); at += 2) {
    exists = IsId(pairs[at], count) && IsId(pairs[at + 1], num_memories);
  }
  return exists;
}

bool IsExplicitKnown(const model::Problem& problem, const model::ExplicitSteps& all, int position) {
  const int memories = problem.num_memories;
  return AreIds(all.devices[position], problem.num_devices) &&
         AreIds(all.resources[position], NumResources(problem, all)) &&
         all.duration_ns[position] >= 0 &&
         ArePlaces(all.reads[position], problem.num_tensors, memories) &&
         ArePlaces(all.makes[position], problem.num_tensors, memories) &&
         (all.loads.num_rows() == 0 || ArePlaces(all.loads[position], problem.num_tasks, memories));
}

[[noreturn]] void Fail(int index, const std::string& what) {
  throw Error(ErrorKind::kPlan,
              "step " + std::to_string(index) + " " + what + "; check_plan lists all faults");
}

}  // namespace

int NumResources(const model::Problem& problem, const model::ExplicitSteps& steps) {
  return problem.num_resources + static_cast<int>(steps.resources.values.size());
}

void CheckLists(const model::Problem& problem, const model::Steps& steps) {
  const model::ExplicitSteps& all = steps.explicit_steps;
  for (const model::Csr* lists : {&all.reads, &all.makes, &all.devices, &all.resources}) {
    if (lists->num_rows() != all.size()) {
      throw Error(ErrorKind::kPlan, "the lists of the explicit steps have sizes that disagree");
    }
  }
  if ((all.loads.num_rows() != 0 && all.loads.num_rows() != all.size()) ||
      !ArePlaces(all.kept, problem.num_tasks, problem.num_memories)) {
    throw Error(ErrorKind::kPlan, "the lists of the loads have sizes that disagree");
  }
  if (steps.links.offsets.size() != steps.list.size() + 1 ||
      (steps.items.num_rows() != 0 && steps.items.offsets.size() != steps.list.size() + 1) ||
      steps.num_items < 1) {
    throw Error(ErrorKind::kPlan, "the lists of a plan have sizes that disagree");
  }
}

void CheckStep(const model::Problem& problem, const model::Steps& steps, int index) {
  const model::Step& step = steps.list[index];
  const bool is_copy = step.kind == model::StepKind::kCopy;
  const bool has_task = step.kind != model::StepKind::kGuarded || step.id != -1;
  bool exists = !has_task || IsId(step.id, is_copy ? problem.num_tensors : problem.num_tasks);
  bool is_known = true;
  if (step.kind == model::StepKind::kRun) {
    exists = exists && IsId(step.dst, problem.num_devices);
  } else if (is_copy) {
    exists = exists && IsId(step.dst, problem.num_memories) && IsId(step.src, problem.num_memories);
  } else {
    const model::ExplicitSteps& all = steps.explicit_steps;
    exists = exists && IsId(step.dst, all.size());
    is_known = !exists || (IsExplicitKnown(problem, all, step.dst) &&
                           (has_task || all.devices[step.dst].empty()));
  }
  exists = exists && AreIds(steps.links[index], problem.link_resources.num_rows());
  const std::span<const int> items = steps.ItemsOf(index);
  if (!exists || items.empty() || !AreIds(items, steps.num_items)) {
    Fail(index, "has an id that does not exist, or no item");
  }
  if (!is_known) Fail(index, "names an id that does not exist, or a time below 0");
}

}  // namespace heteroplace::simulate
