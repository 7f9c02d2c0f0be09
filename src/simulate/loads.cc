#include "simulate/loads.h"

#include <algorithm>
#include <utility>

namespace heteroplace::simulate {

namespace {

/*! \brief Up to so many it takes less to look at all than at those of the readers. */
constexpr int kFewMemories = 16;

}  // namespace

Loads::Loads(const model::Problem& problem, std::vector<int> device)
    : problem_(problem),
      device_(std::move(device)),
      busy_ns_(problem.num_resources, 0),
      used_bytes_(problem.base_bytes),
      readers_(static_cast<size_t>(problem.num_tensors) * static_cast<size_t>(problem.num_memories),
               0),
      workspaces_(problem.workspace_bytes),
      largest_workspace_(problem.num_devices, 0),
      looked_at_(problem.num_memories, 0) {
  workspaces_.push_back(0);
  std::ranges::sort(workspaces_);
  workspaces_.erase(std::ranges::unique(workspaces_).begin(), workspaces_.end());
  workspace_count_.assign(static_cast<size_t>(problem.num_devices) * workspaces_.size(), 0);
  for (int task = 0; task < problem.num_tasks; ++task) {
    const auto found = std::ranges::lower_bound(workspaces_, problem.workspace_bytes[task]);
    workspace_of_.push_back(static_cast<int>(found - workspaces_.begin()));
    RunOn(task, device_[task], 1);
  }
  for (int tensor = 0; tensor < problem.num_tensors; ++tensor) {
    if (Home(tensor) >= 0) Make(tensor, Home(tensor), 1);
  }
  if (problem.host >= 0) {
    for (int tensor : problem.outputs) Read(tensor, problem.host, 1);
  }
  for (int task = 0; task < problem.num_tasks; ++task) {
    for (int tensor : problem.task_reads[task]) {
      Read(tensor, problem.device_memory[device_[task]], 1);
    }
  }
}

void Loads::Numbers::Add(int number) {
  if (std::exchange(is_in[static_cast<size_t>(number)], uint8_t{1}) == 0) list.push_back(number);
}

void Loads::Numbers::Clear() {
  for (int number : list) is_in[static_cast<size_t>(number)] = 0;
  list.clear();
}

void Loads::Track() {
  is_tracking_ = true;
  touched_resources_.is_in.assign(busy_ns_.size(), 0);
  touched_memories_.is_in.assign(used_bytes_.size(), 0);
}

void Loads::ClearTouched() {
  touched_resources_.Clear();
  touched_memories_.Clear();
}

void Loads::Move(int task, int device) {
  const int from = device_[task];
  if (from == device) return;
  const int src = problem_.device_memory[from];
  const int dst = problem_.device_memory[device];
  RunOn(task, from, -1);
  RunOn(task, device, 1);
  if (src != dst) {
    for (int tensor : problem_.task_reads[task]) {
      Read(tensor, src, -1);
      Read(tensor, dst, 1);
    }
    for (int tensor : problem_.task_makes[task]) {
      Make(tensor, src, -1);
      Make(tensor, dst, 1);
    }
  }
  device_[task] = device;
}

int64_t Loads::ItemNs() const { return busy_ns_.empty() ? 0 : *std::ranges::max_element(busy_ns_); }

int64_t Loads::Overflow() const {
  int64_t total = 0;
  for (int memory = 0; memory < problem_.num_memories; ++memory) {
    total += std::max<int64_t>(0, used_bytes_[memory] - problem_.memory_bytes[memory]);
  }
  return total;
}

int Loads::Home(int tensor) const {
  const int task = problem_.producer[tensor];
  return task < 0 ? problem_.host : problem_.device_memory[device_[task]];
}

int64_t Loads::Bytes(int tensor, int memory) const {
  // The host memory has room for model inputs and outputs set aside.
  if (memory == problem_.host && problem_.IsChargedToHost(tensor)) return 0;
  return problem_.tensor_bytes[tensor];
}

void Loads::Copy(int tensor, int src, int dst, int sign) {
  AddBytes(dst, sign * Bytes(tensor, dst));
  const int64_t time = problem_.Transfer(tensor, src, dst);
  if (time == model::kImpossible) {
    num_unreachable_ += sign;
    return;
  }
  for (int resource : problem_.route_resources[problem_.Pair(src, dst)]) {
    AddBusy(resource, sign * time);
  }
}

void Loads::Make(int tensor, int memory, int sign) {
  AddBytes(memory, sign * Bytes(tensor, memory));
  if (problem_.num_memories > kFewMemories && problem_.producer[tensor] >= 0) {
    CopyToReaders(tensor, memory, sign);
    return;
  }
  for (int dst = 0; dst < problem_.num_memories; ++dst) {
    if (dst != memory && Readers(tensor, dst) > 0) Copy(tensor, memory, dst, sign);
  }
}

void Loads::CopyToReaders(int tensor, int memory, int sign) {
  ++look_;
  const auto copy_once = [&](int dst) {
    if (std::exchange(looked_at_[static_cast<size_t>(dst)], look_) == look_) return;
    if (dst != memory && Readers(tensor, dst) > 0) Copy(tensor, memory, dst, sign);
  };
  for (int reader : problem_.successors[problem_.producer[tensor]]) {
    copy_once(problem_.device_memory[device_[reader]]);
  }
  if (problem_.host >= 0) copy_once(problem_.host);
}

void Loads::Read(int tensor, int memory, int sign) {
  const int home = Home(tensor);
  int& readers = Readers(tensor, memory);
  const bool was_there = readers > 0;
  readers += sign;
  if (was_there != (readers > 0) && home >= 0 && home != memory) {
    Copy(tensor, home, memory, sign);
  }
}

void Loads::RunOn(int task, int device, int sign) {
  for (int unit : problem_.device_units[device]) {
    AddBusy(unit, sign * problem_.Run(task, device));
  }
  if (is_tracking_) touched_memories_.Add(problem_.device_memory[device]);
  int64_t& used = used_bytes_[problem_.device_memory[device]];
  used += sign * problem_.weight_bytes[task];
  int* count = workspace_count_.data() + static_cast<size_t>(device) * workspaces_.size();
  int& largest = largest_workspace_[device];
  used -= workspaces_[static_cast<size_t>(largest)];
  count[workspace_of_[task]] += sign;
  if (sign > 0) largest = std::max(largest, workspace_of_[task]);
  while (largest > 0 && count[largest] == 0) --largest;
  used += workspaces_[static_cast<size_t>(largest)];
}

}  // namespace heteroplace::simulate
