#include "search/horizon.h"

#include <algorithm>

namespace heteroplace {

namespace {

/*! \brief A task, or a copy with an id behind those of the tasks. */
struct Node {
  int64_t start_ns;
  int position;
  int id;
};

}  // namespace

void Tails::Find(std::span<const int64_t> finish_ns, std::span<const ScheduledCopy> copies,
                 std::span<const int> copy_position) {
  const int num_tasks = piece_.num_tasks;
  std::vector<Node> nodes;
  nodes.reserve(static_cast<size_t>(num_tasks) + copies.size());
  for (int task = 0; task < num_tasks; ++task) {
    const int64_t run = piece_.Run(task, arrangement_.device()[task]);
    nodes.push_back({finish_ns[task] - run, arrangement_.position()[task], task});
  }
  for (size_t copy = 0; copy < copies.size(); ++copy) {
    nodes.push_back(
        {copies[copy].start_ns, copy_position[copy], num_tasks + static_cast<int>(copy)});
  }
  // Latest first; of what starts at once first what was decided last, and a task after its copies.
  std::sort(nodes.begin(), nodes.end(), [num_tasks](const Node& left, const Node& right) {
    if (left.start_ns != right.start_ns) return left.start_ns > right.start_ns;
    if (left.position != right.position) return left.position > right.position;
    const bool is_left_copy = left.id >= num_tasks, is_right_copy = right.id >= num_tasks;
    if (is_left_copy != is_right_copy) return is_right_copy;
    return left.id > right.id;
  });
  task_tail_ns_.assign(static_cast<size_t>(num_tasks), 0);
  uses_.assign(static_cast<size_t>(problem_.num_resources), {});
  std::vector<int64_t> next_ns(static_cast<size_t>(problem_.num_resources), 0);
  std::vector<int64_t> read_ns(static_cast<size_t>(piece_.num_tensors) * piece_.num_memories, 0);
  std::vector<int64_t> copied_ns(static_cast<size_t>(piece_.num_tensors), 0);
  const auto slot = [this](int tensor, int memory) {
    return static_cast<size_t>(tensor) * piece_.num_memories + static_cast<size_t>(memory);
  };
  const auto use = [&](std::span<const int> resources, const Node& node, int64_t finish,
                       int64_t behind) {
    for (int resource : resources) behind = std::max(behind, next_ns[resource]);
    const int64_t tail = finish - node.start_ns + behind;
    for (int resource : resources) {
      next_ns[resource] = tail;
      uses_[resource].push_back({node.start_ns, finish, node.position, tail});
    }
    return tail;
  };
  for (const Node& node : nodes) {
    if (node.id < num_tasks) {
      const int task = node.id;
      const int device = arrangement_.device()[task];
      const int memory = problem_.device_memory[device];
      int64_t behind = 0;
      for (int tensor : piece_.makes[task]) {
        behind = std::max({behind, read_ns[slot(tensor, memory)], copied_ns[tensor]});
      }
      const int64_t tail = use(problem_.device_units[device], node, finish_ns[task], behind);
      task_tail_ns_[task] = tail;
      for (int tensor : piece_.reads[task]) {
        int64_t& read = read_ns[slot(tensor, memory)];
        read = std::max(read, tail);
      }
    } else {
      const ScheduledCopy& copy = copies[static_cast<size_t>(node.id - num_tasks)];
      const int64_t tail = use(problem_.route_resources[problem_.Pair(copy.src, copy.dst)], node,
                               copy.finish_ns, read_ns[slot(copy.tensor, copy.dst)]);
      copied_ns[copy.tensor] = std::max(copied_ns[copy.tensor], tail);
    }
  }
}

Horizon Tails::At(int position) const {
  Horizon horizon;
  horizon.position = position;
  for (const std::vector<Use>& uses : uses_) {
    // What comes behind all that was decided before the position.
    int64_t end = 0;
    for (const Use& use : uses) {
      if (use.position < position) end = std::max(end, use.finish_ns);
    }
    int64_t tail = Horizon::kUnused;
    for (const Use& use : uses) {
      if (use.start_ns < end) break;
      if (use.position >= position) tail = use.tail_ns;
    }
    horizon.resource_tail_ns.push_back(tail);
  }
  std::vector<int64_t> tail_ns(piece_.num_memories, Horizon::kUnused);
  for (int tensor = 0; tensor < piece_.num_tensors; ++tensor) {
    const int producer = piece_.producer[tensor];
    if (producer < 0 || arrangement_.position()[producer] >= position) continue;
    std::fill(tail_ns.begin(), tail_ns.end(), Horizon::kUnused);
    for (int reader : piece_.readers[tensor]) {
      if (arrangement_.position()[reader] < position) continue;
      int64_t& tail = tail_ns[problem_.device_memory[arrangement_.device()[reader]]];
      tail = std::max(tail, task_tail_ns_[reader]);
    }
    for (size_t memory = 0; memory < tail_ns.size(); ++memory) {
      if (tail_ns[memory] == Horizon::kUnused) continue;
      horizon.waiting.push_back({tensor, static_cast<int>(memory), tail_ns[memory]});
    }
  }
  for (int tensor : piece_.host_outputs) {
    if (arrangement_.position()[piece_.producer[tensor]] < position) {
      horizon.waiting.push_back({tensor, problem_.host, 0});
    }
  }
  return horizon;
}

}  // namespace heteroplace
