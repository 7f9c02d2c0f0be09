#include "list/engine/ranks.h"

#include <algorithm>
#include <limits>
#include <numeric>

namespace heteroplace::list {

namespace {

constexpr size_t kMaxTransfers = 8'000'000;  // that means are taken of

std::vector<uint8_t> AllDevices(const model::Problem& problem) {
  return std::vector<uint8_t>(static_cast<size_t>(problem.num_devices), uint8_t{1});
}

/*!
 * \brief Mean transfer time of so many items of each size. Of very many sizes and ways some sizes
 * are interpolated: times are nearly linear in bytes.
 * \param weight [num_ways]
 */
std::vector<double> MeanOfSizes(const model::Problem& problem, std::span<const double> weight,
                                double total, int num_items) {
  const size_t count = problem.sizes.size();
  const size_t stride = 1 + count * weight.size() / kMaxTransfers;
  std::vector<double> mean(count, 0.0);
  size_t last = 0;
  for (size_t size = 0; size < count;
       size = size + 1 == count ? count : std::min(size + stride, count - 1)) {
    double sum = 0;
    for (size_t way = 0; way < weight.size(); ++way) {
      if (weight[way] == 0) continue;
      const int pair = problem.pair_of[way];
      const int64_t time =
          num_items == 1
              ? problem.TransferOfSize(static_cast<int>(size), pair / problem.num_memories,
                                       pair % problem.num_memories)
              : problem.TransferNs(problem.route_links[pair], problem.sizes[size] * num_items);
      sum += weight[way] * static_cast<double>(time);
    }
    mean[size] = sum / total;
    const double bytes = static_cast<double>(problem.sizes[size] - problem.sizes[last]);
    for (size_t between = last + 1; between < size; ++between) {
      const double part = static_cast<double>(problem.sizes[between] - problem.sizes[last]) / bytes;
      mean[between] = mean[last] + part * (mean[size] - mean[last]);
    }
    last = size;
  }
  return mean;
}

/*! \brief What is known of each size, for each tensor. */
std::vector<double> OfTensors(const model::Problem& problem, const std::vector<double>& of_size) {
  std::vector<double> mean(static_cast<size_t>(problem.num_tensors), 0.0);
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    mean[tensor] = of_size[problem.size_of[tensor]];
  }
  return mean;
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

std::vector<double> MeanTransfers(const model::Problem& problem, std::span<const uint8_t> preferred,
                                  int num_items) {
  std::vector<double> count(static_cast<size_t>(problem.num_memories), 0.0);
  for (int device = 0; device < problem.num_devices; ++device) {
    if (preferred[device] != 0) count[problem.device_memory[device]] += 1.0;
  }
  double pairs = 0;
  std::vector<double> weight(problem.pair_of.size(), 0.0);
  for (int src = 0; src < problem.num_memories; ++src) {
    for (int dst = 0; dst < problem.num_memories; ++dst) {
      const int way = problem.way_of[problem.Pair(src, dst)];
      if (way < 0) continue;
      const double both = count[src] * (src == dst ? count[dst] - 1.0 : count[dst]);
      pairs += both;
      if (src != dst) weight[way] += both;
    }
  }
  return OfTensors(problem, MeanOfSizes(problem, weight, std::max(1.0, pairs), num_items));
}

std::vector<double> MeanTransfers(const model::Problem& problem, int num_items) {
  return MeanTransfers(problem, AllDevices(problem), num_items);
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

std::vector<double> BatchRanks(const model::Problem& problem, int num_items) {
  const double items = static_cast<double>(num_items);
  std::vector<double> below(problem.num_tasks, 0.0);  // max over readers of transfer + rank
  std::vector<double> rank(problem.num_tasks, 0.0);
  const std::vector<double> transfer = MeanTransfers(problem, num_items);
  for (int task = problem.num_tasks - 1; task >= 0; --task) {
    double run = 0;
    double devices = 0;
    for (int device = 0; device < problem.num_devices; ++device) {
      double least = std::numeric_limits<double>::infinity();
      for (int size : problem.batch_sizes) {
        const int64_t time = problem.BatchRun(task, device, size);
        if (time == model::kImpossible || size > num_items) continue;
        least = std::min(least, static_cast<double>(time) / static_cast<double>(size));
      }
      if (least == std::numeric_limits<double>::infinity()) continue;
      run += least * items;
      devices += 1;
    }
    rank[task] = run / std::max(1.0, devices) + below[task];
    for (int tensor : problem.task_reads[task]) {
      const int producer = problem.producer[tensor];
      if (producer < 0) continue;
      below[producer] = std::max(below[producer], transfer[tensor] + rank[task]);
    }
  }
  return rank;
}

std::vector<int> OrderByRank(std::span<const double> rank) {
  std::vector<int> order(rank.size());
  std::iota(order.begin(), order.end(), 0);
  // A producer's rank is at least its reader's, and its id is lower: the order is topological.
  std::ranges::stable_sort(order,
                           [&rank](int left, int right) { return rank[left] > rank[right]; });
  return order;
}

}  // namespace heteroplace::list
