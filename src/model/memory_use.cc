#include "model/memory_use.h"

#include <algorithm>

namespace heteroplace::model {

void MemoryUse::Clear() {
  used_ = problem_.base_bytes;
  for (int64_t& bytes : used_) bytes *= num_items_;
  if (problem_.host >= 0) used_[problem_.host] += problem_.shared_base_bytes;
  workspace_.assign(problem_.num_devices, 0);
}

int64_t MemoryUse::ExtraForTask(int task, int device) const {
  return ExtraForTasks(std::span<const int>(&task, 1), device);
}

int64_t MemoryUse::ExtraForTasks(std::span<const int> tasks, int device) const {
  const int memory = problem_.device_memory[device];
  int64_t extra = 0;
  int64_t workspace = workspace_[device];
  for (int task : tasks) {
    extra += problem_.weight_bytes[task];
    for (int tensor : problem_.task_makes[task]) extra += ExtraForCopy(tensor, memory);
    workspace = std::max(workspace, problem_.workspace_bytes[task]);
  }
  return extra + workspace - workspace_[device];
}

int64_t MemoryUse::ExtraForCopy(int tensor, int memory) const {
  // The host memory has room for model inputs and outputs set aside.
  if (memory == problem_.host && problem_.IsChargedToHost(tensor)) return 0;
  return problem_.charged_bytes[tensor];
}

void MemoryUse::AddTask(int task, int device) { AddBatch(task, device, 1, false); }

void MemoryUse::AddBatch(int task, int device, int num_items, bool has_weights) {
  const int memory = problem_.device_memory[device];
  for (int tensor : problem_.task_makes[task]) AddCopy(tensor, memory, num_items);
  AddWork(task, device, num_items, has_weights);
}

void MemoryUse::AddWork(int task, int device, int num_items, bool has_weights) {
  const int memory = problem_.device_memory[device];
  if (!has_weights) used_[memory] += problem_.weight_bytes[task];
  const int64_t workspace = problem_.workspace_bytes[task] * num_items;
  used_[memory] += std::max<int64_t>(0, workspace - workspace_[device]);
  workspace_[device] = std::max(workspace_[device], workspace);
}

void MemoryUse::AddCopy(int tensor, int memory, int num_items) {
  used_[memory] += ExtraForCopy(tensor, memory) * num_items;
}

int64_t MemoryUse::Overflow() const {
  int64_t total = 0;
  for (int memory = 0; memory < problem_.num_memories; ++memory) {
    total += std::max<int64_t>(0, -Free(memory));
  }
  return total;
}

}  // namespace heteroplace::model
