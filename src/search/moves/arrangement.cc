#include "search/moves/arrangement.h"

#include <algorithm>

namespace heteroplace::search {

Arrangement::Arrangement(const model::Problem& problem, const decompose::Module& module)
    : problem_(problem),
      module_(module),
      device_(module.num_tasks, -1),
      order_(module.num_tasks),
      position_(module.num_tasks),
      num_readers_(module.num_tensors, module.num_memories),
      workspace_(module.num_devices, 0),
      used_(module.num_memories, 0),
      load_ns_(problem.num_units, 0) {}

int64_t Arrangement::BytesAt(int tensor, int memory) const {
  const bool is_set_aside = memory == problem_.host && module_.is_free_at_host[tensor] != 0;
  return is_set_aside ? 0 : module_.charged_bytes[tensor];
}

void Arrangement::Load(std::span<const int> device, std::span<const int> order, int entry) {
  entry_ = entry;
  device_.assign(device.begin(), device.end());
  order_.assign(order.begin(), order.end());
  for (int index = 0; index < module_.num_tasks; ++index) position_[order_[index]] = index;
  num_readers_.Clear();
  std::ranges::fill(workspace_, 0);
  std::ranges::fill(used_, 0);
  std::ranges::fill(load_ns_, 0);
  for (int task = 0; task < module_.num_tasks; ++task) {
    const int memory = problem_.device_memory[device_[task]];
    used_[memory] += module_.weight_bytes[task];
    AddLoad(task, device_[task], 1);
    int64_t& workspace = workspace_[device_[task]];
    const int64_t extra = std::max<int64_t>(0, module_.workspace_bytes[task] - workspace);
    workspace += extra;
    used_[memory] += extra;
    for (int tensor : module_.makes[task]) used_[memory] += BytesAt(tensor, memory);
    for (int tensor : module_.reads[task]) {
      if (Readers(tensor, memory)++ > 0) continue;
      const int home = Home(tensor);
      if (home >= 0 && home != memory) used_[memory] += BytesAt(tensor, memory);
    }
  }
  Keep();
}

void Arrangement::Keep() {
  devices_undo_.clear();
  rotations_undo_.clear();
  first_changed_ = module_.num_tasks;
  last_changed_ = -1;
}

void Arrangement::Undo() {
  for (size_t index = rotations_undo_.size(); index-- > 0;) {
    const auto [from, to] = rotations_undo_[index];
    Rotate(to, from);
  }
  for (size_t index = devices_undo_.size(); index-- > 0;) {
    const auto [task, device] = devices_undo_[index];
    SetOne(task, device);
  }
  Keep();
}

void Arrangement::SetDevice(int task, int device) {
  if (device_[task] == device) return;
  const int group = module_.group[task];
  if (group < 0) {
    devices_undo_.emplace_back(task, device_[task]);
    SetOne(task, device);
    return;
  }
  for (int member : module_.group_tasks[group]) {
    devices_undo_.emplace_back(member, device_[member]);
    SetOne(member, device);
  }
}

void Arrangement::Replace(int first, std::span<const int> tasks, std::span<const int> devices) {
  for (size_t index = 0; index < tasks.size(); ++index) {
    const int task = tasks[index];
    order_[static_cast<size_t>(first) + index] = task;
    position_[task] = first + static_cast<int>(index);
    SetDevice(task, devices[index]);
  }
  Keep();
}

void Arrangement::SetOne(int task, int device) {
  const int from = problem_.device_memory[device_[task]];
  const int to = problem_.device_memory[device];
  if (module_.has_workspace) MoveWorkspace(task, device_[task], device);
  if (from != to) {
    used_[from] -= module_.weight_bytes[task];
    used_[to] += module_.weight_bytes[task];
    MoveReads(task, from, to);
    MoveMakes(task, from, to);
  }
  AddLoad(task, device_[task], -1);
  AddLoad(task, device, 1);
  device_[task] = device;
  NotePositions(task);
}

void Arrangement::AddLoad(int task, int device, int64_t sign) {
  for (int unit : problem_.device_units[device]) load_ns_[unit] += sign * module_.Run(task, device);
}

void Arrangement::MoveReads(int task, int from, int to) {
  for (int tensor : module_.reads[task]) {
    const int home = Home(tensor);
    if (--Readers(tensor, from) == 0 && home >= 0 && home != from) {
      used_[from] -= BytesAt(tensor, from);
    }
    if (Readers(tensor, to)++ == 0 && home >= 0 && home != to) {
      used_[to] += BytesAt(tensor, to);
    }
  }
}

void Arrangement::MoveMakes(int task, int from, int to) {
  for (int tensor : module_.makes[task]) {
    // The copy at the new home becomes the original, and the old home needs a copy.
    if (Readers(tensor, to) == 0) used_[to] += BytesAt(tensor, to);
    if (Readers(tensor, from) == 0) used_[from] -= BytesAt(tensor, from);
  }
}

void Arrangement::MoveWorkspace(int task, int from, int to) {
  const int64_t bytes = module_.workspace_bytes[task];
  if (bytes > workspace_[to]) {
    used_[problem_.device_memory[to]] += bytes - workspace_[to];
    workspace_[to] = bytes;
  }
  if (bytes > 0 && bytes == workspace_[from]) {
    int64_t largest = 0;
    // None is larger than it was.
    for (int other = 0; other < module_.num_tasks && largest < bytes; ++other) {
      if (other != task && device_[other] == from) {
        largest = std::max(largest, module_.workspace_bytes[other]);
      }
    }
    used_[problem_.device_memory[from]] -= bytes - largest;
    workspace_[from] = largest;
  }
}

void Arrangement::NotePositions(int task) {
  first_changed_ = std::min(first_changed_, position_[task]);
  last_changed_ = std::max(last_changed_, position_[task]);
  // Copies are made for their first reader: those of its tensors may change hands.
  for (int tensor : module_.makes[task]) NoteReaders(tensor);
  for (int tensor : module_.reads[task]) NoteReaders(tensor);
}

void Arrangement::NoteReaders(int tensor) {
  for (int reader : module_.readers[tensor]) {
    last_changed_ = std::max(last_changed_, position_[reader]);
  }
  // An output that no reader has brought to the host is copied there at the end.
  const bool is_output = module_.producer[tensor] >= 0 && module_.is_free_at_host[tensor] != 0;
  if (is_output) last_changed_ = module_.num_tasks;
}

std::pair<int, int> Arrangement::Range(int task) const {
  int lowest = 0, highest = module_.num_tasks - 1;
  for (int before : module_.predecessors[task]) lowest = std::max(lowest, position_[before] + 1);
  for (int after : module_.successors[task]) highest = std::min(highest, position_[after] - 1);
  return {lowest, highest};
}

void Arrangement::Rotate(int from, int to) {
  const int task = order_[from];
  const int step = from < to ? 1 : -1;
  for (int index = from; index != to; index += step) {
    order_[index] = order_[index + step];
    position_[order_[index]] = index;
  }
  order_[to] = task;
  position_[task] = to;
  rotations_undo_.emplace_back(from, to);
  first_changed_ = std::min({first_changed_, from, to});
  last_changed_ = std::max({last_changed_, from, to});
  for (int tensor : module_.reads[task]) {
    for (int reader : module_.readers[tensor]) {
      last_changed_ = std::max(last_changed_, position_[reader]);
    }
  }
}

}  // namespace heteroplace::search
