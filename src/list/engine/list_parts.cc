#include "list/engine/list_parts.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>
#include <vector>

#include "list/engine/choice_key.h"
#include "list/engine/priorities.h"
#include "list/engine/ranks.h"
#include "support/error.h"

namespace heteroplace::list {

namespace {

template <typename Part>
using Name = std::pair<std::string_view, Part>;

constexpr std::array<Name<Priority>, 7> kPriorities{{
    {"topological", Priority::kTopological},
    {"rank", Priority::kRank},
    {"path", Priority::kPath},
    {"lookahead", Priority::kLookahead},
    {"min-min", Priority::kMinMin},
    {"max-min", Priority::kMaxMin},
    {"sufferage", Priority::kSufferage},
}};
constexpr std::array<Name<Choice>, 7> kChoices{{
    {"finish", Choice::kFinish},
    {"start", Choice::kStart},
    {"run", Choice::kRun},
    {"latency", Choice::kLatency},
    {"lookahead", Choice::kLookahead},
    {"path", Choice::kPath},
    {"available", Choice::kAvailable},
}};
constexpr std::array<Name<Insertion>, 2> kInsertions{{
    {"gaps", Insertion::kGaps},
    {"end", Insertion::kEnd},
}};

template <typename Names>
auto Find(const Names& names, const std::string& name, const char* part) {
  std::string known;
  for (const auto& [key, value] : names) {
    if (key == name) return value;
    known += (known.empty() ? "" : ", ") + std::string(key);
  }
  throw Error(ErrorKind::kPlan, "list schedulers have no " + std::string(part) + " '" + name +
                                    "'; there are " + known);
}

/*! \brief Places ready tasks, each time the one that stands out of all by its choices. */
class ReadyRounds {
 public:
  ReadyRounds(const model::Problem& problem, const model::Csr& devices, Priority priority,
              const ChoiceKeys& keys, ListScheduler& scheduler)
      : problem_(problem),
        devices_(devices),
        priority_(priority),
        keys_(keys),
        scheduler_(scheduler) {
    for (int task = 0; task < problem.num_tasks; ++task) {
      waiting_.push_back(problem.predecessors[task].size());
      if (waiting_.back() == 0) ready_.push_back(task);
    }
  }

  void Run() {
    while (!ready_.empty()) {
      std::ranges::sort(ready_);
      std::vector<int> batch = std::exchange(ready_, {});
      // Tasks that become ready wait for the end of the batch, but with sufferage.
      do {
        const size_t chosen = Choose(batch);
        const int task = batch[chosen];
        batch.erase(batch.begin() + static_cast<std::ptrdiff_t>(chosen));
        scheduler_.Commit(task, best_);
        for (int next : problem_.successors[task]) {
          if (--waiting_[next] == 0) ready_.push_back(next);
        }
      } while (!batch.empty() && priority_ != Priority::kSufferage);
      ready_.insert(ready_.end(), batch.begin(), batch.end());
    }
  }

 private:
  /*! \brief Position in the batch of the task to place; `best_` is then its candidate. */
  size_t Choose(const std::vector<int>& batch) {
    size_t chosen = 0;
    std::pair<int64_t, double> most;
    for (size_t index = 0; index < batch.size(); ++index) {
      const std::pair<int64_t, double> found = Merit(batch[index]);
      if (index > 0 && !(most < found)) continue;
      most = found;
      chosen = index;
      std::swap(best_, of_task_);
    }
    return chosen;
  }

  /*! \brief The larger the sooner: room in memory first; `of_task_` is then the best candidate. */
  std::pair<int64_t, double> Merit(int task) {
    ChoiceKey best, second;
    int count = 0;
    // What a further key has to be below to count, and how many keys there are before it is known.
    const bool counts_second = priority_ == Priority::kSufferage;
    const ChoiceKey& least = counts_second ? second : best;
    const int known = counts_second ? 2 : 1;
    const auto limit = [&](int device) {
      return count < known ? ListScheduler::kAnyTime : keys_.LatestFinish(task, device, least);
    };
    const auto choices = scheduler_.Choices(task, devices_[task]);
    scheduler_.TryOn(task, choices, trial_, limit, [&] {
      ChoiceKey key = keys_.Of(task, trial_);
      if (count == 0 || key < best) {
        std::swap(of_task_, trial_);
        std::swap(best, key);
      }
      if (count > 0 && (count == 1 || key < second)) second = key;
      ++count;
    });
    double merit = best.value;
    if (priority_ == Priority::kMinMin) merit = -best.value;
    if (priority_ == Priority::kSufferage) {
      const bool has_second = count > 1 && second.violation <= best.violation;
      merit = has_second ? second.value - best.value : std::numeric_limits<double>::infinity();
    }
    return {-best.violation, merit};
  }

  const model::Problem& problem_;
  const model::Csr& devices_;
  Priority priority_;
  const ChoiceKeys& keys_;
  ListScheduler& scheduler_;
  std::vector<size_t> waiting_;  // [num_tasks], producers that are not placed
  std::vector<int> ready_;
  Candidate best_, of_task_, trial_;
};

}  // namespace

ListParts FindParts(const std::string& priority, const std::string& choice,
                    const std::string& insertion) {
  return {Find(kPriorities, priority, "priority"), Find(kChoices, choice, "choice"),
          Find(kInsertions, insertion, "insertion")};
}

model::NativePlan PlanByParts(const model::Problem& problem, ListParts parts,
                              std::span<const uint8_t> preferred, const Watch& watch) {
  const model::Csr devices = PreferredDevices(problem, preferred);
  ListScheduler scheduler(problem, watch, Freeing::kByReaders, parts.insertion);
  const ChoiceKeys keys(problem, scheduler, parts.choice, preferred, devices);
  if (parts.priority >= Priority::kMinMin) {
    ReadyRounds(problem, devices, parts.priority, keys, scheduler).Run();
    return scheduler.Finish();
  }
  const std::vector<double> priority = Priorities(problem, parts.priority, preferred, devices);
  ForEachReady(problem, priority,
               [&](int task) { scheduler.PlaceBest(task, devices[task], keys); });
  return scheduler.Finish();
}

}  // namespace heteroplace::list
