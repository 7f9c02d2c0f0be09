#include "list/ranks.h"

#include <algorithm>
#include <numeric>

namespace heteroplace::list {

namespace {

std::vector<uint8_t> AllDevices(const model::Problem& problem) {
  return std::vector<uint8_t>(static_cast<size_t>(problem.num_devices), uint8_t{1});
}

}  // namespace

model::Csr PreferredDevices(const model::Problem& problem, std::span<const uint8_t> preferred) {
  model::Csr lists;
  lists.values.reserve(problem.allowed.values.size());
  lists.offsets.reserve(static_cast<size_t>(problem.num_tasks) + 1);
  for (int task = 0; task < problem.num_tasks; ++task) {
    const size_t begin = lists.values.size();
    for (int device : problem.allowed[task]) {
      if (preferred[device] != 0) lists.values.push_back(device);
    }
    if (lists.values.size() == begin) {
      lists.AddRow(problem.allowed[task]);
    } else {
      lists.offsets.push_back(static_cast<int>(lists.values.size()));
    }
  }
  return lists;
}

std::vector<double> MeanRuns(const model::Problem& problem, const model::Csr& devices) {
  std::vector<double> mean(static_cast<size_t>(problem.num_tasks), 0.0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    double run = 0;
    for (int device : devices[task]) run += static_cast<double>(problem.Run(task, device));
    mean[task] = run / std::max(1.0, static_cast<double>(devices[task].size()));
  }
  return mean;
}

std::vector<double> MeanTransfers(const model::Problem& problem,
                                  std::span<const uint8_t> preferred) {
  const size_t memories = static_cast<size_t>(problem.num_memories);
  std::vector<double> count(memories, 0.0);  // preferred devices in each memory
  double devices = 0;
  for (int device = 0; device < problem.num_devices; ++device) {
    if (preferred[device] == 0) continue;
    count[problem.device_memory[device]] += 1.0;
    devices += 1.0;
  }
  const double pairs = std::max(1.0, devices * (devices - 1.0));
  std::vector<double> weight(memories * memories, 0.0);
  for (int src = 0; src < problem.num_memories; ++src) {
    for (int dst = 0; dst < problem.num_memories; ++dst) {
      const bool is_way = src != dst && !problem.route_links[problem.Pair(src, dst)].empty();
      if (is_way) weight[problem.Pair(src, dst)] = count[src] * count[dst];
    }
  }
  std::vector<double> mean(static_cast<size_t>(problem.num_tensors), 0.0);
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    double sum = 0;
    for (int src = 0; src < problem.num_memories; ++src) {
      for (int dst = 0; dst < problem.num_memories; ++dst) {
        const double share = weight[problem.Pair(src, dst)];
        if (share != 0) sum += share * static_cast<double>(problem.Transfer(tensor, src, dst));
      }
    }
    mean[tensor] = sum / pairs;
  }
  return mean;
}

std::vector<double> MeanTransfers(const model::Problem& problem) {
  return MeanTransfers(problem, AllDevices(problem));
}

std::vector<double> UpwardRanks(const model::Problem& problem, std::span<const uint8_t> preferred) {
  std::vector<double> rank = MeanRuns(problem, PreferredDevices(problem, preferred));
  const std::vector<double> transfer = MeanTransfers(problem, preferred);
  std::vector<double> below(rank.size(), 0.0);  // max over readers of transfer + rank
  for (int task = problem.num_tasks - 1; task >= 0; --task) {
    rank[task] += below[task];
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer < 0) continue;
      below[producer] = std::max(below[producer], transfer[tensor] + rank[task]);
    }
  }
  return rank;
}

std::vector<double> UpwardRanks(const model::Problem& problem) {
  return UpwardRanks(problem, AllDevices(problem));
}

std::vector<int> OrderByRank(std::span<const double> rank) {
  std::vector<int> order(rank.size());
  std::iota(order.begin(), order.end(), 0);
  // A producer's rank is at least its reader's, and its id is lower: the order is topological.
  std::stable_sort(order.begin(), order.end(),
                   [&rank](int left, int right) { return rank[left] > rank[right]; });
  return order;
}

}  // namespace heteroplace::list
