#include "parts/throughput/steady_state/ideals.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "parts/throughput/steady_state/ideal_graph.h"

namespace heteroplace::throughput {

namespace {

constexpr int64_t kNoLoad = std::numeric_limits<int64_t>::max();
constexpr double kLimitGrowth = 1.15;  // from one limit of the load to the next
constexpr int kMaxLimits = 80;
constexpr double kMaxLimit = 4e18;  // ns, less than the largest int64_t
constexpr size_t kMaxUses = 256;    // numbers of devices in use, by kind

/*! \brief Devices that are alike: one of them stands for all. */
struct DeviceKind {
  std::vector<int> devices;
  int other = -1;              // a memory that copies come from and go to; -1: none
  bool copies_occupy = false;  // the device
  int64_t room_bytes = 0;      // for weights and tensors
};

class IdealProgram {
 public:
  IdealProgram(const model::Problem& problem, const IdealOptions& options)
      : problem_(problem), options_(options), graph_(problem) {
    FindKinds();
  }

  IdealSplit Run() {
    IdealSplit split;
    if (kinds_.empty() || num_uses_ > kMaxUses || !graph_.FindIdeals(options_.max_ideals)) {
      return split;
    }
    split.num_ideals = static_cast<int>(graph_.ideals.size());
    SumUp();
    const int64_t least = LeastLoad();
    if (least == kNoLoad) return split;
    auto limit = static_cast<double>(std::max<int64_t>(1, least));
    for (int round = 0; round < kMaxLimits; ++round, limit *= kLimitGrowth) {
      if (!FindStages(static_cast<int64_t>(std::min(limit, kMaxLimit)))) return split;
      const size_t last = (graph_.ideals.size() - 1) * num_uses_;
      const auto best =
          std::min_element(load_ns_.begin() + static_cast<std::ptrdiff_t>(last), load_ns_.end());
      if (*best == kNoLoad) continue;
      split.load_ns = *best;
      split.device = Devices(static_cast<size_t>(best - load_ns_.begin()));
      return split;
    }
    return split;
  }

 private:
  void FindKinds() {
    std::map<std::vector<int64_t>, size_t> known;
    std::set<int> units;
    const int64_t workspace =
        problem_.workspace_bytes.empty() ? 0 : *std::ranges::max_element(problem_.workspace_bytes);
    for (int device = 0; device < problem_.num_devices; ++device) {
      const auto own = problem_.device_units[device];
      const bool is_taken =
          std::ranges::any_of(own, [&](int unit) { return units.count(unit) > 0; });
      if (is_taken) continue;
      units.insert(own.begin(), own.end());
      const int memory = problem_.device_memory[device];
      std::vector<int64_t> key{problem_.memory_bytes[memory], problem_.base_bytes[memory]};
      for (int task = 0; task < problem_.num_tasks; ++task) {
        key.push_back(problem_.Run(task, device));
      }
      const auto [found, is_new] = known.emplace(std::move(key), kinds_.size());
      if (is_new) {
        kinds_.emplace_back();
        kinds_.back().room_bytes =
            problem_.memory_bytes[memory] - problem_.base_bytes[memory] - workspace;
      }
      kinds_[found->second].devices.push_back(device);
    }
    for (DeviceKind& kind : kinds_) {
      use_stride_.push_back(num_uses_);
      // Not beyond what Run refuses: of many kinds the product would overflow.
      num_uses_ = std::min(num_uses_ * (kind.devices.size() + 1), kMaxUses + 1);
      FindOther(kind);
    }
  }

  /*! \brief Where copies come from: from like devices first. */
  void FindOther(DeviceKind& kind) {
    const int memory = problem_.device_memory[kind.devices[0]];
    std::vector<int> others = kind.devices;
    for (int device = 0; device < problem_.num_devices; ++device) others.push_back(device);
    for (int device : others) {
      const int other = problem_.device_memory[device];
      const int pair = problem_.Pair(memory, other);
      if (other == memory || problem_.way_of[static_cast<size_t>(pair)] < 0) continue;
      kind.other = other;
      for (int resource : problem_.route_resources[pair]) {
        for (int unit : problem_.device_units[kind.devices[0]]) {
          kind.copies_occupy = kind.copies_occupy || unit == resource;
        }
      }
      return;
    }
  }

  /*! \brief Run times and bytes of all tasks of each ideal, and the tensors that pass its border.
   */
  void SumUp() {
    const size_t kinds = kinds_.size();
    run_ns_.assign(graph_.ideals.size() * kinds, 0);
    num_bad_.assign(graph_.ideals.size() * kinds, 0);
    copy_ns_.clear();
    for (const IdealGraph::Passed& passed : graph_.passed) {
      for (const DeviceKind& kind : kinds_) {
        const int memory = problem_.device_memory[kind.devices[0]];
        const int64_t time =
            kind.other < 0 ? 0 : problem_.Transfer(passed.tensor, memory, kind.other);
        copy_ns_.push_back(std::max<int64_t>(0, time));
      }
    }
    held_bytes_.assign(graph_.ideals.size(), 0);
    passing_.assign(graph_.ideals.size(), {});
    for (size_t ideal = 0; ideal < graph_.ideals.size(); ++ideal) {
      for (const auto& [node, larger] : graph_.grown[ideal]) AddNode(ideal, node, larger);
    }
  }

  void AddNode(size_t ideal, int node, int larger) {
    const size_t kinds = kinds_.size();
    const auto to = static_cast<size_t>(larger);
    int64_t bytes = held_bytes_[ideal];
    for (int task : graph_.tasks[node]) {
      bytes += problem_.weight_bytes[task];
      for (int tensor : problem_.task_makes[task]) bytes += problem_.tensor_bytes[tensor];
    }
    held_bytes_[to] = bytes;
    for (size_t kind = 0; kind < kinds; ++kind) {
      int64_t run = run_ns_[ideal * kinds + kind];
      int bad = num_bad_[ideal * kinds + kind];
      for (int task : graph_.tasks[node]) {
        const int64_t one = problem_.Run(task, kinds_[kind].devices[0]);
        run += std::max<int64_t>(0, one);
        bad += one == model::kImpossible ? 1 : 0;
      }
      run_ns_[to * kinds + kind] = run;
      num_bad_[to * kinds + kind] = bad;
    }
    if (!passing_[to].empty()) return;
    std::set<int> candidates(passing_[ideal].begin(), passing_[ideal].end());
    candidates.insert(graph_.touched_by[node].begin(), graph_.touched_by[node].end());
    for (int id : candidates) {
      if (graph_.Passes(id, larger)) passing_[to].push_back(id);
    }
  }

  /*! \brief No split has a smaller load; kNoLoad: there is none, as no device takes some node. */
  int64_t LeastLoad() const {
    int64_t total = 0, largest = 0;
    for (const auto& tasks : graph_.tasks) {
      int64_t least = kNoLoad;
      for (const DeviceKind& kind : kinds_) {
        int64_t run = 0;
        for (int task : tasks) {
          const int64_t one = problem_.Run(task, kind.devices[0]);
          run = one == model::kImpossible || run == kNoLoad ? kNoLoad : run + one;
        }
        least = std::min(least, run);
      }
      if (least == kNoLoad) return kNoLoad;
      total += least;
      largest = std::max(largest, least);
    }
    size_t devices = 0;
    for (const DeviceKind& kind : kinds_) devices += kind.devices.size();
    return std::max(largest, total / static_cast<int64_t>(devices));
  }

  /*! \brief Best loads with all stages up to a limit; false: there are too many stages. */
  bool FindStages(int64_t limit_ns) {
    load_ns_.assign(graph_.ideals.size() * num_uses_, kNoLoad);
    from_.assign(load_ns_.size(), {-1, -1});
    load_ns_[0] = 0;
    std::vector<int> seen(graph_.ideals.size(), -1), front;
    for (int begin = 0; begin < static_cast<int>(graph_.ideals.size()); ++begin) {
      const auto row = load_ns_.begin() + static_cast<std::ptrdiff_t>(begin * num_uses_);
      if (std::all_of(row, row + static_cast<std::ptrdiff_t>(num_uses_),
                      [](int64_t load) { return load == kNoLoad; })) {
        continue;
      }
      front.assign(1, begin);
      seen[begin] = begin;
      for (size_t at = 0; at < front.size(); ++at) {
        for (const auto& [node, larger] : graph_.grown[front[at]]) {
          if (seen[larger] == begin) continue;
          seen[larger] = begin;
          if (++num_stages_ > options_.max_stages) return false;
          if (UseStage(begin, larger, limit_ns)) front.push_back(larger);
        }
      }
    }
    return true;
  }

  /*! \brief Goes from an ideal to a larger one in one stage; false: no larger stage can do. */
  bool UseStage(int begin, int end, int64_t limit_ns) {
    const size_t kinds = kinds_.size();
    const auto from = static_cast<size_t>(begin), to = static_cast<size_t>(end);
    const int64_t held = held_bytes_[to] - held_bytes_[from];
    bool may_grow = false, is_counted = false;
    for (size_t kind = 0; kind < kinds; ++kind) {
      const int64_t run = run_ns_[to * kinds + kind] - run_ns_[from * kinds + kind];
      const bool fits = num_bad_[to * kinds + kind] == num_bad_[from * kinds + kind] &&
                        run <= limit_ns && held <= kinds_[kind].room_bytes;
      if (!fits) continue;
      may_grow = true;
      if (!is_counted) CountCopies(from, to);
      is_counted = true;
      if (held + read_bytes_ > kinds_[kind].room_bytes) continue;
      const int64_t copies = read_ns_[kind] + sent_ns_[kind];
      const int64_t load = kinds_[kind].copies_occupy
                               ? run + copies
                               : std::max({run, read_ns_[kind], sent_ns_[kind]});
      if (load <= limit_ns) Relax(from, to, kind, load);
    }
    return may_grow;
  }

  /*! \brief Copies to and from the tasks between two ideals. */
  void CountCopies(size_t from, size_t to) {
    read_ns_.assign(kinds_.size(), 0);
    sent_ns_.assign(kinds_.size(), 0);
    read_bytes_ = 0;
    for (int id : passing_[to]) CountCopy(id, from, to);
    for (int id : passing_[from]) {
      if (!graph_.Passes(id, static_cast<int>(to))) CountCopy(id, from, to);
    }
  }

  void CountCopy(int id, size_t from, size_t to) {
    const IdealGraph::Passed& tensor = graph_.passed[id];
    const auto is_between = [&](int node) {
      return Has(graph_.ideals[to], node) && !Has(graph_.ideals[from], node);
    };
    const bool is_made = is_between(tensor.producer);
    const bool is_copied =
        std::ranges::any_of(tensor.readers, [&](int node) { return is_between(node) != is_made; });
    if (!is_copied) return;
    std::vector<int64_t>& times = is_made ? sent_ns_ : read_ns_;
    for (size_t kind = 0; kind < kinds_.size(); ++kind)
      times[kind] += copy_ns_[static_cast<size_t>(id) * kinds_.size() + kind];
    if (!is_made) read_bytes_ += problem_.tensor_bytes[tensor.tensor];
  }

  void Relax(size_t from, size_t to, size_t kind, int64_t load) {
    const size_t stride = use_stride_[kind];
    const size_t most = kinds_[kind].devices.size();
    for (size_t use = 0; use < num_uses_; ++use) {
      const int64_t before = load_ns_[from * num_uses_ + use];
      if (before == kNoLoad || use / stride % (most + 1) == most) continue;
      const size_t target = to * num_uses_ + use + stride;
      if (std::max(before, load) >= load_ns_[target]) continue;
      load_ns_[target] = std::max(before, load);
      from_[target] = {static_cast<int>(from), static_cast<int>(kind)};
    }
  }

  /*! \brief The devices of the stages that led to a state. */
  std::vector<int> Devices(size_t state) const {
    std::vector<int> device(static_cast<size_t>(problem_.num_tasks), -1);
    std::vector<size_t> used(kinds_.size(), 0);
    while (from_[state].first >= 0) {
      const auto [from, kind] = from_[state];
      const size_t to = state / num_uses_;
      const int chosen = kinds_[kind].devices[used[kind]++];
      for (size_t node = 0; node < graph_.tasks.size(); ++node) {
        const int id = static_cast<int>(node);
        if (!Has(graph_.ideals[to], id) || Has(graph_.ideals[from], id)) continue;
        for (int task : graph_.tasks[node]) device[task] = chosen;
      }
      state = static_cast<size_t>(from) * num_uses_ + state % num_uses_ - use_stride_[kind];
    }
    return device;
  }

  const model::Problem& problem_;
  const IdealOptions& options_;
  IdealGraph graph_;
  std::vector<DeviceKind> kinds_;
  std::vector<size_t> use_stride_;  // [num_kinds], of one device more in use
  size_t num_uses_ = 1;
  std::vector<int64_t> copy_ns_;           // [num_passed][num_kinds]
  std::vector<int64_t> run_ns_;            // [num_ideals][num_kinds]
  std::vector<int> num_bad_;               // [num_ideals][num_kinds], tasks that cannot run there
  std::vector<int64_t> held_bytes_;        // [num_ideals], weights and what is made
  std::vector<std::vector<int>> passing_;  // [num_ideals], tensors with ends on both sides
  std::vector<int64_t> load_ns_;           // [num_ideals][num_uses]
  std::vector<std::pair<int, int>> from_;  // [num_ideals][num_uses], (ideal, kind of the stage)
  int64_t num_stages_ = 0;
  // Of CountCopies.
  std::vector<int64_t> read_ns_, sent_ns_;  // [num_kinds]
  int64_t read_bytes_ = 0;
};

}  // namespace

IdealSplit BestIdealSplit(const model::Problem& problem, const IdealOptions& options) {
  if (problem.num_tasks == 0) return {};
  return IdealProgram(problem, options).Run();
}

}  // namespace heteroplace::throughput
