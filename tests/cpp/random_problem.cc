#include "random_problem.h"

#include <algorithm>
#include <span>

#include "list/evaluate.h"

namespace heteroplace::test {

namespace {

bool Chance(Random& random, int percent) { return random.Below(100) < percent; }

int Between(Random& random, int low, int high) { return low + random.Below(high - low + 1); }

void AddTensor(model::Problem& problem, int producer, bool is_output, Random& random) {
  problem.tensor_bytes.push_back(Between(random, 0, 8));
  problem.producer.push_back(producer);
  problem.is_output.push_back(is_output ? 1 : 0);
}

/*! \brief Adds a task that reads the given tensors and makes some. */
void AddTask(model::Problem& problem, std::vector<int> reads, int num_made, Random& random) {
  std::sort(reads.begin(), reads.end());
  reads.erase(std::unique(reads.begin(), reads.end()), reads.end());
  const int task = problem.task_reads.num_rows();
  problem.task_reads.AddRow(reads);
  problem.weight_bytes.push_back(Between(random, 0, 20));
  for (int made = 0; made < num_made; ++made) AddTensor(problem, task, false, random);
}

/*! \brief A tensor that one of the latest tasks made; -1 if there is none. */
int LateTensor(const model::Problem& problem, int first_task, int reach, Random& random) {
  const int count = static_cast<int>(problem.producer.size());
  const int oldest = std::max(first_task, problem.task_reads.num_rows() - reach);
  int first = count;
  while (first > 0 && problem.producer[first - 1] >= oldest) --first;
  return first == count ? -1 : Between(random, first, count - 1);
}

void AddGraph(model::Problem& problem, const Shape& shape, Random& random) {
  const int num_inputs = random.Below(3);
  for (int input = 0; input < num_inputs; ++input) {
    AddTensor(problem, -1, Chance(random, 10), random);
  }
  const int count = Between(random, shape.min_tasks, shape.max_tasks);
  for (int task = 0; task < count; ++task) {
    std::vector<int> reads;
    for (int wanted = random.Below(4); wanted > 0; --wanted) {
      const int tensor = LateTensor(problem, 0, shape.reach, random);
      if (tensor >= 0) reads.push_back(tensor);
    }
    if (num_inputs > 0 && Chance(random, 10)) reads.push_back(random.Below(num_inputs));
    AddTask(problem, reads, Between(random, 0, 2), random);
  }
}

/*! \brief Reads of the tasks of a block, as (block-local task or -1: the cut before). */
struct Block {
  std::vector<std::vector<int>> reads;
};

Block MakeBlock(Random& random) {
  Block block;
  const int count = Between(random, 0, 4);
  for (int task = 0; task < count; ++task) {
    std::vector<int> reads;
    for (int wanted = random.Below(3); wanted > 0; --wanted) {
      if (task > 0) reads.push_back(random.Below(task));
    }
    if (reads.empty() || Chance(random, 20)) reads.push_back(-1);
    block.reads.push_back(reads);
  }
  return block;
}

/*! \brief Adds blocks of two kinds with a cut behind each; every task makes one tensor. */
void AddPath(model::Problem& problem, const Shape& shape, Random& random) {
  AddTensor(problem, -1, false, random);
  AddTask(problem, {0}, 1, random);
  int cut = 1;  // the tensor that the latest cut made
  const Block kinds[] = {MakeBlock(random), MakeBlock(random)};
  const int wanted = Between(random, shape.min_tasks, shape.max_tasks);
  while (problem.task_reads.num_rows() < wanted) {
    const Block& block = kinds[random.Below(2)];
    std::vector<int> made, sinks{cut};
    for (const std::vector<int>& reads : block.reads) {
      std::vector<int> tensors;
      for (int task : reads) tensors.push_back(task < 0 ? cut : made[task]);
      made.push_back(static_cast<int>(problem.producer.size()));
      AddTask(problem, tensors, 1, random);
    }
    for (int tensor : made) sinks.push_back(tensor);
    cut = static_cast<int>(problem.producer.size());
    // A block without inner tasks makes a modules.
    AddTask(problem, sinks, 1, random);
  }
  problem.is_output.back() = 1;
}

/*! \brief Groups of neighbours. */
void AddGroups(model::Problem& problem, const Shape& shape, Random& random) {
  const int count = problem.task_reads.num_rows();
  problem.task_group.assign(count, -1);
  if (!shape.has_groups || Chance(random, 50)) return;
  const int num_groups = 1 + random.Below(1 + count / 6);
  int group = 0;
  for (int wanted = 0; wanted < num_groups; ++wanted) {
    const int first = random.Below(count);
    bool is_used = false;
    for (int task = first; task < std::min(count, first + 4); ++task) {
      if (problem.task_group[task] >= 0 || !Chance(random, 60)) continue;
      problem.task_group[task] = group;
      is_used = true;
    }
    if (is_used) ++group;
  }
}

void AddDevices(model::Problem& problem, const Shape& shape, Random& random) {
  const int num_devices = Between(random, 1, shape.max_devices);
  const int num_memories = Between(random, 1, std::min(shape.max_memories, num_devices));
  const int num_units = Between(random, 1, num_devices + 1);
  problem.memory_bytes.assign(num_memories, 1'000'000);
  for (int device = 0; device < num_devices; ++device) {
    const int memory = device < num_memories ? device : random.Below(num_memories);
    problem.device_memory.push_back(memory);
    std::vector<int> units{device < num_units ? device : random.Below(num_units)};
    const int other = random.Below(num_units);
    if (other != units[0] && Chance(random, 25)) units.push_back(other);
    std::sort(units.begin(), units.end());
    problem.device_units.AddRow(units);
  }
  problem.host = Chance(random, 50) ? random.Below(num_memories) : -1;
}

/*! \brief One link for each ordered pair of memories, and routes over one or two of them. */
void AddLinks(model::Problem& problem, const Shape& shape, Random& random) {
  const int memories = static_cast<int>(problem.memory_bytes.size());
  const int units =
      *std::max_element(problem.device_units.values.begin(), problem.device_units.values.end()) + 1;
  const int kind = random.Below(5);
  for (int pair = 0; pair < memories * memories; ++pair) {
    std::vector<int> resources;
    const int mode = kind < 4 ? kind : random.Below(4);
    if (mode == 0) resources = {units + pair};                       // a channel of its own
    if (mode == 1) resources = {units};                              // a bus
    if (mode == 2) resources = {random.Below(units), units + pair};  // no copy engine
    if (Chance(random, 20)) resources.push_back(units + memories * memories);
    problem.link_resources.AddRow(resources);  // mode 3: mostly nothing
    problem.link_bandwidth.push_back(1'000'000'000 / Between(random, 1, 3));
    problem.link_latency_ns.push_back(Between(random, 0, 3));
  }
  for (int pair = 0; pair < memories * memories; ++pair) {
    std::vector<int> route;
    if (pair / memories != pair % memories) route.push_back(pair);
    if (!route.empty() && Chance(random, 30)) route.push_back(random.Below(memories * memories));
    if (shape.may_lack_routes && Chance(random, 10)) route.clear();
    problem.route_links.AddRow(route);
  }
}

/*! \brief Run times and workspace: those of a task with many equals are drawn from few values. */
void AddCosts(model::Problem& problem, const Shape& shape, Random& random) {
  const int count = problem.task_reads.num_rows();
  const size_t devices = problem.device_memory.size();
  const int workspace = shape.has_workspace && Chance(random, 50) ? 20 : 0;
  std::vector<std::vector<int64_t>> rows;
  for (int row = 0; row < (shape.is_path ? 2 : 1 + count); ++row) {
    rows.emplace_back();
    for (size_t device = 0; device < devices; ++device) {
      rows.back().push_back(Between(random, 0, shape.max_run_ns));
      if (Chance(random, 15)) rows.back().back() = model::kImpossible;
    }
    int64_t& sure = rows.back()[static_cast<size_t>(random.Below(static_cast<int>(devices)))];
    sure = std::max<int64_t>(sure, 1);
  }
  std::vector<int> row_of_group(static_cast<size_t>(count), -1);
  for (int task = 0; task < count; ++task) {
    int row = random.Below(static_cast<int>(rows.size()));
    if (problem.task_group[task] >= 0) {  // the same devices for all tasks of a group
      int& known = row_of_group[static_cast<size_t>(problem.task_group[task])];
      known = known < 0 ? row : known;
      row = known;
    }
    problem.run_ns.insert(problem.run_ns.end(), rows[row].begin(), rows[row].end());
    problem.workspace_bytes.push_back(workspace > 0 ? random.Below(workspace) : 0);
    if (shape.is_path) problem.weight_bytes[task] = problem.weight_bytes[task] % 2 * 10;
  }
  for (int64_t& bytes : problem.tensor_bytes) {
    if (shape.is_path) bytes = bytes % 2 * 4;
    if (!shape.has_empty_tensors) bytes = std::max<int64_t>(bytes, 1);
  }
}

}  // namespace

model::Problem MakeProblem(const Shape& shape, Random& random) {
  model::Problem problem;
  shape.is_path ? AddPath(problem, shape, random) : AddGraph(problem, shape, random);
  if (!shape.is_path) {
    for (size_t tensor = 0; tensor < problem.producer.size(); ++tensor) {
      if (problem.producer[tensor] < 0) continue;
      if (Chance(random, shape.output_percent)) problem.is_output[tensor] = 1;
    }
  }
  AddGroups(problem, shape, random);
  AddDevices(problem, shape, random);
  AddLinks(problem, shape, random);
  AddCosts(problem, shape, random);
  problem.Finish();
  return problem;
}

std::vector<int> RandomDevices(const model::Problem& problem, Random& random) {
  std::vector<int> device(static_cast<size_t>(problem.num_tasks));
  for (int task = 0; task < problem.num_tasks; ++task) {
    const auto allowed = problem.allowed[task];
    device[task] = allowed[static_cast<size_t>(random.Below(static_cast<int>(allowed.size())))];
    const int group = problem.task_group[task];
    if (group >= 0) device[task] = device[problem.group_tasks[group][0]];
  }
  return device;
}

std::vector<int> RandomOrder(const model::Problem& problem, Random& random) {
  std::vector<size_t> missing;
  std::vector<int> ready, order;
  for (int task = 0; task < problem.num_tasks; ++task) {
    missing.push_back(problem.predecessors[task].size());
    if (missing.back() == 0) ready.push_back(task);
  }
  while (!ready.empty()) {
    const auto next = ready.begin() + random.Below(static_cast<int>(ready.size()));
    order.push_back(*next);
    ready.erase(next);
    for (int after : problem.successors[order.back()]) {
      if (--missing[after] == 0) ready.push_back(after);
    }
  }
  return order;
}

InitialModule RandomInitialModule(const model::Problem& problem, const decompose::Modules& modules,
                                  int index, Random& random) {
  InitialModule start;
  const int begin = modules.first_task[index], end = modules.first_task[index + 1];
  const std::vector<int> device = RandomDevices(problem, random);
  start.device.assign(device.begin() + begin, device.begin() + end);
  for (int task : RandomOrder(problem, random)) {
    if (task >= begin && task < end) start.order.push_back(task - begin);
  }
  start.entry = random.Below(problem.num_memories);
  return start;
}

int LargestModule(const decompose::Modules& modules) {
  int largest = 0;
  for (int index = 1; index < modules.num_modules(); ++index) {
    const auto size = [&](int module) {
      return modules.first_task[module + 1] - modules.first_task[module];
    };
    if (size(index) > size(largest)) largest = index;
  }
  return largest;
}

void Tighten(model::Problem& problem, const std::vector<int>& device, int percent, Random& random) {
  list::Evaluator evaluate(problem);
  std::vector<int> order(static_cast<size_t>(problem.num_tasks));
  for (int task = 0; task < problem.num_tasks; ++task) order[task] = task;
  evaluate(device, order, list::kNever);
  model::MemoryUse use(problem);
  for (int task = 0; task < problem.num_tasks; ++task) use.AddTask(task, device[task]);
  for (const model::ScheduledCopy& copy : evaluate.LatestPlan(device).copies) {
    use.AddCopy(copy.tensor, copy.dst);
  }
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    const int64_t used = use.used()[memory];
    problem.memory_bytes[memory] = used + used * random.Below(percent + 1) / 100;
  }
  problem.Finish();
}

void ForAllDevices(const model::Problem& problem,
                   const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> device(static_cast<size_t>(problem.num_tasks));
  const std::function<void(int)> choose = [&](int task) {
    if (task == problem.num_tasks) return visit(device);
    const int group = problem.task_group[task];
    const int first = group < 0 ? task : problem.group_tasks[group][0];
    for (int choice : problem.allowed[task]) {
      if (first != task && choice != device[first]) continue;
      device[task] = choice;
      choose(task + 1);
    }
  };
  choose(0);
}

std::vector<std::vector<int>> AllOrders(const model::Problem& problem) {
  std::vector<std::vector<int>> orders;
  std::vector<int> order;
  std::vector<bool> is_done(static_cast<size_t>(problem.num_tasks), false);
  const std::function<void()> extend = [&] {
    if (static_cast<int>(order.size()) == problem.num_tasks) {
      orders.push_back(order);
      return;
    }
    for (int task = 0; task < problem.num_tasks; ++task) {
      const auto before = problem.predecessors[task];
      const bool is_ready =
          !is_done[task] && std::all_of(before.begin(), before.end(),
                                        [&](int other) { return bool{is_done[other]}; });
      if (!is_ready) continue;
      order.push_back(task);
      is_done[task] = true;
      extend();
      is_done[task] = false;
      order.pop_back();
    }
  };
  extend();
  return orders;
}

}  // namespace heteroplace::test
