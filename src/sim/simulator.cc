#include "sim/simulator.h"

#include <algorithm>
#include <string>

#include "model/memory_use.h"
#include "support/error.h"

namespace heteroplace {

namespace {

constexpr int64_t kAbsent = -1;

class Simulator {
 public:
  explicit Simulator(const Problem& problem)
      : problem_(problem),
        use_(problem),
        free_ns_(problem.num_resources, 0),
        there_ns_(
            static_cast<size_t>(problem.num_tensors) * static_cast<size_t>(problem.num_memories),
            kAbsent) {
    for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
      if (problem.producer[tensor] >= 0) continue;
      for (int memory = 0; memory < problem.num_memories; ++memory) {
        if (problem.host < 0 || memory == problem.host) There(tensor, memory) = 0;
      }
    }
  }

  Times Replay(const Steps& steps) {
    Times times;
    const int count = static_cast<int>(steps.list.size());
    for (int index = 0; index < count; ++index) {
      const Step& step = steps.list[index];
      index_ = index;
      const auto [start, finish] =
          step.kind == StepKind::kRun ? DoRun(step) : DoCopy(step, steps.links[index]);
      times.start_ns.push_back(start);
      times.finish_ns.push_back(finish);
      times.makespan_ns = std::max(times.makespan_ns, finish);
    }
    times.used_bytes = use_.used();
    return times;
  }

 private:
  std::pair<int64_t, int64_t> DoRun(const Step& step) {
    const int memory = problem_.device_memory[step.place];
    const int64_t run = problem_.Run(step.subject, step.place);
    if (run == kImpossible) {
      throw Error(ErrorKind::kPlan, "step " + std::to_string(index_) + " runs task " +
                                        std::to_string(step.subject) + " on device " +
                                        std::to_string(step.place) +
                                        ", which cannot run it; check_plan lists all faults");
    }
    int64_t start = 0;
    for (int tensor : problem_.task_reads[step.subject]) {
      start = std::max(start, Arrival(tensor, memory));
    }
    for (int unit : problem_.device_units[step.place]) start = std::max(start, free_ns_[unit]);
    const int64_t finish = start + run;
    for (int unit : problem_.device_units[step.place]) free_ns_[unit] = finish;
    for (int tensor : problem_.task_makes[step.subject]) There(tensor, memory) = finish;
    use_.AddTask(step.subject, step.place);
    return {start, finish};
  }

  std::pair<int64_t, int64_t> DoCopy(const Step& step, std::span<const int> links) {
    int64_t start = Arrival(step.subject, step.src);
    for (int link : links) {
      for (int resource : problem_.link_resources[link]) {
        start = std::max(start, free_ns_[resource]);
      }
    }
    const int64_t finish = start + problem_.TransferNs(links, problem_.tensor_bytes[step.subject]);
    for (int link : links) {
      for (int resource : problem_.link_resources[link]) free_ns_[resource] = finish;
    }
    There(step.subject, step.place) = finish;
    use_.AddCopy(step.subject, step.place);
    return {start, finish};
  }

  int64_t& There(int tensor, int memory) {
    return there_ns_[static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
                     static_cast<size_t>(memory)];
  }

  int64_t Arrival(int tensor, int memory) {
    const int64_t time = There(tensor, memory);
    if (time == kAbsent) {
      throw Error(ErrorKind::kPlan, "step " + std::to_string(index_) + " reads tensor " +
                                        std::to_string(tensor) + " in memory " +
                                        std::to_string(memory) +
                                        ", where no earlier step put it; check_plan lists all "
                                        "faults");
    }
    return time;
  }

  const Problem& problem_;
  MemoryUse use_;
  std::vector<int64_t> free_ns_;   // [num_resources]
  std::vector<int64_t> there_ns_;  // [num_tensors][num_memories], kAbsent: not there
  int index_ = 0;                  // of the current step, for messages
};

}  // namespace

Times Simulate(const Problem& problem, const Steps& steps) {
  return Simulator(problem).Replay(steps);
}

}  // namespace heteroplace
