#include "parts/throughput/steady_state/elimination.h"

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <utility>

namespace heteroplace::throughput {

namespace {

/*! \brief Largest and smallest limit of the entries of one table, its variable included. */
constexpr int64_t kMaxEntries = 1 << 16;
constexpr int64_t kMinEntries = 1 << 7;
/*! \brief Entries of a table, its variable included, up to which copies of it share factors. */
constexpr int64_t kMaxShared = 1 << 23;
/*! \brief Entries that all eliminations read, above which kMaxShared is the limit of one table. */
constexpr int64_t kManyReads = 1 << 27;
/*! \brief Sizes above are not told apart. */
constexpr int64_t kManyEntries = 1 << 24;

/*! \brief Eliminates the variables of one graph under one limit. */
class Planner {
 public:
  Planner(const FactorGraph& graph, int64_t max_entries, int64_t max_work)
      : graph_(graph),
        max_entries_(max_entries),
        max_work_(max_work),
        unary_(graph.domain.size()),
        wide_(graph.domain.size()),
        size_(graph.domain.size(), -1),
        is_done_(graph.domain.size(), 0) {
    for (const Factor& factor : graph.factors) Add(factor, -1);
  }

  /*! \brief Runs to the end; false as soon as the work is too much. */
  bool Run() {
    for (int variable = 0; variable < static_cast<int>(size_.size()); ++variable) Rank(variable);
    while (!queue_.empty()) {
      const auto [size, variable] = queue_.top();
      queue_.pop();
      if (is_done_[variable] != 0 || size != size_[variable]) continue;
      is_done_[variable] = 1;
      EliminateVariable(variable);
      if (plan_.work > max_work_) return false;
    }
    return true;
  }

  EliminationPlan Take() { return std::move(plan_); }

 private:
  struct Live {
    Factor factor;
    int maker;  // instance that made it; -1: a base factor
    bool is_alive = true;
  };
  /*! \brief Factors that one copy of a variable takes, with shares of them. */
  struct Bucket {
    std::vector<std::pair<int, double>> factors;
    std::vector<int> scope;  // sorted, without the variable
  };

  void Add(Factor factor, int maker) {
    const int id = static_cast<int>(live_.size());
    const bool is_wide = factor.scope.size() > 1;
    for (int variable : factor.scope) (is_wide ? wide_ : unary_)[variable].push_back(id);
    live_.push_back({std::move(factor), maker});
  }

  /*! \brief Variables of a scope and of a factor but one, sorted. */
  std::vector<int> Union(const std::vector<int>& scope, int id, int variable) const {
    std::vector<int> all = scope;
    for (int other : live_[id].factor.scope) {
      const auto at = std::ranges::lower_bound(all, other);
      if (other != variable && (at == all.end() || *at != other)) all.insert(at, other);
    }
    return all;
  }

  int64_t Entries(const std::vector<int>& scope, int variable) const {
    int64_t entries = graph_.domain[variable];
    for (int other : scope) entries = std::min(kManyEntries, entries * graph_.domain[other]);
    return entries;
  }

  /*! \brief Renews the size of a variable's table and its place in the queue. */
  void Rank(int variable) {
    std::vector<int>& ids = wide_[variable];
    std::erase_if(ids, [this](int id) { return !live_[id].is_alive; });
    std::vector<int> scope;
    int64_t entries = graph_.domain[variable];
    for (int id : ids) {
      scope = Union(scope, id, variable);
      entries = Entries(scope, variable);
      if (entries >= kManyEntries) break;
    }
    if (entries == size_[variable]) return;
    size_[variable] = entries;
    queue_.emplace(entries, variable);
  }

  void EliminateVariable(int variable) {
    std::vector<Bucket> buckets = Split(variable, true);
    // Many sets of memories at one task, 127 values each, would make a table that no memory holds.
    const int64_t most = plan_.work > kManyReads ? max_entries_ : kMaxShared;
    const bool is_too_large = std::ranges::any_of(
        buckets, [&](const Bucket& one) { return Entries(one.scope, variable) > most; });
    if (is_too_large) buckets = Split(variable, false);
    plan_.is_exact = plan_.is_exact && buckets.size() == 1;
    std::vector<int> neighbours;
    for (const Bucket& bucket : buckets) {
      for (const auto& [id, scale] : bucket.factors) live_[id].is_alive = false;
      neighbours.insert(neighbours.end(), bucket.scope.begin(), bucket.scope.end());
    }
    for (const Bucket& bucket : buckets) Emit(variable, bucket);
    std::ranges::sort(neighbours);
    neighbours.erase(std::ranges::unique(neighbours).begin(), neighbours.end());
    for (int other : neighbours) Rank(other);
  }

  /*!
   * \brief Factors of a variable in parts whose tables stay below the limit, but for what all parts
   * share; where nothing but factors of the variable alone is shared the value is lower.
   */
  std::vector<Bucket> Split(int variable, bool shares) {
    std::vector<int> shared, own;
    for (int id : unary_[variable]) shared.push_back(id);
    for (int id : wide_[variable]) {
      if (!live_[id].is_alive) continue;
      (shares && live_[id].factor.is_shared ? shared : own).push_back(id);
    }
    std::ranges::stable_sort(own, [this](int a, int b) {
      return live_[a].factor.scope.size() > live_[b].factor.scope.size();
    });
    // What all parts share counts in each.
    std::vector<int> common;
    for (int id : shared) common = Union(common, id, variable);
    std::vector<Bucket> buckets;
    for (int id : own) {
      Bucket* chosen = nullptr;
      for (Bucket& bucket : buckets) {
        if (Entries(Union(bucket.scope, id, variable), variable) <= max_entries_) {
          chosen = &bucket;
          break;
        }
      }
      if (chosen == nullptr) chosen = &buckets.emplace_back(Bucket{{}, common});
      chosen->factors.emplace_back(id, 1.0);
      chosen->scope = Union(chosen->scope, id, variable);
    }
    if (buckets.empty()) buckets.push_back({{}, common});
    const double part = 1.0 / static_cast<double>(buckets.size());
    for (Bucket& bucket : buckets) {
      for (int id : shared) bucket.factors.emplace_back(id, part);
    }
    return buckets;
  }

  /*! \brief Plans one elimination and adds the factor that it makes. */
  void Emit(int variable, const Bucket& bucket) {
    const int instance = static_cast<int>(plan_.instances.size());
    Elimination step;
    std::vector<int> local = bucket.scope;
    local.push_back(variable);
    for (int v : local) step.domain.push_back(graph_.domain[v]);
    for (size_t i = 0; i + 1 < step.domain.size(); ++i) step.size *= step.domain[i];
    for (const auto& [id, share] : bucket.factors) {
      Live& live = live_[id];
      Elimination::Input input{live.factor.table, live.factor.scale * share,
                               std::vector<int>(local.size(), 0)};
      int stride = 1;
      for (size_t i = live.factor.scope.size(); i-- > 0;) {
        const int v = live.factor.scope[i];
        const auto at = std::ranges::find(local, v);
        input.strides[static_cast<size_t>(at - local.begin())] = stride;
        stride *= graph_.domain[v];
      }
      step.inputs.push_back(std::move(input));
      if (live.maker >= 0 && plan_.instances[live.maker].parent < 0) {
        plan_.instances[live.maker].parent = instance;
      }
    }
    const int index = Intern(std::move(step));
    plan_.instances.push_back({index, variable, -1, bucket.scope});
    if (bucket.scope.empty()) {
      plan_.eliminations[index].multiplicity += 1;
      return;
    }
    Add({static_cast<int>(graph_.tables.size()) + index, 1.0, bucket.scope}, instance);
  }

  /*! \brief The position of an equal elimination, or of this new one. */
  int Intern(Elimination step) {
    using Input = Elimination::Input;
    std::ranges::sort(step.inputs, [](const Input& a, const Input& b) {
      return std::tie(a.table, a.scale, a.strides) < std::tie(b.table, b.scale, b.strides);
    });
    std::vector<double> key(step.domain.begin(), step.domain.end());
    for (const Input& input : step.inputs) {
      key.push_back(input.table);
      key.push_back(input.scale);
      key.insert(key.end(), input.strides.begin(), input.strides.end());
    }
    key.push_back(static_cast<double>(step.domain.size()));
    const auto [found, is_new] =
        known_.emplace(std::move(key), static_cast<int>(plan_.eliminations.size()));
    if (is_new) {
      plan_.work += static_cast<int64_t>(step.size) * step.domain.back() *
                    static_cast<int64_t>(step.inputs.size());
      plan_.eliminations.push_back(std::move(step));
    }
    return found->second;
  }

  const FactorGraph& graph_;
  const int64_t max_entries_;
  const int64_t max_work_;
  std::vector<Live> live_;
  std::vector<std::vector<int>> unary_;  // [num_variables], ids of live factors over it alone
  std::vector<std::vector<int>> wide_;   // [num_variables], over it and others, some dead
  std::vector<int64_t> size_;            // [num_variables], entries of its table
  std::vector<uint8_t> is_done_;         // [num_variables]
  std::priority_queue<std::pair<int64_t, int>, std::vector<std::pair<int64_t, int>>,
                      std::greater<>>
      queue_;  // (size, variable), some out of date
  std::map<std::vector<double>, int> known_;
  EliminationPlan plan_;
};

}  // namespace

EliminationPlan EliminationPlan::Make(const FactorGraph& graph, int64_t max_work) {
  for (int64_t entries = kMaxEntries;; entries /= 8) {
    const bool is_last = entries <= kMinEntries;
    Planner planner(graph, entries, is_last ? std::numeric_limits<int64_t>::max() : max_work);
    if (planner.Run()) return planner.Take();
  }
}

}  // namespace heteroplace::throughput
