#include "list/batch_compositions.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace heteroplace::list {

namespace {

constexpr int kMaxBatches = 3;

void Extend(const model::Problem& problem, int task, int device, int left, int parts,
            Composition& current, std::vector<Composition>& found) {
  if (left == 0) found.push_back(current);
  if (left == 0 || parts == 0) return;
  for (; device < problem.num_devices; ++device) {
    for (int size : problem.batch_sizes) {
      if (size > left) break;
      if ((parts == 1 && size < left) ||
          problem.BatchRun(task, device, size) == model::kImpossible) {
        continue;
      }
      current.push_back({device, size});
      Extend(problem, task, device + 1, left - size, parts - 1, current, found);
      current.pop_back();
    }
  }
}

/*! \brief Run times per item of a composition, ascending: what MET compares. */
std::vector<double> TimesPerItem(const model::Problem& problem, int task,
                                 const Composition& parts) {
  std::vector<double> times;
  for (const DeviceBatch& part : parts) {
    times.push_back(static_cast<double>(problem.BatchRun(task, part.device, part.size)) /
                    static_cast<double>(part.size));
  }
  std::sort(times.begin(), times.end());
  return times;
}

}  // namespace

std::vector<Composition> Compositions(const model::Problem& problem, int task, int num_items) {
  std::vector<Composition> found;
  Composition current;
  for (int parts = kMaxBatches; parts <= std::max(kMaxBatches, problem.num_devices); ++parts) {
    Extend(problem, task, 0, num_items, parts, current, found);
    if (!found.empty()) break;
  }
  return found;
}

void SortByTimePerItem(const model::Problem& problem, int task,
                       std::vector<Composition>& compositions) {
  std::vector<std::pair<std::vector<double>, Composition>> timed;
  for (Composition& parts : compositions) {
    timed.emplace_back(TimesPerItem(problem, task, parts), std::move(parts));
  }
  std::stable_sort(timed.begin(), timed.end(),
                   [](const auto& left, const auto& right) { return left.first < right.first; });
  for (size_t index = 0; index < timed.size(); ++index) {
    compositions[index] = std::move(timed[index].second);
  }
}

std::vector<double> BatchRanks(const model::Problem& problem, int num_items) {
  const double items = static_cast<double>(num_items);
  std::vector<double> below(problem.num_tasks, 0.0);  // max over readers of transfer + rank
  std::vector<double> rank(problem.num_tasks, 0.0);
  const auto mean_transfer = [&](int tensor) {
    double sum = 0;
    double pairs = 0;
    for (int from = 0; from < problem.num_devices; ++from) {
      for (int to = 0; to < problem.num_devices; ++to) {
        const int src = problem.device_memory[from];
        const int dst = problem.device_memory[to];
        if (from == to || problem.Transfer(tensor, src, dst) == model::kImpossible) continue;
        sum += static_cast<double>(problem.TransferNs(problem.route_links[problem.Pair(src, dst)],
                                                      problem.tensor_bytes[tensor] * num_items));
        pairs += 1;
      }
    }
    return sum / std::max(1.0, pairs);
  };
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
      below[producer] = std::max(below[producer], mean_transfer(tensor) + rank[task]);
    }
  }
  return rank;
}

}  // namespace heteroplace::list
