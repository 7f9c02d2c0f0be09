#include "search/evaluate/horizon.h"

#include <algorithm>
#include <ranges>
#include <utility>

namespace heteroplace::search {

namespace {

/*! \brief A task, or a copy with an id behind those of the tasks. */
struct Node {
  int64_t start_ns;
  int position;
  int id;
};

/*! \brief Latest first; of what starts at once what was decided last, a task after its copies. */
void SortFromTheEnd(std::vector<Node>& nodes, int num_tasks) {
  std::ranges::sort(nodes, [num_tasks](const Node& left, const Node& right) {
    if (left.start_ns != right.start_ns) return left.start_ns > right.start_ns;
    if (left.position != right.position) return left.position > right.position;
    const bool is_left_copy = left.id >= num_tasks, is_right_copy = right.id >= num_tasks;
    if (is_left_copy != is_right_copy) return is_right_copy;
    return left.id > right.id;
  });
}

}  // namespace

void Tails::Find(std::span<const int64_t> finish_ns, std::span<const model::ScheduledCopy> copies,
                 std::span<const int> copy_position) {
  const int num_tasks = module_.num_tasks;
  std::vector<Node> nodes;
  nodes.reserve(static_cast<size_t>(num_tasks) + copies.size());
  for (int task = 0; task < num_tasks; ++task) {
    const int64_t run = module_.Run(task, arrangement_.device()[task]);
    nodes.push_back({finish_ns[task] - run, arrangement_.position()[task], task});
  }
  for (size_t copy = 0; copy < copies.size(); ++copy) {
    nodes.push_back(
        {copies[copy].start_ns, copy_position[copy], num_tasks + static_cast<int>(copy)});
  }
  SortFromTheEnd(nodes, num_tasks);
  task_tail_ns_.assign(static_cast<size_t>(num_tasks), 0);
  copy_tail_.Clear();
  uses_.assign(static_cast<size_t>(problem_.num_resources), {});
  // Behind the arrival of a tensor in a memory.
  PairTable<int64_t> read_ns(module_.num_tensors, module_.num_memories);
  std::vector<int64_t> copied_ns(static_cast<size_t>(module_.num_tensors), 0);
  for (const Node& node : nodes) {
    if (node.id >= num_tasks) {
      const size_t index = static_cast<size_t>(node.id - num_tasks);
      const model::ScheduledCopy& copy = copies[index];
      const int64_t tail = AddUse(
          problem_.route_resources[problem_.Pair(copy.src, copy.dst)],
          {copy.start_ns, copy.finish_ns, node.position, read_ns.Get(copy.tensor, copy.dst)});
      copy_tail_[copy_tail_.Row(copy.tensor, copy.dst)] = {copy.src, node.position, tail};
      copied_ns[copy.tensor] = std::max(copied_ns[copy.tensor], tail);
      continue;
    }
    const int task = node.id;
    const int device = arrangement_.device()[task];
    const int home = problem_.device_memory[device];
    int64_t behind = 0;
    for (int tensor : module_.makes[task]) {
      behind = std::max(behind, copied_ns[tensor]);
      for (int reader : module_.readers[tensor]) {
        const int memory = problem_.device_memory[arrangement_.device()[reader]];
        if (NeedsNoCopy(tensor, home, memory)) behind = std::max(behind, task_tail_ns_[reader]);
      }
    }
    const int64_t tail = AddUse(problem_.device_units[device],
                                {node.start_ns, finish_ns[task], node.position, behind});
    task_tail_ns_[task] = tail;
    for (int tensor : module_.reads[task]) {
      int64_t& read = read_ns[read_ns.Row(tensor, home)];
      read = std::max(read, tail);
    }
  }
}

/*!
 * \brief Adds the use of resources, before all of those added so far; returns the time behind its
 * start.
 * \param use With the time behind its finish, but for later uses of the resources, as tail_ns.
 */
int64_t Tails::AddUse(std::span<const int> resources, const Use& use) {
  Use added = use;
  for (int resource : resources) {
    const std::vector<Use>& uses = uses_[resource];
    // One of no length that starts at the same time does not wait for this one.
    const auto next = std::ranges::find_if(std::views::reverse(uses), [&](const Use& later) {
      return later.start_ns >= use.finish_ns;
    });
    if (next != uses.rend()) added.tail_ns = std::max(added.tail_ns, next->tail_ns);
  }
  added.tail_ns += use.finish_ns - use.start_ns;
  for (int resource : resources) uses_[resource].push_back(added);
  return added.tail_ns;
}

/*! \brief Time behind the end of all uses of a resource that were decided before a position. */
int64_t Tails::ResourceTail(const std::vector<Use>& uses, int position) const {
  int64_t end = 0;
  for (const Use& use : uses) {
    if (use.position < position) end = std::max(end, use.finish_ns);
  }
  int64_t tail = Horizon::kUnused;
  for (const Use& use : uses) {
    if (use.start_ns < end) break;
    if (use.position >= position) tail = std::max(tail, use.tail_ns);
  }
  return tail;
}

Horizon Tails::At(int position) const {
  Horizon horizon;
  horizon.position = position;
  for (const std::vector<Use>& uses : uses_) {
    horizon.resource_tail_ns.push_back(ResourceTail(uses, position));
  }
  std::vector<uint8_t> is_sent(static_cast<size_t>(module_.num_tensors), 0);
  for (int tensor : module_.host_outputs) is_sent[tensor] = 1;
  std::vector<int64_t> tail_ns(module_.num_memories, Horizon::kUnused);
  std::vector<int> memories;  // that a tensor is needed in
  const auto need = [&](int memory, int64_t tail) {
    if (tail_ns[memory] == Horizon::kUnused) memories.push_back(memory);
    tail_ns[memory] = std::max(tail_ns[memory], tail);
  };
  for (int tensor = 0; tensor < module_.num_tensors; ++tensor) {
    const int producer = module_.producer[tensor];
    const bool is_later = producer >= 0 && arrangement_.position()[producer] >= position;
    memories.clear();
    for (int reader : module_.readers[tensor]) {
      if (arrangement_.position()[reader] < position) continue;
      need(problem_.device_memory[arrangement_.device()[reader]], task_tail_ns_[reader]);
    }
    if (is_sent[tensor] != 0) need(problem_.host, 0);
    std::ranges::sort(memories);
    for (int memory : memories) {
      const int64_t tail = std::exchange(tail_ns[memory], Horizon::kUnused);
      if (is_later) {
        const int home = arrangement_.Home(tensor);
        if (home != memory && NeedsNoCopy(tensor, home, memory)) ++horizon.num_unreachable;
        continue;
      }
      const CopyTail copy = copy_tail_.Get(tensor, memory);
      const bool is_copied = copy.src != Horizon::kNoCopy && copy.position >= position;
      horizon.waiting.push_back(
          {tensor, memory, tail, is_copied ? copy.src : Horizon::kNoCopy, copy.tail_ns});
    }
  }
  return horizon;
}

}  // namespace heteroplace::search
