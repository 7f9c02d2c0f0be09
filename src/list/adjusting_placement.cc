#include "list/adjusting_placement.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "list/engine/list_scheduler.h"

namespace heteroplace::list {

namespace {

constexpr int64_t kUnreachableNs = int64_t{1} << 61;  // longer than all plans

/*! \brief The device that runs most tasks; of those the one with the least sum of run times. */
int StartDevice(const model::Problem& problem) {
  std::vector<std::pair<int, int64_t>> load(static_cast<size_t>(problem.num_devices), {0, 0});
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int device : problem.allowed[task]) {
      --load[device].first;
      load[device].second += problem.Run(task, device);
    }
  }
  return static_cast<int>(std::ranges::min_element(load) - load.begin());
}

/*! \brief Prices of returning from another device to `prev`. */
class WayBack {
 public:
  explicit WayBack(const model::Problem& problem)
      : problem_(problem), is_read_(static_cast<size_t>(problem.num_tensors), 0) {
    for (int tensor : problem.task_reads.values) is_read_[tensor] = 1;
  }

  /*! \brief Longest transfer of what other tasks read of the task. */
  int64_t operator()(int task, int src_device, int dst_device) const {
    const int src = problem_.device_memory[src_device];
    const int dst = problem_.device_memory[dst_device];
    int64_t longest = 0;
    for (int tensor : problem_.task_makes[task]) {
      if (is_read_[tensor] == 0) continue;
      const int64_t transfer = problem_.Transfer(tensor, src, dst);
      longest = std::max(longest, transfer == model::kImpossible ? kUnreachableNs : transfer);
    }
    return longest;
  }

 private:
  const model::Problem& problem_;
  std::vector<uint8_t> is_read_;  // [num_tensors]
};

/*! \brief Part of the device's memory that is in use. */
double Fullness(const model::Problem& problem, const ListScheduler& scheduler, int device) {
  const int memory = problem.device_memory[device];
  return static_cast<double>(scheduler.UsedBytes(memory)) /
         static_cast<double>(problem.memory_bytes[memory]);
}

}  // namespace

model::NativePlan AdjustingPlacement(const model::Problem& problem, std::span<const int> order,
                                     const Watch& watch) {
  ListScheduler scheduler(problem, watch);
  std::vector<Candidate> trials(static_cast<size_t>(problem.num_devices));
  const WayBack way_back(problem);
  int prev = StartDevice(problem);
  for (int task : order) {
    int best = -1;      // of those with room the earliest finish
    int emptiest = -1;  // of those that can be reached, else of all
    bool can_stay = false;
    const auto choices = scheduler.Choices(task, problem.allowed[task]);
    for (int device : choices) {
      const Candidate& trial = trials[device];
      scheduler.Try(task, device, trials[device]);
      if (trial.violation == 0) {
        if (best < 0 || trial.finish_ns < trials[best].finish_ns) best = device;
        if (device == prev) can_stay = true;
      }
      const bool is_reached = trial.violation < model::kUnreachablePenalty;
      const bool was_reached =
          emptiest >= 0 && trials[emptiest].violation < model::kUnreachablePenalty;
      if (emptiest < 0 || (is_reached && !was_reached) ||
          (is_reached == was_reached &&
           Fullness(problem, scheduler, device) < Fullness(problem, scheduler, emptiest))) {
        emptiest = device;
      }
    }
    int chosen = best;
    if (best < 0) {
      chosen = emptiest;
    } else if (can_stay) {
      const int64_t back = way_back(task, best, prev);
      if (trials[best].finish_ns + back >= trials[prev].finish_ns) chosen = prev;
    }
    scheduler.Commit(task, trials[chosen]);
    prev = chosen;
  }
  return scheduler.Finish();
}

}  // namespace heteroplace::list
