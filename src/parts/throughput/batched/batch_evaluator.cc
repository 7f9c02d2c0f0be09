#include "parts/throughput/batched/batch_evaluator.h"

#include <algorithm>
#include <bit>

#include "model/native_plan.h"

namespace heteroplace::throughput {

namespace {

/*! \brief Whether all items of all tasks in each memory at once could be too much. */
bool MayOverflow(const model::Problem& problem, int num_items) {
  int64_t most = problem.shared_base_bytes;
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    most += problem.tensor_bytes[tensor] * num_items;
  }
  for (int task = 0; task < problem.num_tasks; ++task) {
    most += problem.weight_bytes[task] * problem.num_devices +
            problem.workspace_bytes[task] * num_items * problem.num_devices;
  }
  return std::ranges::any_of(problem.memory_bytes, [most](int64_t bytes) { return bytes < most; });
}

}  // namespace

BatchEvaluator::BatchEvaluator(const model::Problem& problem, int num_items, int block)
    : problem_(problem),
      num_items_(num_items),
      block_(block),
      checks_memory_(MayOverflow(problem, num_items)),
      use_(problem, num_items),
      free_ns_(static_cast<size_t>(problem.num_resources), 0),
      there_(problem.num_tensors, static_cast<size_t>(problem.num_memories)),
      waits_(static_cast<size_t>(problem.num_tasks) * static_cast<size_t>(problem.num_devices)) {}

int64_t BatchEvaluator::operator()(BatchSlots& slots, bool is_joint, StepLog* log) {
  is_joint_ = is_joint;
  log_ = log;
  violation_ = makespan_ns_ = 0;
  std::ranges::fill(free_ns_, 0);
  for (size_t row : touched_) there_[row].clear();
  touched_.clear();
  if (checks_memory_) use_.Clear();
  const auto later = [](const Ready& left, const Ready& right) {
    if (left.key != right.key) return left.key > right.key;
    return left.task != right.task ? left.task > right.task : left.slot > right.slot;
  };
  ready_.clear();
  const auto devices = static_cast<size_t>(problem_.num_devices);
  for (int task = 0; task < problem_.num_tasks; ++task) {
    const auto& own = slots[static_cast<size_t>(task)];
    for (size_t slot = 0; slot < own.size(); ++slot) {
      int waits = 0;
      for (int before : problem_.predecessors[task]) {
        for (const BatchSlot& other : slots[static_cast<size_t>(before)]) {
          waits += static_cast<int>((other.blocks & own[slot].blocks) != 0);
        }
      }
      waits_[static_cast<size_t>(task) * devices + slot] = waits;
      if (waits == 0) ready_.push_back({own[slot].key, task, static_cast<int>(slot)});
    }
  }
  std::ranges::make_heap(ready_, later);
  order_.clear();
  while (!ready_.empty()) {
    std::ranges::pop_heap(ready_, later);
    const Ready next = ready_.back();
    ready_.pop_back();
    Add(slots, next.task, next.slot);
    order_.emplace_back(next.task, next.slot);
    const BatchSlot& done = slots[static_cast<size_t>(next.task)][static_cast<size_t>(next.slot)];
    for (int reader : problem_.successors[next.task]) {
      const auto& theirs = slots[static_cast<size_t>(reader)];
      for (size_t slot = 0; slot < theirs.size(); ++slot) {
        if ((theirs[slot].blocks & done.blocks) == 0) continue;
        if (--waits_[static_cast<size_t>(reader) * devices + slot] > 0) continue;
        ready_.push_back({theirs[slot].key, reader, static_cast<int>(slot)});
        std::ranges::push_heap(ready_, later);
      }
    }
  }
  if (problem_.host >= 0) {
    const uint64_t all = ~uint64_t{0} >> (64 - num_items_ / block_);
    for (int tensor : problem_.outputs) {
      makespan_ns_ = std::max(makespan_ns_, Bring(slots, tensor, problem_.host, all));
    }
  }
  if (checks_memory_) violation_ += use_.Overflow();
  return makespan_ns_;
}

void BatchEvaluator::SetKeys(BatchSlots& slots) const {
  double position = 0;
  for (const auto& [task, slot] : order_) {
    slots[static_cast<size_t>(task)][static_cast<size_t>(slot)].key = position++;
  }
}

void BatchEvaluator::Add(BatchSlots& slots, int task, int slot) {
  BatchSlot& batch = slots[static_cast<size_t>(task)][static_cast<size_t>(slot)];
  const int memory = problem_.device_memory[static_cast<size_t>(batch.device)];
  const int size = std::popcount(batch.blocks) * block_;
  int64_t start = 0;
  for (int tensor : problem_.task_reads[task]) {
    start = std::max(start, Bring(slots, tensor, memory, batch.blocks));
  }
  for (int unit : problem_.device_units[batch.device]) {
    start = std::max(start, free_ns_[static_cast<size_t>(unit)]);
  }
  batch.finish_ns = start + problem_.BatchRun(task, batch.device, size);
  for (int unit : problem_.device_units[batch.device]) {
    free_ns_[static_cast<size_t>(unit)] = batch.finish_ns;
  }
  makespan_ns_ = std::max(makespan_ns_, batch.finish_ns);
  if (checks_memory_) use_.AddBatch(task, batch.device, size, false);
  if (log_ != nullptr) {
    log_->Add({model::StepKind::kRun, task, batch.device, -1}, start, batch.finish_ns,
              ItemsOf(batch.blocks));
  }
}

int64_t BatchEvaluator::Bring(const BatchSlots& slots, int tensor, int memory, uint64_t blocks) {
  const int producer = problem_.producer[static_cast<size_t>(tensor)];
  if (producer < 0) {
    if (problem_.host < 0 || problem_.host == memory) return 0;
    return Copy(tensor, problem_.host, memory, 0, blocks);
  }
  int64_t ready = 0;
  for (const BatchSlot& source : slots[static_cast<size_t>(producer)]) {
    const uint64_t shared = source.blocks & blocks;
    if (shared == 0) continue;
    const int home = problem_.device_memory[static_cast<size_t>(source.device)];
    ready = std::max(ready, home == memory ? source.finish_ns
                                           : Copy(tensor, home, memory, source.finish_ns, shared));
  }
  return ready;
}

int64_t BatchEvaluator::Copy(int tensor, int src, int memory, int64_t made, uint64_t blocks) {
  const size_t row = there_.Row(tensor, memory);
  int64_t ready = made;
  for (const There& there : there_[row]) {
    if ((there.blocks & blocks) == 0) continue;
    ready = std::max(ready, there.time_ns);
    blocks &= ~there.blocks;
  }
  if (blocks == 0) return ready;
  const int pair = problem_.Pair(src, memory);
  if (problem_.way_of[static_cast<size_t>(pair)] < 0) {
    model::AddUnreachable(violation_);
    return ready;
  }
  if (there_[row].empty()) touched_.push_back(row);
  const int items = std::popcount(blocks) * block_;
  if (checks_memory_) use_.AddCopy(tensor, memory, items);
  const int64_t bytes = problem_.tensor_bytes[static_cast<size_t>(tensor)];
  const int64_t duration = is_joint_
                               ? problem_.TransferNs(problem_.route_links[pair], bytes * items)
                               : problem_.Transfer(tensor, src, memory);
  const auto resources = problem_.route_resources[pair];
  int64_t last = made;
  const auto move = [&](const std::vector<int>& members) {
    int64_t start = made;
    for (int resource : resources) start = std::max(start, free_ns_[static_cast<size_t>(resource)]);
    last = start + duration;
    for (int resource : resources) free_ns_[static_cast<size_t>(resource)] = last;
    if (log_ != nullptr) {
      log_->Add({model::StepKind::kCopy, tensor, memory, src}, start, last, members);
    }
  };
  if (is_joint_) {
    move(log_ == nullptr ? std::vector<int>{} : ItemsOf(blocks));
  } else if (log_ != nullptr) {
    for (int item : ItemsOf(blocks)) move({item});
  } else if (resources.empty()) {
    last = made + duration;  // nothing waits for anything
  } else {
    for (int item = 0; item < items; ++item) move({});
  }
  there_[row].push_back({blocks, last});
  return std::max(ready, last);
}

std::vector<int> BatchEvaluator::ItemsOf(uint64_t blocks) const {
  std::vector<int> items;
  for (int item = 0; item < num_items_; ++item) {
    if ((blocks >> (item / block_) & 1) != 0) items.push_back(item);
  }
  return items;
}

}  // namespace heteroplace::throughput
