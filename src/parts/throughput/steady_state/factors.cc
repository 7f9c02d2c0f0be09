#include "parts/throughput/steady_state/factors.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "support/error.h"

namespace heteroplace::throughput {

namespace {

/*! \brief First number of a table's key. */
enum TableKind : int64_t { kTask, kPair, kMade, kInput, kMakerSet, kInputSet, kSetReader };

void Append(Amounts& to, const Amounts& from) {
  to.is_possible = to.is_possible && from.is_possible;
  to.list.insert(to.list.end(), from.list.begin(), from.list.end());
}

}  // namespace

FactorGraph::FactorGraph(const model::Problem& problem) : problem_(problem) {
  AddVariables();
  // Counted first: to fill as many as there may be takes a second.
  for (const bool is_counting : {true, false}) {
    is_counting_ = is_counting;
    known_.clear();
    tables.clear();
    factors.clear();
    AddTasks();
    AddTensors();
  }
}

template <typename Fill>
int FactorGraph::TableFor(const std::vector<int64_t>& key, int64_t num_steps, Fill fill) {
  const auto [found, is_new] = known_.emplace(key, static_cast<int>(tables.size()));
  if (!is_new) return found->second;
  num_steps_ += is_counting_ ? num_steps : 0;
  if (num_steps_ > kMaxSteps) {
    throw Error(ErrorKind::kSolverLimit,
                "prices of " + std::to_string(problem_.num_tasks) + " tasks on " +
                    std::to_string(problem_.num_devices) + " devices need tables of more than " +
                    std::to_string(kMaxSteps) + " runs and copies: coarsen the graph, or use " +
                    "fewer devices");
  }
  tables.push_back(is_counting_ ? BaseTable{} : BaseTable{fill()});
  return found->second;
}

void FactorGraph::AddVariables() {
  const model::Problem& p = problem_;
  // Variables by (task, is a set): numbers along the order of the tasks.
  std::vector<int> first(p.num_tasks);
  for (int task = 0; task < p.num_tasks; ++task) {
    const int group = p.task_group[task];
    first[task] = group < 0
                      ? task
                      : *std::min_element(p.group_tasks[group].begin(), p.group_tasks[group].end());
  }
  readers_.resize(p.num_tensors);
  for (int task = 0; task < p.num_tasks; ++task) {
    for (int tensor : p.task_reads[task]) {
      const int maker = p.producer[tensor] < 0 ? -1 : first[p.producer[tensor]];
      if (first[task] != maker) readers_[tensor].push_back(first[task]);
    }
  }
  std::vector<std::vector<int>> sets(p.num_tasks + 1);  // of tensors, by maker plus one
  for (int tensor = 0; tensor < p.num_tensors; ++tensor) {
    std::vector<int>& readers = readers_[tensor];
    std::ranges::sort(readers);
    readers.erase(std::ranges::unique(readers).begin(), readers.end());
    const bool goes_to_host = p.is_output[tensor] != 0 && p.host >= 0 && p.producer[tensor] >= 0;
    const bool is_everywhere = p.producer[tensor] < 0 && p.host < 0;
    const bool is_shared = readers.size() + (goes_to_host ? 1 : 0) >= 2 && !readers.empty();
    if (is_shared && !is_everywhere && p.num_memories <= kMaxMemories) {
      sets[p.producer[tensor] < 0 ? 0 : first[p.producer[tensor]] + 1].push_back(tensor);
    }
  }
  set_variable_.assign(p.num_tensors, -1);
  const auto add_sets = [&](const std::vector<int>& tensors) {
    for (int tensor : tensors) {
      set_variable_[tensor] = static_cast<int>(domain.size());
      domain.push_back((1 << p.num_memories) - 1);
    }
  };
  add_sets(sets[0]);
  task_variable.assign(p.num_tasks, -1);
  for (int task = 0; task < p.num_tasks; ++task) {
    if (first[task] == task) {
      task_variable[task] = static_cast<int>(domain.size());
      domain.push_back(p.num_devices);
      add_sets(sets[task + 1]);
    }
    task_variable[task] = task_variable[first[task]];
  }
  for (std::vector<int>& readers : readers_) {
    for (int& reader : readers) reader = task_variable[reader];
  }
}

int64_t FactorGraph::BytesIn(int tensor, int memory) const {
  if (memory == problem_.host && problem_.IsChargedToHost(tensor)) return 0;
  return problem_.tensor_bytes[tensor];
}

Amounts FactorGraph::CopyAmounts(int tensor, int src, int dst) const {
  Amounts amounts;
  if (src == dst) return amounts;
  const int64_t time = problem_.Transfer(tensor, src, dst);
  if (time == model::kImpossible) {
    amounts.is_possible = false;
    return amounts;
  }
  for (int resource : problem_.route_resources[problem_.Pair(src, dst)]) {
    amounts.list.emplace_back(resource, static_cast<double>(time));
  }
  amounts.list.emplace_back(problem_.num_resources + dst,
                            static_cast<double>(BytesIn(tensor, dst)));
  return amounts;
}

void FactorGraph::AddTasks() {
  const model::Problem& p = problem_;
  for (int task = 0; task < p.num_tasks; ++task) {
    int64_t bytes = p.weight_bytes[task], host_bytes = bytes;  // where it runs; on the host
    for (int tensor : p.task_makes[task]) {
      bytes += p.tensor_bytes[tensor];
      if (!p.IsChargedToHost(tensor)) host_bytes += p.tensor_bytes[tensor];
    }
    std::vector<int64_t> key{kTask, bytes, host_bytes};
    for (int device = 0; device < p.num_devices; ++device) key.push_back(p.Run(task, device));
    const int table = TableFor(key, p.num_devices, [&] {
      std::vector<Amounts> entries(p.num_devices);
      for (int device = 0; device < p.num_devices; ++device) {
        const int64_t run = p.Run(task, device);
        const int memory = p.device_memory[device];
        entries[device].is_possible = run != model::kImpossible;
        if (run == model::kImpossible) continue;
        for (int unit : p.device_units[device]) {
          entries[device].list.emplace_back(unit, static_cast<double>(run));
        }
        entries[device].list.emplace_back(
            p.num_resources + memory, static_cast<double>(memory == p.host ? host_bytes : bytes));
      }
      return entries;
    });
    factors.push_back({table, 1.0, {task_variable[task]}});
  }
}

void FactorGraph::AddTensors() {
  for (int tensor = 0; tensor < problem_.num_tensors; ++tensor) {
    const bool is_input = problem_.producer[tensor] < 0;
    if (is_input && problem_.host < 0) continue;  // everywhere
    const int maker = is_input ? -1 : task_variable[problem_.producer[tensor]];
    if (set_variable_[tensor] >= 0) {
      AddStar(tensor, maker, readers_[tensor]);
    } else {
      AddShared(tensor, maker, readers_[tensor]);
    }
  }
}

void FactorGraph::AddShared(int tensor, int maker, const std::vector<int>& readers) {
  const model::Problem& p = problem_;
  const bool goes_to_host = p.is_output[tensor] != 0 && p.host >= 0 && maker >= 0;
  const int64_t charge = p.IsChargedToHost(tensor) ? 1 : 0;
  const auto shares = static_cast<double>(readers.size() + (goes_to_host ? 1 : 0));
  // A copy is made once, so each of its readers bears at most a part of it.
  const double scale = shares > 0 ? 1.0 / shares : 1.0;
  const auto memory = [&p](int device) { return p.device_memory[device]; };
  if (goes_to_host) {
    const int table = TableFor({kMade, p.tensor_bytes[tensor]}, p.num_devices, [&] {
      std::vector<Amounts> entries;
      entries.reserve(p.num_devices);
      for (int d = 0; d < p.num_devices; ++d) {
        entries.push_back(CopyAmounts(tensor, memory(d), p.host));
      }
      return entries;
    });
    factors.push_back({table, scale, {maker}});
  }
  for (int reader : readers) {
    if (maker < 0) {
      const int table = TableFor({kInput, p.tensor_bytes[tensor]}, p.num_devices, [&] {
        std::vector<Amounts> entries;
        entries.reserve(p.num_devices);
        for (int d = 0; d < p.num_devices; ++d) {
          entries.push_back(CopyAmounts(tensor, p.host, memory(d)));
        }
        return entries;
      });
      factors.push_back({table, scale, {reader}});
      continue;
    }
    const int64_t pairs = int64_t{p.num_devices} * p.num_devices;
    const int table = TableFor({kPair, p.tensor_bytes[tensor], charge}, pairs, [&] {
      std::vector<Amounts> entries;
      for (int from = 0; from < p.num_devices; ++from) {
        for (int to = 0; to < p.num_devices; ++to) {
          entries.push_back(CopyAmounts(tensor, memory(from), memory(to)));
        }
      }
      return entries;
    });
    factors.push_back({table, scale, {maker, reader}});
  }
}

void FactorGraph::AddStar(int tensor, int maker, const std::vector<int>& readers) {
  const model::Problem& p = problem_;
  const int set = set_variable_[tensor];
  const bool goes_to_host = p.is_output[tensor] != 0 && p.host >= 0 && maker >= 0;
  const int num_sets = domain[set];
  // Value s of the variable is the set of memories whose bits are set in s + 1.
  const auto holds = [](int value, int memory) { return ((value + 1) >> memory & 1) != 0; };
  const auto copies = [&](int home, int value) {
    Amounts amounts;
    amounts.is_possible = holds(value, home) && (!goes_to_host || holds(value, p.host));
    for (int dst = 0; dst < p.num_memories && amounts.is_possible; ++dst) {
      if (dst != home && holds(value, dst)) Append(amounts, CopyAmounts(tensor, home, dst));
    }
    return amounts;
  };
  const int64_t charge = (p.IsChargedToHost(tensor) ? 1 : 0) + (goes_to_host ? 2 : 0);
  const std::vector<int64_t> key{maker < 0 ? kInputSet : kMakerSet, p.tensor_bytes[tensor], charge};
  const int num_homes = maker < 0 ? 1 : p.num_devices;
  // Half of the memories are in a set, on average.
  const int64_t num_copies = int64_t{num_homes} * num_sets * (1 + p.num_memories / 2);
  const int made = TableFor(key, num_copies, [&] {
    std::vector<Amounts> entries;
    for (int device = 0; device < num_homes; ++device) {
      const int home = maker < 0 ? p.host : p.device_memory[device];
      for (int value = 0; value < num_sets; ++value) entries.push_back(copies(home, value));
    }
    return entries;
  });
  const std::vector<int> scope = maker < 0 ? std::vector<int>{set} : std::vector<int>{maker, set};
  factors.push_back({made, 1.0, scope, /*is_shared=*/true});
  const int read = TableFor({kSetReader}, int64_t{num_sets} * p.num_devices, [&] {
    std::vector<Amounts> entries;
    for (int value = 0; value < num_sets; ++value) {
      for (int device = 0; device < p.num_devices; ++device) {
        entries.emplace_back().is_possible = holds(value, p.device_memory[device]);
      }
    }
    return entries;
  });
  for (int reader : readers) factors.push_back({read, 1.0, {set, reader}});
}

}  // namespace heteroplace::throughput
