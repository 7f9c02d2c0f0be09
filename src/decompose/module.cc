#include "decompose/module.h"

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

namespace heteroplace::decompose {

namespace {

constexpr size_t kMaxMemories = 32;            // of a graph that is cut into several modules
constexpr size_t kMaxPairs = size_t{1} << 21;  // of memories, of all modules together
constexpr double kMaxOfOne = 0.75;  // of the tasks in one module: with more it may as well be all

/*!
 * \brief Where modules begin: behind each task that all others come before or after.
 * \param is_strict Also no tensor, transfer or group may pass by.
 */
std::vector<int> FindBounds(const model::Problem& problem, bool is_strict) {
  const int count = problem.num_tasks;
  std::vector<int> until(count, 0);      // last successor
  std::vector<int> first(count, count);  // first successor
  for (int task = 0; task < count; ++task) {
    const auto after = problem.successors[task];
    if (!after.empty()) {
      first[task] = after.front();
      until[task] = after.back();
    }
  }
  int input_until = -1;  // with a host, copies of inputs may begin at once
  for (int task = 0; task < count && problem.host >= 0; ++task) {
    for (int tensor : problem.task_reads[task]) {
      if (problem.producer[tensor] < 0) input_until = task;
    }
  }
  int first_output = count;
  for (int tensor : problem.outputs) {
    if (problem.host >= 0 && problem.producer[tensor] >= 0) {
      first_output = std::min(first_output, problem.producer[tensor]);
    }
  }
  std::vector<int> group_last(problem.num_groups, -1);
  for (int task = 0; task < count; ++task) {
    if (problem.task_group[task] >= 0) group_last[problem.task_group[task]] = task;
  }
  std::vector<uint8_t> follows(count, 1);  // all later tasks have a predecessor at or after it
  int lowest = count;
  for (int task = count - 1; task >= 0; --task) {
    follows[task] = lowest >= task;
    const auto before = problem.predecessors[task];
    lowest = std::min(lowest, before.empty() ? -1 : before.back());
  }
  std::vector<int> bounds{0};
  int reach = input_until, entry = -1, joined = -1;
  for (int task = 0; task < count; ++task) {
    if (problem.task_group[task] >= 0) {
      // A group that goes on behind a cut would tie two modules together.
      joined = std::max(joined, group_last[problem.task_group[task]]);
    }
    const bool is_passed = reach > task || joined > task || first_output <= task;
    const bool is_cut =
        entry <= task && follows[task] != 0 && task + 1 < count && !(is_strict && is_passed);
    if (is_cut) bounds.push_back(task + 1);
    reach = std::max(reach, until[task]);
    entry = std::max(entry, first[task]);
  }
  bounds.push_back(count);
  return bounds;
}

/*! \brief Makes the module of the tasks in [begin, end). */
class ModuleMaker {
 public:
  explicit ModuleMaker(const model::Problem& problem)
      : problem_(problem), local_(problem.num_tensors, -1) {}

  Module Make(int begin, int end) {
    Module module;
    module.problem = &problem_;
    begin_ = begin;
    module.num_tasks = end - begin;
    module.num_devices = static_cast<size_t>(problem_.num_devices);
    module.num_memories = static_cast<size_t>(problem_.num_memories);
    module.has_exit = end < problem_.num_tasks;
    const auto devices = static_cast<std::ptrdiff_t>(module.num_devices);
    module.run_ns.assign(problem_.run_ns.begin() + begin * devices,
                         problem_.run_ns.begin() + end * devices);
    module.weight_bytes.assign(problem_.weight_bytes.begin() + begin,
                               problem_.weight_bytes.begin() + end);
    module.workspace_bytes.assign(problem_.workspace_bytes.begin() + begin,
                                  problem_.workspace_bytes.begin() + end);
    module.has_workspace =
        std::ranges::any_of(module.workspace_bytes, [](int64_t bytes) { return bytes > 0; });
    AddTasks(module, begin, end);
    AddReaders(module);
    AddTails(module);
    for (int tensor : tensors_) local_[tensor] = -1;
    tensors_.clear();
    return module;
  }

 private:
  int Local(Module& module, int tensor) {
    if (local_[tensor] >= 0) return local_[tensor];
    local_[tensor] = module.num_tensors++;
    tensors_.push_back(tensor);
    const int producer = problem_.producer[tensor];
    const bool is_here = producer >= begin_;
    module.producer.push_back(is_here ? producer - begin_ : -1);
    module.source.push_back(producer >= 0 ? kEntry : problem_.host);
    module.is_from_cut.push_back(producer >= 0 && producer == begin_ - 1 ? 1 : 0);
    module.charged_bytes.push_back(problem_.charged_bytes[tensor]);
    module.tensor_bytes.push_back(problem_.tensor_bytes[tensor]);
    module.is_free_at_host.push_back(problem_.IsChargedToHost(tensor) ? 1 : 0);
    module.size_of.push_back(problem_.size_of[tensor]);
    if (problem_.host >= 0 && problem_.is_output[tensor] != 0 && is_here) {
      module.host_outputs.push_back(local_[tensor]);
    }
    return local_[tensor];
  }

  void AddTasks(Module& module, int begin, int end) {
    std::unordered_map<int, int> groups;
    std::vector<std::vector<int>> members;
    std::vector<int> row;
    for (int task = begin; task < end; ++task) {
      module.allowed.AddRow(problem_.allowed[task]);
      row.clear();
      for (int tensor : problem_.task_reads[task]) row.push_back(Local(module, tensor));
      module.reads.AddRow(row);
      row.clear();
      for (int tensor : problem_.task_makes[task]) row.push_back(Local(module, tensor));
      module.makes.AddRow(row);
      row.clear();
      for (int before : problem_.predecessors[task]) {
        if (before >= begin) row.push_back(before - begin);
      }
      module.predecessors.AddRow(row);
      row.clear();
      for (int after : problem_.successors[task]) {
        if (after < end) row.push_back(after - begin);
      }
      module.successors.AddRow(row);
      int group = problem_.task_group[task];
      if (group >= 0) {
        group = groups.emplace(group, static_cast<int>(groups.size())).first->second;
        if (group == static_cast<int>(members.size())) members.emplace_back();
        members[group].push_back(task - begin);
      }
      module.group.push_back(group);
    }
    for (const auto& tasks : members) module.group_tasks.AddRow(tasks);
  }

  static void AddReaders(Module& module) {
    std::vector<std::vector<int>> readers(module.num_tensors);
    for (int task = 0; task < module.num_tasks; ++task) {
      for (int tensor : module.reads[task]) readers[tensor].push_back(task);
    }
    for (const auto& tasks : readers) module.readers.AddRow(tasks);
  }

  static void AddTails(Module& module) {
    module.tail_ns.assign(module.num_tasks, 0);
    for (int task = module.num_tasks - 1; task >= 0; --task) {
      for (int next : module.successors[task]) {
        int64_t fastest = module.allowed[next].empty() ? 0 : std::numeric_limits<int64_t>::max();
        for (int device : module.allowed[next]) {
          fastest = std::min(fastest, module.Run(next, device));
        }
        module.tail_ns[task] = std::max(module.tail_ns[task], module.tail_ns[next] + fastest);
      }
    }
  }

  const model::Problem& problem_;
  std::vector<int> local_;    // [num_tensors], -1: not in the module
  std::vector<int> tensors_;  // those that are
  int begin_ = 0;
};

template <typename T>
void Append(std::string& key, const std::vector<T>& values) {
  const size_t count = values.size();
  key.append(reinterpret_cast<const char*>(&count), sizeof(count));
  key.append(reinterpret_cast<const char*>(values.data()), count * sizeof(T));
}

/*! \brief All that modules of equal shape share: everything but times and sizes. */
std::string ShapeKey(const Module& module) {
  std::string key;
  for (const model::Csr* lists :
       {&module.group_tasks, &module.allowed, &module.reads, &module.makes}) {
    Append(key, lists->offsets);
    Append(key, lists->values);
  }
  Append(key, module.group);
  Append(key, module.source);
  Append(key, module.producer);
  Append(key, module.is_from_cut);
  Append(key, module.host_outputs);
  Append(key, module.is_free_at_host);
  key.push_back(module.has_exit ? 1 : 0);
  return key;
}

std::string CostKey(const Module& module) {
  std::string key;
  Append(key, module.run_ns);
  Append(key, module.weight_bytes);
  Append(key, module.workspace_bytes);
  Append(key, module.tensor_bytes);
  Append(key, module.charged_bytes);
  return key;
}

}  // namespace

namespace {

/*! \brief Room for the modules: capacity without what is used anyway and without workspace. */
std::vector<int64_t> FindRoom(const model::Problem& problem, bool is_workspace_set_aside) {
  std::vector<int64_t> room = problem.memory_bytes;
  for (int memory = 0; memory < problem.num_memories; ++memory) {
    room[memory] -= problem.base_bytes[memory];
  }
  for (int device = 0; device < problem.num_devices && is_workspace_set_aside; ++device) {
    int64_t largest = 0;
    for (int task = 0; task < problem.num_tasks; ++task) {
      if (problem.Run(task, device) != model::kImpossible) {
        largest = std::max(largest, problem.workspace_bytes[task]);
      }
    }
    room[problem.device_memory[device]] -= largest;
  }
  return room;
}

}  // namespace

namespace {

Modules MakeModules(const model::Problem& problem, std::vector<int> bounds) {
  Modules modules;
  modules.first_task = std::move(bounds);
  const bool is_one = modules.first_task.size() <= 2;
  modules.room_bytes = FindRoom(problem, !is_one);
  ModuleMaker maker(problem);
  std::unordered_map<std::string, int> shapes;
  std::unordered_map<std::string, int> classes;
  for (size_t index = 0; index + 1 < modules.first_task.size(); ++index) {
    Module module = maker.Make(modules.first_task[index], modules.first_task[index + 1]);
    if (!is_one) {
      std::ranges::fill(module.workspace_bytes, 0);
      module.has_workspace = false;
    }
    std::string key = ShapeKey(module);
    const int shape = shapes.emplace(key, static_cast<int>(shapes.size())).first->second;
    key += CostKey(module);
    const auto [found, is_new] =
        classes.emplace(std::move(key), static_cast<int>(modules.classes.size()));
    if (is_new) {
      modules.classes.push_back(std::move(module));
      modules.shape.push_back(shape);
    }
    modules.module_class.push_back(found->second);
  }
  return modules;
}

/*! \brief Tasks of the largest module. */
int Longest(const std::vector<int>& bounds) {
  int longest = 0;
  for (size_t module = 0; module + 1 < bounds.size(); ++module) {
    longest = std::max(longest, bounds[module + 1] - bounds[module]);
  }
  return longest;
}

}  // namespace

Modules Decompose(const model::Problem& problem) {
  std::vector<int> bounds = FindBounds(problem, true);
  const auto memories = static_cast<size_t>(problem.num_memories);
  if (memories > kMaxMemories || (bounds.size() - 1) * memories * memories > kMaxPairs ||
      Longest(bounds) > kMaxOfOne * problem.num_tasks) {
    bounds = {0, problem.num_tasks};
  }
  return MakeModules(problem, std::move(bounds));
}

Modules DecomposeForBounds(const model::Problem& problem) {
  return MakeModules(problem, FindBounds(problem, false));
}

}  // namespace heteroplace::decompose
