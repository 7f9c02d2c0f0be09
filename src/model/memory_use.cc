#include "model/memory_use.h"

#include <algorithm>

namespace heteroplace {

void MemoryUse::Clear() {
  used_ = problem_.base_bytes;
  workspace_.assign(problem_.num_devices, 0);
}

int64_t MemoryUse::ExtraForTask(int task, int device) const {
  const int memory = problem_.device_memory[device];
  int64_t extra = problem_.weight_bytes[task];
  for (int tensor : problem_.task_makes[task]) {
    extra += ExtraForCopy(tensor, memory);
  }
  return extra + std::max<int64_t>(0, problem_.workspace_bytes[task] - workspace_[device]);
}

int64_t MemoryUse::ExtraForCopy(int tensor, int memory) const {
  // The host memory has room for model inputs and outputs set aside.
  if (memory == problem_.host && problem_.IsChargedToHost(tensor)) return 0;
  return problem_.tensor_bytes[tensor];
}

void MemoryUse::AddTask(int task, int device) {
  used_[problem_.device_memory[device]] += ExtraForTask(task, device);
  workspace_[device] = std::max(workspace_[device], problem_.workspace_bytes[task]);
}

void MemoryUse::AddCopy(int tensor, int memory) { used_[memory] += ExtraForCopy(tensor, memory); }

int64_t MemoryUse::Overflow() const {
  int64_t total = 0;
  for (int memory = 0; memory < problem_.num_memories; ++memory) {
    total += std::max<int64_t>(0, -Free(memory));
  }
  return total;
}

}  // namespace heteroplace
