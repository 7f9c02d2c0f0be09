#include "parts/throughput/batched/batch_search.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <ranges>
#include <span>
#include <string>
#include <utility>

#include "list/evaluate.h"
#include "parts/throughput/batched/batch_evaluator.h"
#include "parts/throughput/batched/batch_sizes.h"
#include "support/error.h"
#include "support/jobs.h"
#include "support/random.h"

namespace heteroplace::throughput {

namespace {

constexpr int kMovesPerTurn = 256;        // at one heat
constexpr int kTasksPerLook = 16'384;     // that are scheduled between two looks at the clock
constexpr double kMinHeat = 1e-5;         // of the first makespan
constexpr int kLongestWalk = 24;          // tasks changed alike in one move
constexpr double kViolationWeight = 1e3;  // ns for each byte over a memory

using Clock = std::chrono::steady_clock;

size_t Index(int index) { return static_cast<size_t>(index); }

/*! \brief Anneals one layout. */
class BatchAnnealer {
 public:
  BatchAnnealer(const model::Problem& problem, int num_items, const BatchSearchOptions& options)
      : problem_(problem),
        options_(options),
        num_items_(num_items),
        num_blocks_(num_items / options.block),
        random_(options.seed + 1),
        evaluate_(problem, num_items, options.block),
        sizes_(problem, options.block, num_blocks_) {
    for (int task = 0; task < problem.num_tasks; ++task) {
      if (Pin(task) != BatchPin::kDevices) movable_.push_back(task);
      devices_.push_back(sizes_.Devices(task));
    }
  }

  void Begin(const BatchLayout& first) {
    slots_.resize(Index(problem_.num_tasks));
    for (int task = 0; task < problem_.num_tasks; ++task) {
      std::vector<BatchSlot>& own = slots_[Index(task)];
      for (int block = 0; block < num_blocks_; ++block) {
        const int device = first.device[Index(task) * Index(num_blocks_) + Index(block)];
        const double key = first.key[Index(task) * Index(problem_.num_devices) + Index(device)];
        Place(own, device, uint64_t{1} << block, key);
      }
      const int leader = problem_.Colocated(task).front();
      const char* fault = nullptr;
      if (!IsAlike(slots_[Index(leader)], own)) fault = "other batches than those of its group";
      if (!sizes_.HasAll(task, own)) fault = "a batch that its device does not run";
      if (fault == nullptr) continue;
      throw Error(ErrorKind::kInfeasible, "task " + std::to_string(task) + " begins with " + fault);
    }
    is_joint_ = first.is_joint;
    value_ = Evaluate();
    evaluate_.SetKeys(slots_);
    KeepBest();
  }

  void Run(const std::function<bool(int64_t)>& poll) {
    const auto begin = Clock::now();
    const double first_heat = options_.first_heat * static_cast<double>(value_.makespan_ns);
    double heat = first_heat, polled_s = 0, seconds = 0;
    bool is_over = movable_.empty();
    const auto look = [&] {
      seconds = std::chrono::duration<double>(Clock::now() - begin).count();
      is_over = seconds >= options_.time_limit_s;
      // Not often: each time may wait for the interpreter's lock.
      if (!poll || seconds - polled_s < kHookSeconds) return;
      polled_s = seconds;
      if (poll(num_evaluations_)) is_over = true;
    };
    const int moves_per_look = kTasksPerLook / std::max(1, problem_.num_tasks) + 1;
    const auto has_more = [&] { return !is_over && num_evaluations_ < options_.max_evaluations; };
    while (has_more() && !IsProven()) {
      for (int move = 1; move <= kMovesPerTurn && has_more(); ++move) {
        Step(heat);
        if (move % moves_per_look == 0 || move == kMovesPerTurn) look();
      }
      const double progress =
          std::max(seconds / std::max(1e-9, options_.time_limit_s),
                   static_cast<double>(num_evaluations_) /
                       static_cast<double>(std::max<int64_t>(1, options_.max_evaluations)));
      heat = first_heat * std::pow(kMinHeat / options_.first_heat, std::min(1.0, progress));
    }
  }

  BatchSearchResult Result() {
    BatchSearchResult result;
    StepLog log;
    BatchSlots slots = best_;
    result.makespan_ns = evaluate_(slots, best_joint_, &log);
    result.violation = evaluate_.violation();
    result.steps = log.Sorted(problem_, num_items_);
    result.num_evaluations = num_evaluations_;
    result.layout.is_joint = best_joint_;
    result.layout.device.resize(Index(problem_.num_tasks) * Index(num_blocks_));
    result.layout.key.resize(Index(problem_.num_tasks) * Index(problem_.num_devices), 0.0);
    for (int task = 0; task < problem_.num_tasks; ++task) {
      for (const BatchSlot& slot : best_[Index(task)]) {
        result.layout.key[Index(task) * Index(problem_.num_devices) + Index(slot.device)] =
            slot.key;
        for (int block = 0; block < num_blocks_; ++block) {
          if ((slot.blocks >> block & 1) == 0) continue;
          result.layout.device[Index(task) * Index(num_blocks_) + Index(block)] = slot.device;
        }
      }
    }
    return result;
  }

 private:
  BatchPin Pin(int task) const {
    return options_.pins.empty() ? BatchPin::kFree : options_.pins[Index(task)];
  }

  list::Value Evaluate() {
    const int64_t makespan_ns = evaluate_(slots_, is_joint_);
    return {makespan_ns, evaluate_.violation()};
  }

  /*! \brief What annealing goes by: it may pass through layouts that lack a little memory. */
  static double CostOf(const list::Value& value) {
    return static_cast<double>(value.makespan_ns) +
           kViolationWeight * static_cast<double>(value.violation);
  }

  bool IsProven() const {
    return best_value_.violation == 0 && best_value_.makespan_ns <= options_.bound_ns;
  }

  void KeepBest() {
    best_ = slots_;
    best_value_ = value_;
    best_joint_ = is_joint_;
  }

  /*! \brief Changes a task, and perhaps some near it; false if nothing is new. */
  bool Move(int kind, int task) {
    if (kind < 4) return Rebalance(task);
    if (kind < 6) return Adopt(task, Neighbour(task));
    if (kind < 8) return AdoptAlong(task);
    if (kind < 10) return MoveAlong(task);
    if (kind == 10) return SwapBlocks(task);
    if (kind > 11) return Shift(task);
    if (random_.Below(64) != 0) return false;
    is_joint_ = !is_joint_;
    return true;
  }

  /*! \brief Makes a random change and keeps it if it is good, or sometimes if it is not. */
  void Step(double heat) {
    changed_.clear();
    const bool was_joint = is_joint_;
    const int task = movable_[Index(random_.Below(static_cast<int>(movable_.size())))];
    const bool is_new = Move(random_.Below(16), task);
    if (is_new) {
      ++num_evaluations_;
      const list::Value value = Evaluate();
      const double most = CostOf(value_) - heat * std::log(random_.Unit());
      const bool is_best = value < best_value_;
      if (is_best || CostOf(value) <= most) {
        value_ = value;
        evaluate_.SetKeys(slots_);
        if (is_best) KeepBest();
        return;
      }
    }
    is_joint_ = was_joint;
    for (auto& change : std::views::reverse(changed_)) {
      slots_[Index(change.first)].swap(change.second);
    }
    // Moves that led nowhere count a little, so that every budget of evaluations ends.
    if (!is_new && ++num_idle_ % 16 == 0) ++num_evaluations_;
  }

  /*! \brief The batches of a task, to be changed; what they were is kept. */
  std::vector<BatchSlot>& Change(int task) {
    changed_.emplace_back(task, slots_[Index(task)]);
    return slots_[Index(task)];
  }

  /*! \brief Gives a task, and its group, other batches; false, with nothing changed, if one of them
   * cannot have them. */
  bool Give(int task, const std::vector<BatchSlot>& batches) {
    const std::span<const int> tasks = problem_.Colocated(task);
    const auto may_have = [&](int member) { return MayHave(member, batches); };
    if (!std::ranges::all_of(tasks, may_have)) return false;
    for (int member : tasks) GiveOne(member, batches);
    return true;
  }

  bool MayHave(int task, const std::vector<BatchSlot>& batches) {
    if (!sizes_.HasAll(task, batches) || Pin(task) == BatchPin::kDevices) return false;
    return Pin(task) == BatchPin::kFree ||
           std::ranges::all_of(batches, [&](const BatchSlot& batch) {
             const BatchSlot* known = Find(slots_[Index(task)], batch.device);
             return known != nullptr && Size(*known) == Size(batch);
           });
  }

  void GiveOne(int task, const std::vector<BatchSlot>& batches) {
    std::vector<BatchSlot> next;
    for (const BatchSlot& batch : batches) {
      const BatchSlot* known = Find(slots_[Index(task)], batch.device);
      // Where it is new on a device it keeps the place in the order that the task had.
      const double key = known != nullptr ? known->key : slots_[Index(task)].front().key;
      next.push_back({batch.device, batch.blocks, key});
    }
    Change(task) = std::move(next);
  }

  /*! \brief A task that makes for or reads from this one; -1: there is none. */
  int Neighbour(int task) {
    const auto before = problem_.predecessors[task], after = problem_.successors[task];
    const int count = static_cast<int>(before.size() + after.size());
    if (count == 0) return -1;
    const auto at = Index(random_.Below(count));
    return at < before.size() ? before[at] : after[at - before.size()];
  }

  /*! \brief Some of `blocks`, those first that a neighbour has on `device`. */
  uint64_t Choose(int task, uint64_t blocks, int count, int device) {
    const int other = Neighbour(task);
    uint64_t preferred = 0;
    if (other >= 0) {
      for (const BatchSlot& slot : slots_[Index(other)]) {
        if (slot.device == device) preferred = slot.blocks & blocks;
      }
    }
    uint64_t chosen = 0;
    for (uint64_t from : {preferred, blocks & ~preferred}) {
      while (count > 0 && from != 0) {
        const uint64_t bit = RandomBit(from);
        chosen |= bit;
        from &= ~bit;
        --count;
      }
    }
    return chosen;
  }

  uint64_t RandomBit(uint64_t bits) {
    for (int skip = random_.Below(std::popcount(bits)); skip > 0; --skip) bits &= bits - 1;
    return bits & (~bits + 1);
  }

  /*! \brief Shares the items of two devices anew; one of them may have had none, or have none. */
  bool Rebalance(int task) {
    std::vector<BatchSlot> batches = slots_[Index(task)];
    const BatchSlot from = batches[Index(random_.Below(static_cast<int>(batches.size())))];
    const std::vector<int>& devices = devices_[Index(task)];
    const int device = devices[Index(random_.Below(static_cast<int>(devices.size())))];
    if (device == from.device) return false;
    const BatchSlot* known = Find(batches, device);
    const uint64_t theirs = known == nullptr ? 0 : known->blocks;
    const int total = Size(from) + std::popcount(theirs);
    int choices = 0, chosen = -1;
    for (int mine = 0; mine <= total; ++mine) {
      if (mine == Size(from) || !sizes_.Has(task, from.device, mine) ||
          !sizes_.Has(task, device, total - mine)) {
        continue;
      }
      if (random_.Below(++choices) == 0) chosen = mine;
    }
    if (chosen < 0) return false;
    uint64_t left = 0;
    if (chosen == std::popcount(theirs) && random_.Below(2) == 0) {
      left = theirs;
    } else if (chosen < Size(from)) {
      left = from.blocks & ~Choose(task, from.blocks, Size(from) - chosen, device);
    } else {
      left = from.blocks | Choose(task, theirs, chosen - Size(from), from.device);
    }
    std::vector<BatchSlot> next;
    for (const BatchSlot& batch : batches) {
      if (batch.device != device && batch.device != from.device) next.push_back(batch);
    }
    const uint64_t right = (from.blocks | theirs) & ~left;
    if (left != 0) next.push_back({from.device, left, 0.0});
    if (right != 0) next.push_back({device, right, 0.0});
    return Give(task, next);
  }

  /*! \brief Exchanges a block of one batch with one of another. */
  bool SwapBlocks(int task) {
    std::vector<BatchSlot> next = slots_[Index(task)];
    const int count = static_cast<int>(next.size());
    if (count < 2) return false;
    const int first = random_.Below(count), second = (first + 1 + random_.Below(count - 1)) % count;
    BatchSlot &one = next[Index(first)], &other = next[Index(second)];
    const uint64_t mine = Choose(task, one.blocks, 1, other.device);
    const uint64_t theirs = Choose(task, other.blocks, 1, one.device);
    one.blocks ^= mine | theirs;
    other.blocks ^= mine | theirs;
    return Give(task, next);
  }

  bool Adopt(int task, int other) {
    if (other < 0 || IsAlike(slots_[Index(task)], slots_[Index(other)])) return false;
    const std::vector<BatchSlot> theirs = slots_[Index(other)];
    return Give(task, theirs);
  }

  /*! \brief Some tasks, each next to one before it. */
  std::vector<int> Walk(int task) {
    std::vector<int> walked{task};
    for (int steps = 1 + random_.Below(kLongestWalk); steps > 0; --steps) {
      const int from = walked[Index(random_.Below(static_cast<int>(walked.size())))];
      const int next = Neighbour(from);
      if (next < 0 || Pin(next) == BatchPin::kDevices) continue;
      if (std::ranges::find(walked, next) == walked.end()) walked.push_back(next);
    }
    return walked;
  }

  /*! \brief Tasks near each other take the batches of one of them. */
  bool AdoptAlong(int task) {
    bool is_new = random_.Below(2) == 0 && Rebalance(task);
    for (int other : Walk(task)) {
      if (other != task) is_new = Adopt(other, task) || is_new;
    }
    return is_new;
  }

  /*! \brief What tasks near each other have on two devices changes places. */
  bool MoveAlong(int task) {
    const auto& own = slots_[Index(task)];
    const int src = own[Index(random_.Below(static_cast<int>(own.size())))].device;
    const std::vector<int>& devices = devices_[Index(task)];
    const int dst = devices[Index(random_.Below(static_cast<int>(devices.size())))];
    if (src == dst) return false;
    bool is_new = false;
    for (int other : Walk(task)) {
      std::vector<BatchSlot> next = slots_[Index(other)];
      bool is_there = false;
      for (BatchSlot& slot : next) {
        is_there = is_there || slot.device == src || slot.device == dst;
        slot.device = slot.device == src ? dst : slot.device == dst ? src : slot.device;
      }
      if (is_there) is_new = Give(other, next) || is_new;
    }
    return is_new;
  }

  /*! \brief A batch comes earlier or later. */
  bool Shift(int task) {
    std::vector<BatchSlot>& own = Change(task);
    BatchSlot& slot = own[Index(random_.Below(static_cast<int>(own.size())))];
    const int reach = 1 + random_.Below(1 << (1 + random_.Below(6)));
    slot.key += random_.Below(2) == 0 ? reach + 0.5 : -reach - 0.5;
    return true;
  }

  const model::Problem& problem_;
  const BatchSearchOptions& options_;
  const int num_items_;
  const int num_blocks_;
  Random random_;
  BatchEvaluator evaluate_;
  BatchSizes sizes_;
  std::vector<int> movable_;               // task ids
  std::vector<std::vector<int>> devices_;  // [num_tasks], that run some batch of it
  BatchSlots slots_;
  bool is_joint_ = false;
  list::Value value_;
  BatchSlots best_;
  bool best_joint_ = false;
  list::Value best_value_;
  int64_t num_evaluations_ = 0;
  int64_t num_idle_ = 0;
  std::vector<std::pair<int, std::vector<BatchSlot>>> changed_;
};

}  // namespace

BatchSearchResult SearchBatches(const model::Problem& problem, int num_items,
                                const BatchLayout& first, const BatchSearchOptions& options,
                                const std::function<bool(int64_t)>& poll) {
  BatchAnnealer annealer(problem, num_items, options);
  annealer.Begin(first);
  annealer.Run(poll);
  return annealer.Result();
}

}  // namespace heteroplace::throughput
