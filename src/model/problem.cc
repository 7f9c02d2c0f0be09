#include "model/problem.h"

#include <algorithm>
#include <limits>

#include "support/error.h"

namespace heteroplace {

namespace {

/*! \brief Largest value of a list plus one; 0 for an empty list. */
int CountIds(const std::vector<int>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end()) + 1;
}

Csr ToCsr(const std::vector<std::vector<int>>& rows) {
  Csr csr;
  for (const auto& row : rows) csr.AddRow(row);
  return csr;
}

void SortUnique(std::vector<int>& values) {
  std::sort(values.begin(), values.end());
  values.erase(std::unique(values.begin(), values.end()), values.end());
}

}  // namespace

void Problem::Finish() {
  num_tasks = static_cast<int>(weight_bytes.size());
  num_tensors = static_cast<int>(tensor_bytes.size());
  num_devices = static_cast<int>(device_memory.size());
  num_memories = static_cast<int>(memory_bytes.size());
  num_units = CountIds(device_units.values);
  num_resources = std::max(num_units, CountIds(link_resources.values));
  num_groups = CountIds(task_group);
  pairs_ = static_cast<size_t>(num_memories) * static_cast<size_t>(num_memories);
  const size_t tasks = weight_bytes.size();
  const bool agrees =
      run_ns.size() == tasks * device_memory.size() && workspace_bytes.size() == tasks &&
      task_group.size() == tasks && task_reads.num_rows() == num_tasks &&
      producer.size() == tensor_bytes.size() && is_output.size() == tensor_bytes.size() &&
      device_units.num_rows() == num_devices && route_links.offsets.size() == pairs_ + 1 &&
      link_latency_ns.size() == link_bandwidth.size() &&
      link_resources.offsets.size() == link_bandwidth.size() + 1;
  if (!agrees) throw Error(ErrorKind::kGraph, "the arrays of a problem have sizes that disagree");
  DeriveBatches();
  DeriveLists();
  DeriveTransfers();
  DeriveTails();
}

void Problem::DeriveBatches() {
  if (batch_sizes.empty()) batch_sizes = {1};
  if (batch_run_ns.empty() && batch_sizes.size() == 1) batch_run_ns = run_ns;
  if (batch_sizes.front() != 1 || batch_run_ns.size() != batch_sizes.size() * run_ns.size()) {
    throw Error(ErrorKind::kGraph,
                "batch sizes must begin with 1 and have one run time per task and device each");
  }
  batch_row_.assign(static_cast<size_t>(batch_sizes.back()) + 1, -1);
  for (size_t row = 0; row < batch_sizes.size(); ++row) {
    if (row > 0 && batch_sizes[row] <= batch_sizes[row - 1]) {
      throw Error(ErrorKind::kGraph, "batch sizes must rise");
    }
    batch_row_[batch_sizes[row]] = static_cast<int>(row);
  }
}

void Problem::DeriveLists() {
  std::vector<std::vector<int>> makes(num_tasks), before(num_tasks), after(num_tasks);
  std::vector<std::vector<int>> groups(num_groups), devices(num_tasks);
  outputs.clear();
  base_bytes.assign(num_memories, 0);
  for (int tensor = 0; tensor < num_tensors; ++tensor) {
    if (producer[tensor] >= 0) makes[producer[tensor]].push_back(tensor);
    if (is_output[tensor] != 0) outputs.push_back(tensor);
    if (IsChargedToHost(tensor)) base_bytes[host] += tensor_bytes[tensor];
  }
  for (int task = 0; task < num_tasks; ++task) {
    for (int tensor : task_reads[task]) {
      if (producer[tensor] >= 0) before[task].push_back(producer[tensor]);
    }
    SortUnique(before[task]);
    for (int other : before[task]) after[other].push_back(task);
    if (task_group[task] >= 0) groups[task_group[task]].push_back(task);
    for (int device = 0; device < num_devices; ++device) {
      if (Run(task, device) != kImpossible) devices[task].push_back(device);
    }
  }
  task_makes = ToCsr(makes);
  predecessors = ToCsr(before);
  successors = ToCsr(after);
  group_tasks = ToCsr(groups);
  allowed = ToCsr(devices);
}

void Problem::DeriveTransfers() {
  route_resources = Csr();
  for (int pair = 0; pair < static_cast<int>(pairs_); ++pair) {
    std::vector<int> resources;
    for (int link : route_links[pair]) {
      resources.insert(resources.end(), link_resources[link].begin(), link_resources[link].end());
    }
    SortUnique(resources);
    route_resources.AddRow(resources);
  }
  transfer_ns.assign(static_cast<size_t>(num_tensors) * pairs_, kImpossible);
  for (int tensor = 0; tensor < num_tensors; ++tensor) {
    for (int pair = 0; pair < static_cast<int>(pairs_); ++pair) {
      int64_t& time = transfer_ns[static_cast<size_t>(tensor) * pairs_ + static_cast<size_t>(pair)];
      if (pair % num_memories == pair / num_memories) {
        time = 0;
      } else if (!route_links[pair].empty()) {
        time = TransferNs(route_links[pair], tensor_bytes[tensor]);
      }
    }
  }
}

void Problem::DeriveTails() {
  tail_ns.assign(num_tasks, 0);
  for (int task = num_tasks - 1; task >= 0; --task) {
    for (int next : successors[task]) {
      int64_t fastest = std::numeric_limits<int64_t>::max();
      for (int device : allowed[next]) fastest = std::min(fastest, Run(next, device));
      if (allowed[next].empty()) fastest = 0;
      tail_ns[task] = std::max(tail_ns[task], tail_ns[next] + fastest);
    }
  }
}

int64_t Problem::TransferNs(std::span<const int> links, int64_t bytes) const {
  if (links.empty()) return 0;
  int64_t latency = 0;
  int64_t slowest = std::numeric_limits<int64_t>::max();
  for (int link : links) {
    latency += link_latency_ns[link];
    slowest = std::min(slowest, link_bandwidth[link]);
  }
  // 128 bits: bytes * 10^9 overflows 64 above 9.2 GB.
  const __int128 scaled = static_cast<__int128>(bytes) * 1'000'000'000;
  return latency + static_cast<int64_t>((scaled + slowest - 1) / slowest);
}

}  // namespace heteroplace
