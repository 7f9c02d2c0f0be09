#include "list/fastest_mapping.h"

#include <algorithm>
#include <utility>

#include "model/memory_use.h"
#include "model/native_plan.h"

namespace heteroplace::list {

namespace {

/*! \brief Fills the devices task by task and keeps account of the room. */
class FastestFiller {
 public:
  explicit FastestFiller(const model::Problem& problem)
      : problem_(problem),
        use_(problem),
        is_there_(static_cast<size_t>(problem.num_tensors) *
                  static_cast<size_t>(problem.num_memories)),
        device_(problem.num_tasks, -1) {}

  void Place(int task) {
    if (device_[task] < 0) {
      const int chosen = Choose(task);
      for (int member : problem_.Colocated(task)) {
        device_[member] = chosen;
        use_.AddTask(member, chosen);
      }
    }
    const int memory = problem_.device_memory[device_[task]];
    for (int tensor : problem_.task_reads[task]) {
      if (!NeedsCopy(tensor, memory)) continue;
      use_.AddCopy(tensor, memory);
      is_there_[Slot(tensor, memory)] = 1;
    }
  }

  std::vector<int> Take() { return std::move(device_); }

 private:
  size_t Slot(int tensor, int memory) const {
    return static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
           static_cast<size_t>(memory);
  }

  /*! \brief Whether a task in the memory makes a copy; a producer not placed yet is a neighbour. */
  bool NeedsCopy(int tensor, int memory) const {
    const int producer = problem_.producer[tensor];
    if (producer >= 0 && device_[producer] < 0) return false;
    const int home = producer < 0 ? problem_.host : problem_.device_memory[device_[producer]];
    return home >= 0 && home != memory && is_there_[Slot(tensor, memory)] == 0;
  }

  int Choose(int task) const {
    const std::span<const int> tasks = problem_.Colocated(task);
    std::vector<int> reads;  // each once, whatever reads it
    for (int member : tasks) {
      const auto own = problem_.task_reads[member];
      reads.insert(reads.end(), own.begin(), own.end());
    }
    std::ranges::sort(reads);
    reads.erase(std::ranges::unique(reads).begin(), reads.end());
    int best = -1;
    int64_t best_lack = 0;
    int64_t best_run = 0;
    for (int device : problem_.allowed[task]) {
      const int memory = problem_.device_memory[device];
      int64_t run = 0;
      int64_t lack = use_.ExtraForTasks(tasks, device) - use_.Free(memory);
      for (int member : tasks) run += problem_.Run(member, device);
      for (int tensor : reads) lack += CopyCost(tensor, memory);
      lack = std::max<int64_t>(0, lack);
      if (best < 0 || lack < best_lack || (lack == best_lack && run < best_run)) {
        best = device;
        best_lack = lack;
        best_run = run;
      }
    }
    return best;
  }

  /*! \brief Bytes that a read tensor adds to the memory; a penalty if it cannot get there. */
  int64_t CopyCost(int tensor, int memory) const {
    if (!NeedsCopy(tensor, memory)) return 0;
    const int producer = problem_.producer[tensor];
    const int home = producer < 0 ? problem_.host : problem_.device_memory[device_[producer]];
    if (problem_.Transfer(tensor, home, memory) == model::kImpossible)
      return model::kUnreachablePenalty;
    return use_.ExtraForCopy(tensor, memory);
  }

  const model::Problem& problem_;
  model::MemoryUse use_;
  std::vector<uint8_t> is_there_;  // [num_tensors][num_memories], a copy is charged
  std::vector<int> device_;        // [num_tasks], -1: not placed yet
};

}  // namespace

std::vector<int> FastestMapping(const model::Problem& problem, std::span<const int> order) {
  FastestFiller filler(problem);
  for (int task : order) filler.Place(task);
  return filler.Take();
}

}  // namespace heteroplace::list
