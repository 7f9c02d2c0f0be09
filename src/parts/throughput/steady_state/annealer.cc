#include "parts/throughput/steady_state/annealer.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace heteroplace::throughput {

namespace {

/*! \brief Energy of a memory that needs twice what it has. */
constexpr double kOverflowPrice = 2000.0;
constexpr double kUnreachablePrice = 1e6;
/*! \brief Loads beyond so many times the best are not told apart: powers stay finite. */
constexpr double kHighestLoad = 100.0;
constexpr int kMaxRegion = 64;
/*! \brief Up to so many it takes less to sum up all than to note what a move changes. */
constexpr int kFewResources = 32;
/*! \brief Mending a memory that lacks a part of its size costs about so many parts of the time. */
constexpr double kMissingPrice = 3.0;

/*! \brief Bytes that a memory lacks as a part of its size. */
double MissingPart(const model::Problem& problem, const simulate::Loads& loads, int memory) {
  const int64_t size = problem.memory_bytes[memory];
  const int64_t over = std::max<int64_t>(0, loads.used_bytes()[memory] - size);
  return static_cast<double>(over) / static_cast<double>(std::max<int64_t>(1, size));
}

}  // namespace

AnnealingData::AnnealingData(const model::Problem& problem,
                             const std::vector<std::vector<int>>& patterns)
    : problem(problem), patterns(patterns) {
  std::map<std::vector<int64_t>, int> known;
  for (int task = 0; task < problem.num_tasks; ++task) {
    std::vector<int64_t> key{problem.weight_bytes[task], problem.task_reads[task].size() > 0};
    for (int device = 0; device < problem.num_devices; ++device) {
      key.push_back(problem.Run(task, device));
    }
    for (int tensor : problem.task_makes[task]) key.push_back(problem.tensor_bytes[tensor]);
    const auto [found, is_new] = known.emplace(std::move(key), static_cast<int>(known.size()));
    if (is_new) kind_tasks.emplace_back();
    kind.push_back(found->second);
    kind_tasks[found->second].push_back(task);
  }
}

Annealer::Annealer(const AnnealingData& data, std::vector<int> device, uint64_t seed)
    : data_(data),
      problem_(data.problem),
      random_(seed),
      loads_(data.problem, std::move(device)),
      is_wide_(data.problem.num_resources > kFewResources),
      best_(loads_.device()),
      best_ns_(loads_.ItemNs()),
      best_violation_(Violation()) {
  scale_ = 1.0 / static_cast<double>(std::max<int64_t>(1, best_ns_));
  if (is_wide_) loads_.Track();
  energy_ = Energy();
}

void Annealer::SetPhase(int squarings, double temperature) {
  squarings_ = squarings;
  temperature_ = temperature;
  energy_ = Energy();
}

void Annealer::Restart(const std::vector<int>& device) {
  for (int task = 0; task < problem_.num_tasks; ++task) loads_.Move(task, device[task]);
  Note();
  energy_ = Energy();
}

double Annealer::Promise() const {
  double missing = kUnreachablePrice * static_cast<double>(loads_.num_unreachable());
  for (int memory = 0; memory < problem_.num_memories; ++memory) {
    missing += MissingPart(problem_, loads_, memory);
  }
  return static_cast<double>(std::max<int64_t>(1, loads_.ItemNs())) *
         (1.0 + kMissingPrice * missing);
}

double Annealer::UnreachableEnergy() const {
  return kUnreachablePrice * static_cast<double>(loads_.num_unreachable());
}

double Annealer::ResourceEnergy(int resource) const {
  double power = std::min(kHighestLoad, static_cast<double>(loads_.busy_ns()[resource]) * scale_);
  for (int i = 0; i < squarings_; ++i) power *= power;
  return power;
}

double Annealer::MemoryEnergy(int memory) const {
  return kOverflowPrice * MissingPart(problem_, loads_, memory);
}

double Annealer::Energy() {
  if (is_wide_) {
    std::vector<double> parts;
    parts.reserve(problem_.num_resources);
    for (int resource = 0; resource < problem_.num_resources; ++resource) {
      parts.push_back(ResourceEnergy(resource));
    }
    for (int memory = 0; memory < problem_.num_memories; ++memory) {
      parts.push_back(MemoryEnergy(memory));
    }
    parts_.Assign(std::move(parts));
    loads_.ClearTouched();
    return parts_.Get() + UnreachableEnergy();
  }
  double energy = 0;
  for (int resource = 0; resource < problem_.num_resources; ++resource) {
    energy += ResourceEnergy(resource);
  }
  for (int memory = 0; memory < problem_.num_memories; ++memory) energy += MemoryEnergy(memory);
  return energy + UnreachableEnergy();
}

double Annealer::MovedEnergy() {
  if (!is_wide_) return Energy();
  parts_.Begin();
  for (int resource : loads_.touched_resources()) parts_.Set(resource, ResourceEnergy(resource));
  for (int memory : loads_.touched_memories()) {
    parts_.Set(problem_.num_resources + memory, MemoryEnergy(memory));
  }
  loads_.ClearTouched();
  return parts_.Get() + UnreachableEnergy();
}

void Annealer::Note() {
  const int64_t violation = Violation();
  const int64_t item_ns = loads_.ItemNs();
  if (std::pair(violation, item_ns) >= std::pair(best_violation_, best_ns_)) return;
  best_ = loads_.device();
  best_ns_ = item_ns;
  best_violation_ = violation;
  scale_ = 1.0 / static_cast<double>(std::max<int64_t>(1, best_ns_));
  energy_ = Energy();
}

void Annealer::Try(int64_t moves) {
  if (problem_.num_tasks == 0) return;
  for (int64_t i = 0; i < moves; ++i) {
    MakeMove();
    if (random_.Below(3) == 0) MakeMove();  // two that only together are a gain
    if (moved_.empty()) continue;
    const double energy = MovedEnergy();
    // The limit of acceptance grows with the energy, which counts the binding resources.
    if (energy <= energy_ - temperature_ * energy_ * std::log(random_.Unit())) {
      energy_ = energy;
      moved_.clear();
      Note();
    } else {
      Undo();
      if (is_wide_) {
        parts_.Undo();
        loads_.ClearTouched();
      }
    }
  }
}

void Annealer::MakeMove() {
  const int kind = random_.Below(16);
  if (kind < 5) {
    MoveTask();
  } else if (kind < 8) {
    MoveRegion();
  } else if (kind < 10) {
    MoveSegment();
  } else if (kind < 12) {
    CopyPattern();
  } else if (kind < 14) {
    CopyElsewhere();
  } else {
    Exchange();
  }
}

int Annealer::BusyTask() {
  const std::vector<int64_t>& busy = loads_.busy_ns();
  const auto last = busy.begin() + problem_.num_units;
  const int busiest = static_cast<int>(std::max_element(busy.begin(), last) - busy.begin());
  int task = random_.Below(problem_.num_tasks);
  for (int tries = 0; tries < 4; ++tries) {
    const auto units = problem_.device_units[loads_.device()[task]];
    if (std::ranges::find(units, busiest) != units.end()) break;
    task = random_.Below(problem_.num_tasks);
  }
  return task;
}

int Annealer::Length(int limit) {
  const double size = std::exp(random_.Unit() * std::log(static_cast<double>(limit) + 1.0));
  return std::clamp(static_cast<int>(size), 1, limit);
}

void Annealer::Put(int task, int device) {
  const int before = loads_.device()[task];
  if (before == device || problem_.Run(task, device) == model::kImpossible) return;
  const int group = problem_.task_group[task];
  if (group < 0) {
    moved_.emplace_back(task, before);
    loads_.Move(task, device);
    return;
  }
  for (int member : problem_.group_tasks[group]) {
    moved_.emplace_back(member, loads_.device()[member]);
    loads_.Move(member, device);
  }
}

void Annealer::Undo() {
  for (size_t i = moved_.size(); i-- > 0;) loads_.Move(moved_[i].first, moved_[i].second);
  moved_.clear();
}

void Annealer::MoveTask() {
  const int task = BusyTask();
  const auto after = problem_.successors[task];
  const auto before = problem_.predecessors[task];
  const int neighbours = static_cast<int>(after.size() + before.size());
  int device = random_.Below(problem_.num_devices);
  if (neighbours > 0 && random_.Below(2) == 0) {
    const auto pick = static_cast<size_t>(random_.Below(neighbours));
    device = loads_.device()[pick < after.size() ? after[pick] : before[pick - after.size()]];
  }
  Put(task, device);
}

void Annealer::MoveRegion() {
  const int first = BusyTask();
  const int from = loads_.device()[first];
  const int device = random_.Below(problem_.num_devices);
  const auto limit = static_cast<size_t>(1 + Length(kMaxRegion));
  region_.assign(1, first);
  Put(first, device);
  // Tasks that were moved are on `device`, so no task is taken twice.
  for (size_t next = 0; next < region_.size() && region_.size() < limit && device != from; ++next) {
    const int task = region_[next];
    for (const auto& list : {problem_.predecessors[task], problem_.successors[task]}) {
      for (int other : list) {
        if (region_.size() >= limit) break;
        if (loads_.device()[other] != from || problem_.Run(other, device) == model::kImpossible)
          continue;
        Put(other, device);
        region_.push_back(other);
      }
    }
  }
}

void Annealer::MoveSegment() {
  const int first = BusyTask();
  const int from = loads_.device()[first];
  const int device = random_.Below(problem_.num_devices);
  const int end = std::min(problem_.num_tasks, first + Length(1 + problem_.num_tasks / 16));
  for (int task = first; task < end; ++task) {
    if (loads_.device()[task] == from) Put(task, device);
  }
}

void Annealer::CopyPattern() {
  if (data_.patterns.empty()) return;
  const auto& pattern = data_.patterns[random_.Below(static_cast<int>(data_.patterns.size()))];
  const int first = random_.Below(problem_.num_tasks);
  const int end = std::min(problem_.num_tasks, first + Length(1 + problem_.num_tasks / 16));
  for (int task = first; task < end; ++task) Put(task, pattern[task]);
}

void Annealer::CopyElsewhere() {
  const int first = BusyTask();
  const auto& equals = data_.kind_tasks[data_.kind[first]];
  const int model = equals[random_.Below(static_cast<int>(equals.size()))];
  const int room = problem_.num_tasks - std::max(first, model);
  const int length = std::min(room, Length(1 + problem_.num_tasks / 64));
  for (int i = 0; i < length && data_.kind[first + i] == data_.kind[model + i]; ++i) {
    Put(first + i, loads_.device()[model + i]);
  }
}

void Annealer::Exchange() {
  const int first = BusyTask();
  const int second = random_.Below(problem_.num_tasks);
  const int first_device = loads_.device()[first];
  Put(first, loads_.device()[second]);
  Put(second, first_device);
}

}  // namespace heteroplace::throughput
