#include "parts/throughput/batched/batch_compositions.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace heteroplace::throughput {

namespace {

constexpr int kMaxBatches = 3;

constexpr int kPartsPerAsk = 4096;

/*! \brief Finds the compositions of one task, part by part. */
class Extender {
 public:
  Extender(const model::Problem& problem, int task, const list::Watch& watch)
      : problem_(problem), task_(task), watch_(watch) {}

  /*! \brief Those with at most so many parts, in the order of devices and sizes. */
  std::vector<Composition> Find(int num_items, int parts) {
    Extend(0, num_items, parts);
    return std::exchange(found_, {});
  }

 private:
  void Extend(int device, int left, int parts) {
    if (left == 0) found_.push_back(current_);
    if (left == 0 || parts == 0) return;
    for (; device < problem_.num_devices; ++device) {
      for (int size : problem_.batch_sizes) {
        if (size > left) break;
        if ((parts == 1 && size < left) ||
            problem_.BatchRun(task_, device, size) == model::kImpossible) {
          continue;
        }
        Ask();
        current_.push_back({device, size});
        Extend(device + 1, left - size, parts - 1);
        current_.pop_back();
      }
    }
  }

  void Ask() {
    if (++parts_ % kPartsPerAsk == 0 && watch_) watch_();
  }

  const model::Problem& problem_;
  const int task_;
  const list::Watch& watch_;
  int64_t parts_ = 0;  // looked at
  Composition current_;
  std::vector<Composition> found_;
};

/*! \brief A set of numbers of items, one bit each. */
class Sums {
 public:
  /*! \brief {0}, of the numbers up to `largest`. */
  explicit Sums(int largest) : words_(static_cast<size_t>(largest) / kBits + 1, 0) {
    words_[0] = 1;
  }

  /*! \brief Adds each number of `other` plus `size`. */
  void AddShifted(const Sums& other, int size) {
    const size_t skip = static_cast<size_t>(size) / kBits,
                 shift = static_cast<size_t>(size) % kBits;
    for (size_t word = skip; word < words_.size(); ++word) {
      words_[word] |= other.words_[word - skip] << shift;
      if (shift > 0 && word > skip) {
        words_[word] |= other.words_[word - skip - 1] >> (kBits - shift);
      }
    }
  }

  bool Has(int number) const {
    return (words_[static_cast<size_t>(number) / kBits] >> (static_cast<size_t>(number) % kBits) &
            1) != 0;
  }

 private:
  static constexpr size_t kBits = 64;
  std::vector<uint64_t> words_;
};

/*! \brief Run times per item of a composition, ascending: what MET compares. */
std::vector<double> TimesPerItem(const model::Problem& problem, int task,
                                 const Composition& parts) {
  std::vector<double> times;
  for (const DeviceBatch& part : parts) {
    times.push_back(static_cast<double>(problem.BatchRun(task, part.device, part.size)) /
                    static_cast<double>(part.size));
  }
  std::ranges::sort(times);
  return times;
}

}  // namespace

std::vector<Composition> Compositions(const model::Problem& problem, int task, int num_items,
                                      const list::Watch& watch) {
  Extender extender(problem, task, watch);
  std::vector<Composition> found;
  for (int parts = kMaxBatches; parts <= std::max(kMaxBatches, problem.num_devices); ++parts) {
    found = extender.Find(num_items, parts);
    if (!found.empty()) break;
  }
  return found;
}

std::vector<int> UnservedTasks(const model::Problem& problem, int num_items) {
  std::vector<int> unserved;
  std::map<std::vector<bool>, bool> is_served;  // by which batches a task may run in
  const size_t num_sizes = problem.batch_sizes.size();
  std::vector<bool> runs(static_cast<size_t>(problem.num_devices) * num_sizes);
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (size_t index = 0; index < runs.size(); ++index) {
      const int device = static_cast<int>(index / num_sizes);
      const int size = problem.batch_sizes[index % num_sizes];
      runs[index] = problem.BatchRun(task, device, size) != model::kImpossible;
    }
    const auto [known, is_new] = is_served.emplace(runs, false);
    if (is_new) {
      Sums sums(num_items);
      for (size_t index = 0; index < runs.size(); index += num_sizes) {
        const Sums before = sums;
        for (size_t size = 0; size < num_sizes; ++size) {
          if (runs[index + size]) sums.AddShifted(before, problem.batch_sizes[size]);
        }
      }
      known->second = sums.Has(num_items);
    }
    if (!known->second) unserved.push_back(task);
  }
  return unserved;
}

void SortByTimePerItem(const model::Problem& problem, int task,
                       std::vector<Composition>& compositions) {
  std::vector<std::pair<std::vector<double>, Composition>> timed;
  timed.reserve(compositions.size());
  for (Composition& parts : compositions) {
    timed.emplace_back(TimesPerItem(problem, task, parts), std::move(parts));
  }
  std::ranges::stable_sort(
      timed, [](const auto& left, const auto& right) { return left.first < right.first; });
  for (size_t index = 0; index < timed.size(); ++index) {
    compositions[index] = std::move(timed[index].second);
  }
}

}  // namespace heteroplace::throughput
