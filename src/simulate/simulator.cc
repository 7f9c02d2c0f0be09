#include "simulate/simulator.h"

#include <algorithm>
#include <string>

#include "model/memory_use.h"
#include "model/tensor_places.h"
#include "simulate/live_memory.h"
#include "support/error.h"

namespace heteroplace::simulate {

namespace {

constexpr int64_t kAbsent = -1;
constexpr int kNobody = -1;

/*! \brief One item of a tensor in one memory. */
struct Presence {
  int64_t arrival_ns = kAbsent;
  int64_t end_ns = 0;   // when all steps that bring or read it are done
  int maker = kNobody;  // the step that brings it; kNobody: there from the beginning
  int last = kNobody;   // the last step that brings or reads it
};

class Simulator {
 public:
  Simulator(const model::Problem& problem, const model::Steps& steps)
      : problem_(problem),
        steps_(steps),
        use_(problem, steps.num_items),
        live_(problem, steps.num_items, steps.list.size()),
        free_ns_(problem.num_resources, 0),
        row_(problem.num_tensors),
        has_weights_(
            static_cast<size_t>(problem.num_tasks) * static_cast<size_t>(problem.num_devices), 0) {
    for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
      if (problem.producer[tensor] >= 0) continue;
      for (int memory = 0; memory < problem.num_memories; ++memory) {
        if (problem.host >= 0 && memory != problem.host) continue;
        for (int item = 0; item < steps.num_items; ++item)
          There(tensor, memory, item).arrival_ns = 0;
      }
    }
  }

  Times Replay() {
    Times times;
    const int count = static_cast<int>(steps_.list.size());
    times.start_ns.reserve(steps_.list.size());
    times.finish_ns.reserve(steps_.list.size());
    for (index_ = 0; index_ < count; ++index_) {
      const model::Step& step = steps_.list[index_];
      Check(step);
      const auto [start, finish] = step.kind == model::StepKind::kRun ? DoRun(step) : DoCopy(step);
      times.start_ns.push_back(start);
      times.finish_ns.push_back(finish);
      times.makespan_ns = std::max(times.makespan_ns, finish);
    }
    for (const auto& place : row_.places()) {
      for (int item = 0; item < steps_.num_items; ++item) Close(place.tensor, place.memory, item);
    }
    live_.FindPeaks(times);
    times.used_bytes = use_.used();
    return times;
  }

 private:
  std::pair<int64_t, int64_t> DoRun(const model::Step& step) {
    const int task = step.id;
    const int memory = problem_.device_memory[step.dst];
    const std::span<const int> items = steps_.ItemsOf(index_);
    const int num_items = static_cast<int>(items.size());
    const int64_t run = problem_.BatchRun(task, step.dst, num_items);
    if (run == model::kImpossible) {
      Fail("runs task " + std::to_string(task) +
           (num_items == 1 ? "" : " for a batch of " + std::to_string(num_items)) + " on device " +
           std::to_string(step.dst) + ", which cannot run it");
    }
    int64_t start = 0;
    for (int unit : problem_.device_units[step.dst]) start = std::max(start, free_ns_[unit]);
    for (int tensor : problem_.task_reads[task]) {
      for (int item : items) start = std::max(start, Arrival(tensor, memory, item));
    }
    const int64_t finish = start + run;
    for (int unit : problem_.device_units[step.dst]) free_ns_[unit] = finish;
    for (int tensor : problem_.task_reads[task]) Read(tensor, memory, items, finish);
    for (int tensor : problem_.task_makes[task]) Bring(tensor, memory, items, finish);
    uint8_t& has_weights =
        has_weights_[static_cast<size_t>(task) * static_cast<size_t>(problem_.num_devices) +
                     static_cast<size_t>(step.dst)];
    use_.AddBatch(task, step.dst, num_items, has_weights != 0);
    live_.AddBatch(task, step.dst, num_items, has_weights != 0);
    has_weights = 1;
    return {start, finish};
  }

  std::pair<int64_t, int64_t> DoCopy(const model::Step& step) {
    const std::span<const int> links = steps_.links[index_];
    const std::span<const int> items = steps_.ItemsOf(index_);
    int64_t start = 0;
    for (int item : items) start = std::max(start, Arrival(step.id, step.src, item));
    for (int link : links) {
      for (int resource : problem_.link_resources[link]) {
        start = std::max(start, free_ns_[resource]);
      }
    }
    const int64_t bytes = problem_.tensor_bytes[step.id] * static_cast<int64_t>(items.size());
    const int64_t finish = start + problem_.TransferNs(links, bytes);
    for (int link : links) {
      for (int resource : problem_.link_resources[link]) free_ns_[resource] = finish;
    }
    Read(step.id, step.src, items, finish);
    Bring(step.id, step.dst, items, finish);
    use_.AddCopy(step.id, step.dst, static_cast<int>(items.size()));
    return {start, finish};
  }

  void Bring(int tensor, int memory, std::span<const int> items, int64_t finish) {
    for (int item : items) {
      Presence& presence = There(tensor, memory, item);
      // A plan that brings it twice is faulty, and is charged twice.
      if (presence.arrival_ns != kAbsent) Close(tensor, memory, item);
      presence = {finish, finish, index_, index_};
    }
  }

  void Read(int tensor, int memory, std::span<const int> items, int64_t finish) {
    for (int item : items) {
      Presence& presence = There(tensor, memory, item);
      presence.end_ns = std::max(presence.end_ns, finish);
      presence.last = index_;
    }
  }

  /*! \brief Hands the time that an item of a tensor was in a memory to the live memory. */
  void Close(int tensor, int memory, int item) {
    const Presence& presence = There(tensor, memory, item);
    if (presence.maker == kNobody) return;
    if (live_.IsKept(tensor, memory, steps_.list[presence.maker].kind)) {
      live_.AddKept(tensor, memory, presence.maker);
    } else {
      live_.AddTensor(tensor, memory, presence.maker, presence.last, presence.end_ns);
    }
  }

  /*! \brief The place of an item of a tensor in a memory; a row of items is made when needed. */
  Presence& There(int tensor, int memory, int item) {
    const auto num_items = static_cast<size_t>(steps_.num_items);
    int row = row_.Find(tensor, memory);
    if (row == model::TensorPlaces::kNone) {
      row = static_cast<int>(row_.places().size());
      row_.Add(tensor, memory, row);
      presences_.resize(presences_.size() + num_items);
    }
    return presences_[static_cast<size_t>(row) * num_items + static_cast<size_t>(item)];
  }

  int64_t Arrival(int tensor, int memory, int item) {
    const int64_t time = There(tensor, memory, item).arrival_ns;
    if (time == kAbsent) {
      Fail("reads tensor " + std::to_string(tensor) + " in memory " + std::to_string(memory) +
           (steps_.num_items == 1 ? "" : " for item " + std::to_string(item)) +
           ", where no earlier step put it");
    }
    return time;
  }

  void Check(const model::Step& step) const {
    const bool is_run = step.kind == model::StepKind::kRun;
    const auto is_id = [](int id, int count) { return id >= 0 && id < count; };
    bool exists = is_id(step.id, is_run ? problem_.num_tasks : problem_.num_tensors) &&
                  is_id(step.dst, is_run ? problem_.num_devices : problem_.num_memories) &&
                  (is_run || is_id(step.src, problem_.num_memories));
    for (int link : steps_.links[index_]) {
      exists = exists && is_id(link, problem_.link_resources.num_rows());
    }
    const std::span<const int> items = steps_.ItemsOf(index_);
    for (int item : items) exists = exists && is_id(item, steps_.num_items);
    if (!exists || items.empty()) Fail("has an id that does not exist, or no item");
  }

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorKind::kPlan,
                "step " + std::to_string(index_) + " " + what + "; check_plan lists all faults");
  }

  const model::Problem& problem_;
  const model::Steps& steps_;
  model::MemoryUse use_;
  LiveMemory live_;
  std::vector<int64_t> free_ns_;      // [num_resources]
  model::TensorPlaces row_;           // of presences_
  std::vector<Presence> presences_;   // rows of num_items
  std::vector<uint8_t> has_weights_;  // [num_tasks][num_devices]
  int index_ = 0;                     // of the current step
};

}  // namespace

Times Simulate(const model::Problem& problem, const model::Steps& steps) {
  if (steps.links.offsets.size() != steps.list.size() + 1 ||
      (steps.items.num_rows() != 0 && steps.items.offsets.size() != steps.list.size() + 1) ||
      steps.num_items < 1) {
    throw Error(ErrorKind::kPlan, "the lists of a plan have sizes that disagree");
  }
  return Simulator(problem, steps).Replay();
}

int64_t LiveOverflow(const model::Problem& problem, const model::NativePlan& plan) {
  const Times times = Simulate(problem, model::ToSteps(problem, plan));
  int64_t total = 0;
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    total += std::max<int64_t>(0, times.peak_bytes[memory] - problem.memory_bytes[memory]);
  }
  return total;
}

}  // namespace heteroplace::simulate
