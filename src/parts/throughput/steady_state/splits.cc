#include <algorithm>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "parts/throughput/steady_state/improve.h"
#include "simulate/loads.h"
#include "support/random.h"

namespace heteroplace::throughput {

namespace {

constexpr int kSteps = 20;
/*! \brief Splits that are mended where none fits, and how often each is looked at meanwhile. */
constexpr size_t kMended = 2;
constexpr int kLooks = 5;

/*! \brief Fills devices one after the other. */
class Splitter {
 public:
  explicit Splitter(const model::Problem& problem)
      : problem_(problem), reserved_(problem.base_bytes) {
    for (int task = 0; task < problem.num_tasks; ++task) {
      int64_t bytes = problem.weight_bytes[task];
      for (int tensor : problem.task_makes[task]) bytes += problem.tensor_bytes[tensor];
      bytes_.push_back(bytes);
    }
  }

  /*! \brief Bytes of each memory that are not for tasks and what they make. */
  void Reserve(std::vector<int64_t> bytes) { reserved_ = std::move(bytes); }

  /*! \brief The split with the least limit found; empty if none holds all tasks. */
  std::vector<int> Best(const std::vector<int>& devices) {
    int64_t high = 1;
    for (int task = 0; task < problem_.num_tasks; ++task) {
      int64_t slowest = 0;
      for (int device : problem_.allowed[task]) {
        slowest = std::max(slowest, problem_.Run(task, device));
      }
      high += slowest;
    }
    std::vector<int> best;
    if (!Fill(devices, high)) return best;
    best = device_;
    int64_t low = 0;
    for (int step = 0; step < kSteps && low + 1 < high; ++step) {
      const int64_t middle = low + (high - low) / 2;
      if (Fill(devices, middle)) {
        high = middle;
        best = device_;
      } else {
        low = middle;
      }
    }
    return best;
  }

 private:
  /*! \brief Splits with a limit on run times; false if a task finds no place. */
  bool Fill(const std::vector<int>& devices, int64_t limit_ns) {
    busy_.assign(problem_.num_units, 0);
    used_ = reserved_;
    device_.assign(problem_.num_tasks, -1);
    size_t current = 0;
    for (int task = 0; task < problem_.num_tasks; ++task) {
      if (device_[task] >= 0) continue;  // its group has a place
      const std::span<const int> members = problem_.Colocated(task);
      while (current < devices.size() &&
             problem_.Run(task, devices[current]) != model::kImpossible &&
             !Fits(members, devices[current], limit_ns)) {
        ++current;
      }
      // A task that the current device cannot run goes to any other with room.
      size_t chosen = current;
      if (current == devices.size() || problem_.Run(task, devices[current]) == model::kImpossible) {
        for (chosen = 0; chosen < devices.size(); ++chosen) {
          if (problem_.Run(task, devices[chosen]) != model::kImpossible &&
              Fits(members, devices[chosen], limit_ns)) {
            break;
          }
        }
      }
      if (chosen == devices.size()) return false;
      for (int member : members) Put(member, devices[chosen]);
    }
    return true;
  }

  bool Fits(std::span<const int> tasks, int device, int64_t limit_ns) const {
    int64_t run = 0, bytes = 0;
    for (int task : tasks) {
      run += problem_.Run(task, device);
      bytes += bytes_[task];
    }
    for (int unit : problem_.device_units[device]) {
      if (busy_[unit] + run > limit_ns) return false;
    }
    const int memory = problem_.device_memory[device];
    return used_[memory] + bytes <= problem_.memory_bytes[memory];
  }

  void Put(int task, int device) {
    device_[task] = device;
    for (int unit : problem_.device_units[device]) busy_[unit] += problem_.Run(task, device);
    used_[problem_.device_memory[device]] += bytes_[task];
  }

  const model::Problem& problem_;
  std::vector<int64_t> bytes_;     // [num_tasks], weights and what it makes
  std::vector<int64_t> reserved_;  // [num_memories]
  std::vector<int64_t> busy_;
  std::vector<int64_t> used_;
  std::vector<int> device_;
};

/*! \brief All orders of the devices, or `count` random ones. */
std::vector<std::vector<int>> DeviceOrders(int num_devices, int count) {
  std::vector<int> order(num_devices);
  std::iota(order.begin(), order.end(), 0);
  std::vector<std::vector<int>> orders;
  do {
    orders.push_back(order);
  } while (std::ranges::next_permutation(order).found && static_cast<int>(orders.size()) <= count);
  if (static_cast<int>(orders.size()) <= count) return orders;
  orders.clear();
  Random random(0);
  for (int i = 0; i < count; ++i) {
    for (int k = num_devices; k > 1; --k) std::swap(order[k - 1], order[random.Below(k)]);
    orders.push_back(order);
  }
  return orders;
}

/*! \brief A split and its rank: what does not fit, then the time per item. */
struct Split {
  std::pair<int64_t, int64_t> rank;
  std::vector<int> device;
  std::vector<int> order;
};

Split Ranked(const simulate::Loads& loads, const std::vector<int>& order) {
  return {{loads.Overflow() + loads.num_unreachable(), loads.ItemNs()}, loads.device(), order};
}

/*!
 * \brief The split again with as much room left as the copies of the one before lacked, which are
 * not counted while splitting; one without devices if none fits.
 */
Split Mended(const model::Problem& problem, const Split& split) {
  Splitter splitter(problem);
  std::vector<int64_t> reserved = problem.base_bytes;
  std::vector<int> device = split.device;
  for (int look = 0; look < kLooks && !device.empty(); ++look) {
    const simulate::Loads loads(problem, device);
    if (loads.Overflow() == 0) return Ranked(loads, split.order);
    for (int memory = 0; memory < problem.num_memories; ++memory) {
      const int64_t over = loads.used_bytes()[memory] - problem.memory_bytes[memory];
      reserved[memory] += std::max<int64_t>(0, over);
    }
    splitter.Reserve(reserved);
    device = splitter.Best(split.order);
  }
  return {};
}

}  // namespace

std::vector<std::vector<int>> ContiguousSplits(const model::Problem& problem, int max_orders) {
  Splitter splitter(problem);
  std::vector<Split> found;
  for (const std::vector<int>& order : DeviceOrders(problem.num_devices, max_orders)) {
    const std::vector<int> split = splitter.Best(order);
    if (split.empty() && problem.num_tasks > 0) continue;
    found.push_back(Ranked(simulate::Loads(problem, split), order));
  }
  const auto sort = [&found] {
    std::ranges::stable_sort(found, [](const Split& a, const Split& b) { return a.rank < b.rank; });
  };
  sort();
  if (!found.empty() && found[0].rank.first > 0) {
    const size_t num_mended = std::min(kMended, found.size());
    for (size_t i = 0; i < num_mended; ++i) {
      Split mended = Mended(problem, found[i]);
      if (!mended.device.empty()) found.push_back(std::move(mended));
    }
    sort();
  }
  std::vector<std::vector<int>> splits;
  splits.reserve(found.size());
  for (Split& split : found) splits.push_back(std::move(split.device));
  return splits;
}

}  // namespace heteroplace::throughput
