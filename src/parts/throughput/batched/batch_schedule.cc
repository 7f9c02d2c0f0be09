#include "parts/throughput/batched/batch_schedule.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>

#include "list/engine/copies.h"
#include "list/engine/ranks.h"
#include "list/engine/reservation_table.h"
#include "model/memory_use.h"
#include "model/native_plan.h"
#include "parts/throughput/batched/batch_compositions.h"
#include "parts/throughput/batched/step_log.h"
#include "support/error.h"

namespace heteroplace::throughput {

namespace {

constexpr int64_t kNotThere = -1;
constexpr int kTriesPerAsk = 64;  // a try looks at every memory, of which there may be hundreds

/*! \brief Items of a task that run together. */
struct Batch {
  int device;
  std::vector<int> items;  // ascending
  int64_t start_ns = 0;
  int64_t finish_ns = 0;
};

/*! \brief Items of a tensor that move together. */
struct BatchCopy {
  int tensor;
  int src;
  int dst;
  std::vector<int> items;  // ascending
  int64_t start_ns = 0;
  int64_t finish_ns = 0;
};

/*! \brief What happens if a task is split in some way next. */
struct Trial {
  std::vector<Batch> batches;
  std::vector<BatchCopy> copies;
  int64_t violation = 0;  // added by it
  int64_t judged_ns = 0;  // latest finish, plus the transfer of outputs to the host
  int64_t sum_ns = 0;     // of the finishes
};

/*! \brief Grows a plan for several items task by task. */
class BatchScheduler {
 public:
  BatchScheduler(const model::Problem& problem, int num_items, BatchRule rule,
                 const list::Watch& watch)
      : problem_(problem),
        watch_(watch),
        num_items_(num_items),
        rule_(rule),
        use_(problem, num_items),
        busy_(problem.num_resources),
        row_(static_cast<size_t>(problem.num_tensors) * static_cast<size_t>(problem.num_memories),
             kNotThere),
        batches_(problem.num_tasks),
        local_bytes_(static_cast<size_t>(problem.num_memories) * static_cast<size_t>(num_items)),
        group_first_(problem.num_groups, -1) {}

  void Place(int task) {
    const int group = problem_.task_group[task];
    if (group >= 0 && group_first_[group] >= 0) {
      std::vector<Batch> batches = batches_[group_first_[group]];
      Commit(task, Try(task, std::move(batches), false));
      return;
    }
    if (group >= 0) group_first_[group] = task;
    std::vector<Composition> compositions = Compositions(problem_, task, num_items_, watch_);
    if (compositions.empty()) {
      throw Error(ErrorKind::kInfeasible,
                  "task " + std::to_string(task) + " cannot serve " + std::to_string(num_items_) +
                      " items with one batch on each device, of the sizes that they run");
    }
    if (rule_ == BatchRule::kFastest) SortByTimePerItem(problem_, task, compositions);
    FindLocalBytes(task);
    Trial best;
    for (const Composition& parts : compositions) {
      if (++tries_ % kTriesPerAsk == 0 && watch_) watch_();
      Trial trial = Try(task, Split(parts), true);
      if (best.batches.empty() || IsBetter(trial, best)) best = std::move(trial);
      // In order of time per item, the first that fits is the one to take.
      if (rule_ == BatchRule::kFastest && best.violation == 0) break;
    }
    Commit(task, std::move(best));
  }

  BatchPlan Finish() {
    if (problem_.host >= 0) CopyOutputs();
    return {log_.Sorted(problem_, num_items_), makespan_ns_, use_.Overflow() + unreachable_};
  }

 private:
  /*! \brief When a copied item is there, or kNotThere. */
  int64_t Copied(int tensor, int memory, int item) const {
    const int64_t row =
        row_[static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
             static_cast<size_t>(memory)];
    if (row == kNotThere) return kNotThere;
    return there_ns_[static_cast<size_t>(row) + static_cast<size_t>(item)];
  }

  void SetCopied(int tensor, int memory, int item, int64_t time_ns) {
    int64_t& row = row_[static_cast<size_t>(tensor) * static_cast<size_t>(problem_.num_memories) +
                        static_cast<size_t>(memory)];
    if (row == kNotThere) {
      row = static_cast<int64_t>(there_ns_.size());
      there_ns_.resize(there_ns_.size() + static_cast<size_t>(num_items_), kNotThere);
    }
    there_ns_[static_cast<size_t>(row) + static_cast<size_t>(item)] = time_ns;
  }

  bool IsBetter(const Trial& trial, const Trial& best) const {
    const auto key = [this](const Trial& one) {
      const int64_t latency =
          rule_ == BatchRule::kLatency ? std::max(makespan_ns_, one.judged_ns) : one.judged_ns;
      return std::tuple(one.violation, latency, one.judged_ns, one.sum_ns);
    };
    // MET does not compare what happens, only what fits; ties go to the earlier one.
    if (rule_ == BatchRule::kFastest) return trial.violation < best.violation;
    return key(trial) < key(best);
  }

  /*! \brief Calls `use(home memory, made, items)` for each batch that made some of the items. */
  template <typename Use>
  void ForEachSource(int tensor, const std::vector<int>& items, Use use) const {
    const int producer = problem_.producer[tensor];
    if (producer < 0) {
      use(problem_.host, int64_t{0}, items);
      return;
    }
    std::vector<int> shared;
    for (const Batch& batch : batches_[producer]) {
      shared.clear();
      std::ranges::set_intersection(items, batch.items, std::back_inserter(shared));
      if (!shared.empty()) {
        use(problem_.device_memory[batch.device], batch.finish_ns, shared);
      }
    }
  }

  /*! \brief Fills `local_bytes_`: what each item of the task's tensors has in each memory. */
  void FindLocalBytes(int task) {
    std::ranges::fill(local_bytes_, 0);
    std::vector<int> all(num_items_);
    std::iota(all.begin(), all.end(), 0);
    for (int tensor : problem_.task_reads[task]) {
      ForEachSource(tensor, all, [&](int home, int64_t, const std::vector<int>& items) {
        for (int memory = 0; memory < problem_.num_memories && home >= 0; ++memory) {
          for (int item : items) {
            if (memory != home && Copied(tensor, memory, item) == kNotThere) continue;
            LocalBytes(memory, item) += problem_.tensor_bytes[tensor];
          }
        }
      });
    }
  }

  int64_t& LocalBytes(int memory, int item) {
    return local_bytes_[static_cast<size_t>(memory) * static_cast<size_t>(num_items_) +
                        static_cast<size_t>(item)];
  }

  /*! \brief Gives each part the items of which more bytes are there than with the later parts. */
  std::vector<Batch> Split(const Composition& parts) {
    std::vector<Batch> batches;
    std::vector<int> left(num_items_);
    std::iota(left.begin(), left.end(), 0);
    for (size_t index = 0; index < parts.size(); ++index) {
      const auto gain = [&](int item) {
        int64_t elsewhere = 0;
        for (size_t later = index + 1; later < parts.size(); ++later) {
          const int memory = problem_.device_memory[parts[later].device];
          elsewhere = std::max(elsewhere, LocalBytes(memory, item));
        }
        return LocalBytes(problem_.device_memory[parts[index].device], item) - elsewhere;
      };
      std::ranges::stable_sort(left, [&](int one, int other) { return gain(one) > gain(other); });
      const auto end = left.begin() + parts[index].size;
      std::sort(left.begin(), end);
      batches.push_back({parts[index].device, {left.begin(), end}});
      left.erase(left.begin(), end);
      std::ranges::sort(left);
    }
    return batches;
  }

  /*! \brief Earliest slot on all resources, clear of what the trial has taken too. */
  int64_t Fit(std::span<const int> resources, int64_t ready, int64_t duration,
              const Trial& trial) const {
    return list::SettleStart(ready, [&](int64_t next) {
      for (int resource : resources) next = busy_[resource].EarliestFit(next, duration);
      const auto avoid = [&](std::span<const int> taken, int64_t begin, int64_t end) {
        if (begin >= next + duration || next >= end) return;
        if (std::find_first_of(taken.begin(), taken.end(), resources.begin(), resources.end()) !=
            taken.end()) {
          next = end;
        }
      };
      for (const BatchCopy& copy : trial.copies) {
        avoid(problem_.route_resources[problem_.Pair(copy.src, copy.dst)], copy.start_ns,
              copy.finish_ns);
      }
      for (const Batch& batch : trial.batches) {
        avoid(problem_.device_units[batch.device], batch.start_ns, batch.finish_ns);
      }
      return next;
    });
  }

  /*! \brief Schedules the batches of a task on paper. */
  Trial Try(int task, std::vector<Batch> batches, bool is_first_of_group) {
    Trial trial;
    for (Batch& batch : batches) {
      const int64_t ready = Bring(task, batch, trial);
      const int size = static_cast<int>(batch.items.size());
      const int64_t run = problem_.BatchRun(task, batch.device, size);
      batch.start_ns = Fit(problem_.device_units[batch.device], ready, run, trial);
      batch.finish_ns = batch.start_ns + run;
      const int64_t judged = batch.finish_ns + OutputTransfer(task, batch, trial);
      trial.judged_ns = std::max(trial.judged_ns, judged);
      trial.sum_ns += batch.finish_ns;
      trial.batches.push_back(std::move(batch));
    }
    trial.violation += ExtraOverflow(task, trial, is_first_of_group);
    return trial;
  }

  /*! \brief Adds the copies that a batch lacks; returns when all its tensors are there. */
  int64_t Bring(int task, const Batch& batch, Trial& trial) {
    const int memory = problem_.device_memory[batch.device];
    int64_t ready = 0;
    for (int tensor : problem_.task_reads[task]) {
      ForEachSource(tensor, batch.items,
                    [&](int home, int64_t made, const std::vector<int>& items) {
                      ready = std::max(ready, Arrival(tensor, home, memory, made, items, trial));
                    });
    }
    return ready;
  }

  /*! \brief When items made at home are in a memory; what is not there yet is copied. */
  int64_t Arrival(int tensor, int home, int memory, int64_t made, const std::vector<int>& items,
                  Trial& trial) {
    if (home < 0 || home == memory) return made;
    if (problem_.Transfer(tensor, home, memory) == model::kImpossible) {
      model::AddUnreachable(trial.violation);
      return made;
    }
    int64_t ready = made;
    BatchCopy copy{tensor, home, memory, {}};
    for (int item : items) {
      const int64_t there = Copied(tensor, memory, item);
      if (there == kNotThere) copy.items.push_back(item);
      ready = std::max(ready, there);
    }
    if (copy.items.empty()) return ready;
    const int pair = problem_.Pair(home, memory);
    const int64_t bytes = problem_.tensor_bytes[tensor] * static_cast<int64_t>(copy.items.size());
    const int64_t duration = problem_.TransferNs(problem_.route_links[pair], bytes);
    copy.start_ns = Fit(problem_.route_resources[pair], made, duration, trial);
    copy.finish_ns = copy.start_ns + duration;
    ready = std::max(ready, copy.finish_ns);
    trial.copies.push_back(std::move(copy));
    return ready;
  }

  /*! \brief Longest transfer of the batch's model outputs to the host. */
  int64_t OutputTransfer(int task, const Batch& batch, Trial& trial) const {
    const int memory = problem_.device_memory[batch.device];
    int64_t longest = 0;
    if (problem_.host < 0 || problem_.host == memory) return longest;
    for (int tensor : problem_.task_makes[task]) {
      if (problem_.is_output[tensor] == 0) continue;
      if (problem_.Transfer(tensor, memory, problem_.host) == model::kImpossible) {
        model::AddUnreachable(trial.violation);
        continue;
      }
      const auto links = problem_.route_links[problem_.Pair(memory, problem_.host)];
      const auto items = static_cast<int64_t>(batch.items.size());
      longest =
          std::max(longest, problem_.TransferNs(links, problem_.tensor_bytes[tensor] * items));
    }
    return longest;
  }

  /*! \brief Bytes over capacity that the trial adds; the first of a group answers for all. */
  int64_t ExtraOverflow(int task, const Trial& trial, bool is_first_of_group) const {
    model::MemoryUse use = use_;
    for (const BatchCopy& copy : trial.copies) {
      use.AddCopy(copy.tensor, copy.dst, static_cast<int>(copy.items.size()));
    }
    const int group = problem_.task_group[task];
    for (const Batch& batch : trial.batches) {
      const int size = static_cast<int>(batch.items.size());
      if (group < 0 || !is_first_of_group) {
        use.AddBatch(task, batch.device, size, false);
      } else {
        for (int member : problem_.group_tasks[group]) {
          use.AddBatch(member, batch.device, size, false);
        }
      }
    }
    return use.Overflow() - use_.Overflow();
  }

  void Commit(int task, Trial trial) {
    for (const BatchCopy& copy : trial.copies) CommitCopy(copy);
    for (const Batch& batch : trial.batches) {
      for (int unit : problem_.device_units[batch.device]) {
        busy_[unit].Reserve(batch.start_ns, batch.finish_ns);
      }
      use_.AddBatch(task, batch.device, static_cast<int>(batch.items.size()), false);
      makespan_ns_ = std::max(makespan_ns_, batch.finish_ns);
      log_.Add({model::StepKind::kRun, task, batch.device, -1}, batch.start_ns, batch.finish_ns,
               batch.items);
    }
    if (trial.violation >= model::kUnreachablePenalty) model::AddUnreachable(unreachable_);
    batches_[task] = std::move(trial.batches);
  }

  void CommitCopy(const BatchCopy& copy) {
    for (int resource : problem_.route_resources[problem_.Pair(copy.src, copy.dst)]) {
      busy_[resource].Reserve(copy.start_ns, copy.finish_ns);
    }
    for (int item : copy.items) SetCopied(copy.tensor, copy.dst, item, copy.finish_ns);
    use_.AddCopy(copy.tensor, copy.dst, static_cast<int>(copy.items.size()));
    makespan_ns_ = std::max(makespan_ns_, copy.finish_ns);
    log_.Add({model::StepKind::kCopy, copy.tensor, copy.dst, copy.src}, copy.start_ns,
             copy.finish_ns, copy.items);
  }

  void CopyOutputs() {
    std::vector<std::tuple<int64_t, int, size_t>> waiting;  // (made, tensor, position of batch)
    for (int tensor : problem_.outputs) {
      const int producer = problem_.producer[tensor];
      if (producer < 0) continue;
      for (size_t index = 0; index < batches_[producer].size(); ++index) {
        waiting.emplace_back(batches_[producer][index].finish_ns, tensor, index);
      }
    }
    std::ranges::sort(waiting);
    for (const auto& [made, tensor, index] : waiting) {
      const Batch& batch = batches_[problem_.producer[tensor]][index];
      Trial trial;
      Arrival(tensor, problem_.device_memory[batch.device], problem_.host, made, batch.items,
              trial);
      unreachable_ += trial.violation;
      for (const BatchCopy& copy : trial.copies) CommitCopy(copy);
    }
  }

  const model::Problem& problem_;
  const list::Watch& watch_;
  int64_t tries_ = 0;
  const int num_items_;
  const BatchRule rule_;
  model::MemoryUse use_;
  std::vector<list::ReservationTable> busy_;  // [num_resources]
  std::vector<int64_t> row_;                  // [num_tensors][num_memories], into there_ns_
  std::vector<int64_t> there_ns_;             // rows of num_items, arrival of copies
  std::vector<std::vector<Batch>> batches_;   // [num_tasks]
  std::vector<int64_t> local_bytes_;          // [num_memories][num_items], of the task
  std::vector<int> group_first_;              // [num_groups], first task placed; -1: none
  StepLog log_;
  int64_t makespan_ns_ = 0;
  int64_t unreachable_ = 0;
};

}  // namespace

BatchPlan ScheduleBatches(const model::Problem& problem, int num_items, BatchRule rule,
                          const list::Watch& watch) {
  std::vector<int> order(problem.num_tasks);
  std::iota(order.begin(), order.end(), 0);
  if (rule != BatchRule::kLatency) {
    const std::vector<double> rank = list::BatchRanks(problem, num_items);
    // A producer's rank is at least its reader's, and its id is lower: the order is topological.
    std::ranges::stable_sort(order,
                             [&rank](int left, int right) { return rank[left] > rank[right]; });
  }
  BatchScheduler scheduler(problem, num_items, rule, watch);
  for (int task : order) scheduler.Place(task);
  return scheduler.Finish();
}

}  // namespace heteroplace::throughput
