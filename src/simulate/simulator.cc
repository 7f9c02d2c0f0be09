#include "simulate/simulator.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "model/memory_use.h"
#include "model/tensor_places.h"
#include "simulate/live_memory.h"
#include "simulate/loaded_weights.h"
#include "simulate/step_check.h"
#include "support/error.h"

namespace heteroplace::simulate {

namespace {

constexpr int64_t kAbsent = -1;
constexpr int kNobody = -1;
constexpr int kFirst[] = {0};  // the one item of a shared tensor

/*! \brief One item of a tensor, or a routed buffer, in one memory. */
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
        weights_(problem, steps.explicit_steps),
        free_ns_(NumResources(problem, steps.explicit_steps), 0),
        row_(problem.num_tensors),
        has_weights_(
            static_cast<size_t>(problem.num_tasks) * static_cast<size_t>(problem.num_devices), 0) {
    std::vector<int> all(static_cast<size_t>(steps.num_items));
    std::iota(all.begin(), all.end(), 0);
    for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
      if (problem.producer[tensor] >= 0 || problem.values.IsState(tensor)) continue;
      for (int memory = 0; memory < problem.num_memories; ++memory) {
        if (problem.host >= 0 && memory != problem.host) continue;
        for (int item : ItemsOf(tensor, all)) There(tensor, memory, item).arrival_ns = 0;
      }
    }
    weights_.Hold(use_, live_);
  }

  Times Replay() {
    Times times;
    const int count = static_cast<int>(steps_.list.size());
    const bool has_state = !problem_.values.state_of.empty();
    if (has_state) {
      for (index_ = 0; index_ < count; ++index_) CheckStep(problem_, steps_, index_);
      PlaceState();
    }
    times.start_ns.reserve(steps_.list.size());
    times.finish_ns.reserve(steps_.list.size());
    for (index_ = 0; index_ < count; ++index_) {
      const model::Step& step = steps_.list[index_];
      if (!has_state) CheckStep(problem_, steps_, index_);
      const auto [start, finish] = step.kind == model::StepKind::kRun    ? DoRun(step)
                                   : step.kind == model::StepKind::kCopy ? DoCopy(step)
                                                                         : DoExplicit(step);
      times.start_ns.push_back(start);
      times.finish_ns.push_back(finish);
      times.makespan_ns = std::max(times.makespan_ns, finish);
    }
    for (const auto& place : row_.places()) {
      const int num_items = problem_.values.IsShared(place.tensor) ? 1 : steps_.num_items;
      for (int item = 0; item < num_items; ++item) Close(place.tensor, place.memory, item);
    }
    for (const auto& [place, there] : buffers_) {
      live_.AddBytes(problem_.values.buffer_bytes[place.first], place.second, there.maker,
                     there.last, there.end_ns);
    }
    weights_.Close(live_);
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
    const int size = problem_.BatchSize(task, num_items);
    const int64_t run = problem_.BatchRun(task, step.dst, size);
    if (run == model::kImpossible) {
      Fail("runs task " + std::to_string(task) +
           (size == 1 ? "" : " for a batch of " + std::to_string(size)) + " on device " +
           std::to_string(step.dst) + ", which cannot run it");
    }
    int64_t start = 0;
    for (int unit : problem_.device_units[step.dst]) start = std::max(start, free_ns_[unit]);
    for (int tensor : problem_.task_reads[task]) {
      start = std::max(start, Arrival(tensor, memory, items));
    }
    for (int tensor : problem_.task_makes[task]) {
      start = std::max(start, Replaced(task, tensor, memory));
    }
    start = std::max(start, weights_.ArrivalNs(task, memory, index_));
    const int64_t finish = start + run;
    for (int unit : problem_.device_units[step.dst]) free_ns_[unit] = finish;
    weights_.Read(task, memory, index_, finish);
    for (int tensor : problem_.task_reads[task]) Read(tensor, memory, items, finish);
    for (int tensor : problem_.task_makes[task]) Make(task, tensor, memory, items, finish);
    AddWork(task, step.dst, size);
    return {start, finish};
  }

  std::pair<int64_t, int64_t> DoExplicit(const model::Step& step) {
    const model::ExplicitSteps& all = steps_.explicit_steps;
    const std::span<const int> items = steps_.ItemsOf(index_);
    const std::span<const int> reads = all.reads[step.dst], makes = all.makes[step.dst];
    const std::span<const int> devices = all.devices[step.dst];
    int64_t start = 0;
    for (int resource : all.resources[step.dst]) start = std::max(start, free_ns_[resource]);
    for (size_t at = 0; at < reads.size(); at += 2) {
      start = std::max(start, Arrival(reads[at], reads[at + 1], items));
    }
    for (size_t at = 0; step.id >= 0 && at < makes.size(); at += 2) {
      start = std::max(start, Replaced(step.id, makes[at], makes[at + 1]));
    }
    for (int device : devices) {
      const int memory = problem_.device_memory[device];
      start = std::max(start, weights_.ArrivalNs(step.id, memory, index_));
    }
    const int64_t finish = start + all.duration_ns[step.dst];
    for (int resource : all.resources[step.dst]) free_ns_[resource] = finish;
    for (int device : devices) {
      weights_.Read(step.id, problem_.device_memory[device], index_, finish);
    }
    for (size_t at = 0; at < reads.size(); at += 2) Read(reads[at], reads[at + 1], items, finish);
    for (size_t at = 0; at < makes.size(); at += 2) {
      Make(step.id, makes[at], makes[at + 1], items, finish);
    }
    if (all.loads.num_rows() != 0) weights_.Bring(all.loads[step.dst], index_, finish, use_);
    const int size = step.id < 0 ? 1 : problem_.BatchSize(step.id, static_cast<int>(items.size()));
    for (int device : devices) AddWork(step.id, device, size);
    return {start, finish};
  }

  /*! \brief A step adds to what is there, or brings it in other cases than an earlier one. */
  void BringAgain(Presence& there, int64_t finish) const {
    there.arrival_ns = std::max(there.arrival_ns, finish);
    there.end_ns = std::max(there.end_ns, finish);
    there.last = index_;
  }

  std::pair<int64_t, int64_t> DoCopy(const model::Step& step) {
    const std::span<const int> links = steps_.links[index_];
    const std::span<const int> items = steps_.ItemsOf(index_);
    int64_t start = Arrival(step.id, step.src, items);
    for (int link : links) {
      for (int resource : problem_.link_resources[link]) {
        start = std::max(start, free_ns_[resource]);
      }
    }
    const auto count = static_cast<int64_t>(ItemsOf(step.id, items).size());
    const int64_t finish =
        start + problem_.TransferNs(links, problem_.tensor_bytes[step.id] * count);
    for (int link : links) {
      for (int resource : problem_.link_resources[link]) free_ns_[resource] = finish;
    }
    Read(step.id, step.src, items, finish);
    Bring(step.id, step.dst, items, finish);
    return {start, finish};
  }

  /*! \brief The items under which values of a tensor are told apart. */
  std::span<const int> ItemsOf(int tensor, std::span<const int> items) const {
    return problem_.values.IsShared(tensor) ? std::span<const int>(kFirst) : items;
  }

  /*! \brief Puts state where updates of it are made. */
  void PlaceState() {
    const auto place = [&](int tensor, int memory) {
      const int state = problem_.values.StateOf(tensor);
      if (state < 0 || There(state, memory, 0).arrival_ns != kAbsent) return;
      There(state, memory, 0).arrival_ns = 0;
      use_.AddHeld(memory, problem_.tensor_bytes[state]);
      live_.AddHeld(memory, problem_.tensor_bytes[state]);
    };
    for (const model::Step& step : steps_.list) {
      if (step.kind == model::StepKind::kRun) {
        const int memory = problem_.device_memory[step.dst];
        for (int tensor : problem_.task_makes[step.id]) place(tensor, memory);
      } else if (step.kind != model::StepKind::kCopy) {
        const std::span<const int> makes = steps_.explicit_steps.makes[step.dst];
        for (size_t at = 0; at < makes.size(); at += 2) place(makes[at], makes[at + 1]);
      }
    }
  }

  /*! \brief Charges weights and workspace of a run on a device, or on one of a collective. */
  void AddWork(int task, int device, int size) {
    uint8_t& has_weights =
        has_weights_[static_cast<size_t>(task) * static_cast<size_t>(problem_.num_devices) +
                     static_cast<size_t>(device)];
    const bool is_there = has_weights != 0 || weights_.Has(task, problem_.device_memory[device]);
    use_.AddWork(task, device, size, is_there);
    live_.AddBatch(task, device, size, is_there);
    if (has_weights == 0 && problem_.values.weights.num_rows() != 0) {
      const int memory = problem_.device_memory[device];
      for (int weight : problem_.values.weights[task]) {
        if (!has_named_.emplace(weight, memory).second) continue;
        use_.AddHeld(memory, problem_.values.weight_bytes[weight]);
        live_.AddHeld(memory, problem_.values.weight_bytes[weight]);
      }
    }
    has_weights = 1;
  }

  /*! \brief When what a task adds to or replaces in a memory may be written; 0: it makes it anew.
   */
  int64_t Replaced(int task, int tensor, int memory) {
    const model::SharedValues& values = problem_.values;
    const int state = values.StateOf(tensor);
    const int before = state >= 0 ? state : values.Adds(task, tensor) ? tensor : -1;
    return before < 0 ? 0 : There(before, memory, 0).end_ns;
  }

  /*! \brief Notes what a run or a collective makes. */
  void Make(int task, int tensor, int memory, std::span<const int> items, int64_t finish) {
    const int state = problem_.values.StateOf(tensor);
    if (state >= 0) There(state, memory, 0).arrival_ns = kAbsent;
    const bool is_guarded = steps_.list[index_].kind == model::StepKind::kGuarded;
    if (is_guarded || problem_.values.Adds(task, tensor)) {
      Presence& there = There(tensor, memory, 0);
      if (there.arrival_ns != kAbsent) {
        BringAgain(there, finish);
        return;
      }
    }
    Bring(tensor, memory, items, finish);
  }

  void Bring(int tensor, int memory, std::span<const int> items, int64_t finish) {
    const std::span<const int> own = ItemsOf(tensor, items);
    for (int item : own) {
      Presence& presence = There(tensor, memory, item);
      // Made anew, if it is shared; else the plan is faulty, and it is charged twice.
      if (presence.arrival_ns != kAbsent) Close(tensor, memory, item);
      presence = {finish, finish, index_, index_};
    }
    if (IsUpdate(tensor, index_)) return;
    const int buffer = problem_.values.BufferOf(tensor);
    if (buffer >= 0) {
      if (!buffers_.contains({buffer, memory})) {
        buffers_[{buffer, memory}] = {finish, finish, index_, index_};
        use_.AddHeld(memory, problem_.values.buffer_bytes[buffer]);
      }
      return;
    }
    const int64_t bytes = problem_.tensor_bytes[tensor] * static_cast<int64_t>(own.size());
    if (problem_.values.IsState(tensor)) {
      use_.AddHeld(memory, bytes);
    } else {
      use_.AddCopy(tensor, memory, static_cast<int>(own.size()));
    }
  }

  /*! \brief Whether a step brings a tensor from elsewhere. */
  bool IsCopy(int step) const {
    const model::StepKind kind = steps_.list[step].kind;
    return kind == model::StepKind::kCopy ||
           (kind == model::StepKind::kGuarded && steps_.list[step].id < 0);
  }

  /*! \brief Whether a step makes the tensor in the place of state. */
  bool IsUpdate(int tensor, int step) const {
    return problem_.values.StateOf(tensor) >= 0 && !IsCopy(step);
  }

  void Read(int tensor, int memory, std::span<const int> items, int64_t finish) {
    for (int item : ItemsOf(tensor, items)) {
      Presence& presence = There(tensor, memory, item);
      presence.end_ns = std::max(presence.end_ns, finish);
      presence.last = index_;
    }
  }

  /*! \brief Hands the time that an item of a tensor was in a memory to the live memory. */
  void Close(int tensor, int memory, int item) {
    const Presence& presence = There(tensor, memory, item);
    if (presence.maker == kNobody || IsUpdate(tensor, presence.maker)) return;
    const int buffer = problem_.values.BufferOf(tensor);
    if (buffer >= 0) {
      Presence& whole = buffers_[{buffer, memory}];
      whole.maker = std::min(whole.maker, presence.maker);
      whole.last = std::max(whole.last, presence.last);
      whole.end_ns = std::max(whole.end_ns, presence.end_ns);
    } else if (live_.IsKept(tensor, memory, IsCopy(presence.maker))) {
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

  /*! \brief When all of some items of a tensor are in a memory. */
  int64_t Arrival(int tensor, int memory, std::span<const int> items) {
    int64_t latest = 0;
    for (int item : ItemsOf(tensor, items)) {
      const int64_t time = There(tensor, memory, item).arrival_ns;
      if (time == kAbsent) {
        Fail("reads tensor " + std::to_string(tensor) + " in memory " + std::to_string(memory) +
             (steps_.num_items == 1 ? "" : " for item " + std::to_string(item)) +
             ", where no earlier step put it");
      }
      latest = std::max(latest, time);
    }
    return latest;
  }

  [[noreturn]] void Fail(const std::string& what) const {
    throw Error(ErrorKind::kPlan,
                "step " + std::to_string(index_) + " " + what + "; check_plan lists all faults");
  }

  const model::Problem& problem_;
  const model::Steps& steps_;
  model::MemoryUse use_;
  LiveMemory live_;
  LoadedWeights weights_;
  std::vector<int64_t> free_ns_;                     // [NumResources()]
  model::TensorPlaces row_;                          // of presences_
  std::vector<Presence> presences_;                  // rows of num_items
  std::vector<uint8_t> has_weights_;                 // [num_tasks][num_devices]
  std::set<std::pair<int, int>> has_named_;          // weights that tasks share, and memories
  std::map<std::pair<int, int>, Presence> buffers_;  // routed buffers by memory, brought so far
  int index_ = 0;                                    // of the current step
};

}  // namespace

Times Simulate(const model::Problem& problem, const model::Steps& steps) {
  CheckLists(problem, steps);
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
