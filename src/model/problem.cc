#include "model/problem.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <utility>

#include "support/error.h"

namespace heteroplace::model {

namespace {

constexpr int64_t kNsPerS = 1'000'000'000;

/*! \brief Largest value of a list plus one; 0 for an empty list. */
int CountIds(const std::vector<int>& values) {
  return values.empty() ? 0 : *std::ranges::max_element(values) + 1;
}

/*! \brief Lists of the positions whose value is 0, 1, ...; negative values are in none. */
Csr GroupBy(const std::vector<int>& values, int num_lists) {
  Csr csr;
  csr.offsets.assign(static_cast<size_t>(num_lists) + 1, 0);
  for (int value : values) {
    if (value >= 0) ++csr.offsets[value + 1];
  }
  std::partial_sum(csr.offsets.begin(), csr.offsets.end(), csr.offsets.begin());
  csr.values.resize(static_cast<size_t>(csr.offsets.back()));
  std::vector<int> next = csr.offsets;
  for (int index = 0; index < static_cast<int>(values.size()); ++index) {
    if (values[index] >= 0) csr.values[next[values[index]]++] = index;
  }
  return csr;
}

/*! \brief For each value of a square relation the rows that hold it, ascending. */
Csr Transpose(const Csr& rows) {
  Csr csr = GroupBy(rows.values, rows.num_rows());
  std::vector<int> row_of(rows.values.size());
  for (int row = 0; row < rows.num_rows(); ++row) {
    std::fill(row_of.begin() + rows.offsets[row], row_of.begin() + rows.offsets[row + 1], row);
  }
  for (int& position : csr.values) position = row_of[position];
  return csr;
}

void SortUnique(std::vector<int>& values) {
  std::ranges::sort(values);
  values.erase(std::ranges::unique(values).begin(), values.end());
}

/*! \brief value * numerator / denominator, rounded up. */
int64_t CeilScaled(int64_t value, int64_t numerator, int64_t denominator) {
  int64_t product;
  if (!__builtin_mul_overflow(value, numerator, &product)) {
    return product / denominator + (product % denominator > 0 ? 1 : 0);
  }
  // 128 bits, a division of which takes five times as long: above 9.2 GB.
  const __int128 scaled = static_cast<__int128>(value) * numerator;
  const __int128 quotient = scaled / denominator;
  return static_cast<int64_t>(quotient + (scaled - quotient * denominator > 0 ? 1 : 0));
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
      link_resources.offsets.size() == link_bandwidth.size() + 1 &&
      (link_measured.num_rows() == 0 ||
       link_measured.offsets.size() == link_bandwidth.size() + 1) &&
      measured_bytes.size() == measured_ns.size() && HasFitting(values);
  if (!agrees) throw Error(ErrorKind::kGraph, "the arrays of a problem have sizes that disagree");
  charged_bytes = tensor_bytes;
  values.Finish();
  DeriveBatches();
  DeriveLists();
  DeriveShared();
  DeriveRoutes();
  DeriveWays();
  DeriveTransfers();
  DeriveTails();
  DeriveRule();
}

Problem Problem::WithoutTensors(std::span<const int64_t> reserve_bytes) const {
  Problem problem = *this;
  problem.counts_lifetimes = false;
  std::ranges::fill(problem.charged_bytes, 0);
  for (size_t memory = 0; memory < reserve_bytes.size(); ++memory) {
    problem.memory_bytes[memory] -= reserve_bytes[memory];
  }
  return problem;
}

Problem Problem::Static() const {
  Problem problem = *this;
  problem.counts_lifetimes = false;
  return problem;
}

void Problem::DeriveRule() {
  const int64_t workspace =
      workspace_bytes.empty() ? 0 : *std::ranges::max_element(workspace_bytes);
  const int64_t all =
      std::accumulate(weight_bytes.begin(), weight_bytes.end(), int64_t{0}) +
      std::accumulate(tensor_bytes.begin(), tensor_bytes.end(), int64_t{0}) +
      std::accumulate(values.buffer_bytes.begin(), values.buffer_bytes.end(), int64_t{0});
  std::vector<int64_t> most(num_memories, all);
  for (int memory : device_memory) most[memory] += workspace;
  counts_lifetimes = false;
  for (int memory = 0; memory < num_memories; ++memory) {
    counts_lifetimes = counts_lifetimes || most[memory] > memory_bytes[memory];
  }
}

void Problem::DeriveBatches() {
  if (batch_sizes.empty()) batch_sizes = {1};
  // Those of single items are in run_ns.
  const bool has_times = batch_sizes.size() == 1 && batch_run_ns.empty();
  if (batch_sizes.front() != 1 ||
      (!has_times && batch_run_ns.size() != batch_sizes.size() * run_ns.size())) {
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
  outputs.clear();
  base_bytes.assign(num_memories, 0);
  shared_base_bytes = 0;
  for (int tensor = 0; tensor < num_tensors; ++tensor) {
    if (is_output[tensor] != 0) outputs.push_back(tensor);
    if (!IsChargedToHost(tensor) || values.IsState(tensor)) continue;
    (values.IsShared(tensor) ? shared_base_bytes : base_bytes[host]) += tensor_bytes[tensor];
  }
  task_makes = GroupBy(producer, num_tasks);
  group_tasks = GroupBy(task_group, num_groups);
  predecessors = Csr();
  allowed = Csr();
  std::vector<int> row;
  for (int task = 0; task < num_tasks; ++task) {
    row.clear();
    for (int tensor : task_reads[task]) {
      if (producer[tensor] >= 0) row.push_back(producer[tensor]);
    }
    SortUnique(row);
    predecessors.AddRow(row);
    row.clear();
    for (int device = 0; device < num_devices; ++device) {
      if (Run(task, device) != kImpossible) row.push_back(device);
    }
    allowed.AddRow(row);
  }
  successors = Transpose(predecessors);
}

bool Problem::HasFitting(const SharedValues& shared) const {
  const auto fits = [](const auto& list, int count) {
    return list.empty() || list.size() == static_cast<size_t>(count);
  };
  const auto are_below = [](const std::vector<int>& ids, size_t count) {
    return std::ranges::all_of(ids, [&](int id) { return id < static_cast<int>(count); });
  };
  return fits(shared.is_shared, num_tensors) && fits(shared.adds, num_tasks) &&
         fits(shared.state_of, num_tensors) && are_below(shared.state_of, tensor_bytes.size()) &&
         fits(shared.buffer_of, num_tensors) &&
         are_below(shared.buffer_of, shared.buffer_bytes.size()) &&
         (shared.weights.num_rows() == 0 || shared.weights.num_rows() == num_tasks) &&
         are_below(shared.weights.values, shared.weight_bytes.size());
}

void Problem::DeriveShared() {
  is_made_once_.clear();
  if (values.is_shared.empty()) return;
  is_made_once_.resize(static_cast<size_t>(num_tasks));
  const auto is_shared = [&](int tensor) { return values.IsShared(tensor); };
  for (int task = 0; task < num_tasks; ++task) {
    const auto reads = task_reads[task], makes = task_makes[task];
    is_made_once_[task] = !makes.empty() && std::ranges::all_of(reads, is_shared) &&
                          std::ranges::all_of(makes, is_shared);
  }
}

void Problem::DeriveRoutes() {
  route_resources = Csr();
  std::vector<int> resources;
  for (int pair = 0; pair < static_cast<int>(pairs_); ++pair) {
    resources.clear();
    for (int link : route_links[pair]) {
      resources.insert(resources.end(), link_resources[link].begin(), link_resources[link].end());
    }
    SortUnique(resources);
    route_resources.AddRow(resources);
  }
  departure_resources = Csr();
  for (int src = 0; src < num_memories; ++src) {
    resources.clear();
    bool is_first = true;
    for (int pair = Pair(src, 0); pair < Pair(src + 1, 0); ++pair) {
      const auto route = route_resources[pair];
      if (route_links[pair].empty()) continue;
      if (std::exchange(is_first, false)) {
        resources.assign(route.begin(), route.end());
      } else {
        std::erase_if(resources, [&](int one) { return !std::ranges::binary_search(route, one); });
      }
    }
    departure_resources.AddRow(resources);
  }
}

void Problem::DeriveWays() {
  way_of.assign(pairs_, -1);
  pair_of.clear();
  way_speed_.clear();
  // Without measured points a time depends on the latencies and the smallest bandwidth only.
  std::map<std::vector<int64_t>, int> ways;
  for (int pair = 0; pair < static_cast<int>(pairs_); ++pair) {
    const auto links = route_links[pair];
    std::vector<int64_t> key;
    Speed speed;
    if (link_measured.num_rows() > 0) {
      key.assign(links.begin(), links.end());
    } else if (!links.empty()) {
      speed = SpeedOf(links);
      key = {speed.latency_ns, speed.bandwidth};
    }
    if (links.empty() && pair % num_memories != pair / num_memories) continue;
    const auto [way, is_new] = ways.emplace(std::move(key), static_cast<int>(pair_of.size()));
    if (is_new) {
      pair_of.push_back(pair);
      way_speed_.push_back(speed);
    }
    way_of[pair] = way->second;
  }
}

void Problem::DeriveTransfers() {
  sizes = tensor_bytes;
  std::ranges::sort(sizes);
  sizes.erase(std::ranges::unique(sizes).begin(), sizes.end());
  size_of.resize(tensor_bytes.size());
  for (size_t tensor = 0; tensor < tensor_bytes.size(); ++tensor) {
    const auto at = std::ranges::lower_bound(sizes, tensor_bytes[tensor]);
    size_of[tensor] = static_cast<int>(at - sizes.begin());
  }
  way_ns_.clear();
  if (sizes.size() * pair_of.size() > kMaxTransfers) return;
  way_ns_.reserve(sizes.size() * pair_of.size());
  for (int64_t bytes : sizes) {
    for (int way = 0; way < static_cast<int>(pair_of.size()); ++way) {
      way_ns_.push_back(TransferOverWay(way, bytes));
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

Problem::Speed Problem::SpeedOf(std::span<const int> links) const {
  Speed speed{0, std::numeric_limits<int64_t>::max()};
  for (int link : links) {
    speed.latency_ns += link_latency_ns[link];
    speed.bandwidth = std::min(speed.bandwidth, link_bandwidth[link]);
  }
  return speed;
}

int64_t Problem::TransferOverWay(int way, int64_t bytes) const {
  const Speed& speed = way_speed_[way];
  if (speed.bandwidth == 0) return TransferNs(route_links[pair_of[way]], bytes);
  return speed.latency_ns + CeilScaled(bytes, kNsPerS, speed.bandwidth);
}

int64_t Problem::TransferNs(std::span<const int> links, int64_t bytes) const {
  if (links.empty()) return 0;
  int64_t latency = 0;
  int64_t payload = 0;
  for (int link : links) {
    latency += link_latency_ns[link];
    payload = std::max(payload, PayloadNs(link, bytes));
  }
  return latency + payload;
}

int64_t Problem::PayloadNs(int link, int64_t bytes) const {
  int64_t from_bytes = 0, from_ns = 0;
  if (link_measured.num_rows() > 0) {
    for (int point : link_measured[link]) {
      const int64_t to_bytes = measured_bytes[point], to_ns = measured_ns[point];
      if (bytes <= to_bytes) {
        return from_ns + CeilScaled(bytes - from_bytes, to_ns - from_ns, to_bytes - from_bytes);
      }
      from_bytes = to_bytes;
      from_ns = to_ns;
    }
  }
  return from_ns + CeilScaled(bytes - from_bytes, kNsPerS, link_bandwidth[link]);
}

}  // namespace heteroplace::model
