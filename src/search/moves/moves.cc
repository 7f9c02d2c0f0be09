#include "search/moves/moves.h"

#include <algorithm>

namespace heteroplace::search {

namespace {

constexpr int kMaxShift = 48;  // positions that a task moves in the order
constexpr int kMaxPath = 8;
constexpr int kMaxSegment = 6;

}  // namespace

Moves::Moves(const model::Problem& problem, const decompose::Module& module,
             const Branches& branches, Arrangement& arrangement, Random& random)
    : problem_(problem),
      module_(module),
      branches_(branches),
      arrangement_(arrangement),
      random_(random) {
  StayWithin(0, module.num_tasks);
}

void Moves::StayWithin(int first, int last) {
  first_ = first;
  last_ = last;
  is_all_ = first == 0 && last == module_.num_tasks;
  movable_.clear();
  for (int index = first; index < last; ++index) {
    const int task = is_all_ ? index : arrangement_.order()[index];
    if (CanMove(task) && module_.allowed[task].size() > 1) movable_.push_back(task);
  }
}

bool Moves::Propose() {
  // Parts per hundred; without branches their share goes to single tasks.
  const int kind = random_.Below(100);
  const bool has_branches = is_all_ && branches_.tasks.num_rows() > 0;
  if (movable_.empty() || kind < 25) {
    ShiftTask(PickAny());
  } else if (has_branches && kind < 33) {
    ShiftBranch();
  } else if (has_branches && kind < 42) {
    MoveBranch();
  } else if (has_branches && kind < 46) {
    ExchangeBranches();
  } else if (has_branches && kind < 54) {
    CopyBranch();
  } else if (kind < 68) {
    MoveTask();
  } else if (kind < 75) {
    MoveTask();
    ShiftTask(PickAny());
  } else if (kind < 85) {
    MovePath();
  } else if (kind < 92) {
    MoveSegment();
  } else {
    ExchangeTasks();
  }
  return arrangement_.is_changed();
}

int Moves::PickDevice(int task) {
  const auto allowed = module_.allowed[task];
  return allowed[static_cast<size_t>(random_.Below(static_cast<int>(allowed.size())))];
}

bool Moves::IsAllowed(int task, int device) const {
  return module_.Run(task, device) != model::kImpossible && CanMove(task);
}

void Moves::SetAll(std::span<const int> tasks, int device) {
  for (int task : tasks) {
    if (IsAllowed(task, device)) arrangement_.SetDevice(task, device);
  }
}

void Moves::MoveTask() {
  const int task = PickMovable();
  const auto allowed = module_.allowed[task];
  // One of the others: the last one stands in for the current one.
  int device = allowed[static_cast<size_t>(random_.Below(static_cast<int>(allowed.size()) - 1))];
  if (device == arrangement_.device()[task]) device = allowed.back();
  arrangement_.SetDevice(task, device);
}

void Moves::MovePath() {
  int task = PickMovable();
  const int device = PickDevice(task);
  for (int length = 2 + random_.Below(kMaxPath - 1); length > 0; --length) {
    if (IsAllowed(task, device)) arrangement_.SetDevice(task, device);
    const auto next = module_.successors[task];
    if (next.empty()) return;
    task = next[static_cast<size_t>(random_.Below(static_cast<int>(next.size())))];
    if (arrangement_.position()[task] >= last_) return;
  }
}

void Moves::MoveSegment() {
  const int length = std::min(2 + random_.Below(kMaxSegment - 1), last_ - first_);
  const int first = first_ + random_.Below(last_ - first_ - length + 1);
  const int common = PickDevice(arrangement_.order()[first]);
  const bool is_one = random_.Below(2) == 0;
  for (int index = first; index < first + length; ++index) {
    const int task = arrangement_.order()[index];
    const int device = is_one ? common : PickDevice(task);
    if (IsAllowed(task, device)) arrangement_.SetDevice(task, device);
  }
}

void Moves::MoveBranch() {
  const auto branch = PickBranch();
  const int size = static_cast<int>(branch.size());
  const int device = PickDevice(branch[static_cast<size_t>(random_.Below(size))]);
  switch (random_.Below(4)) {
    case 0:  // The first part.
      SetAll(branch.first(static_cast<size_t>(1 + random_.Below(size))), device);
      break;
    case 1:  // The last part.
      SetAll(branch.subspan(static_cast<size_t>(random_.Below(size))), device);
      break;
    default:
      SetAll(branch, device);
  }
}

void Moves::ExchangeTasks() {
  const int left = PickMovable();
  const int position = arrangement_.position()[left];
  const int reach = std::min(position + 1 + random_.Below(kMaxShift), last_ - 1);
  const int right = arrangement_.order()[reach];
  const int left_device = arrangement_.device()[left];
  const int right_device = arrangement_.device()[right];
  if (!IsAllowed(left, right_device) || !IsAllowed(right, left_device)) return;
  arrangement_.SetDevice(left, right_device);
  arrangement_.SetDevice(right, left_device);
}

void Moves::ExchangeBranches() {
  const auto left = PickBranch();
  const auto right = PickBranch();
  if (left.size() != right.size() || left.data() == right.data()) return;
  for (size_t index = 0; index < left.size(); ++index) {
    const int left_device = arrangement_.device()[left[index]];
    const int right_device = arrangement_.device()[right[index]];
    if (!IsAllowed(left[index], right_device) || !IsAllowed(right[index], left_device)) continue;
    arrangement_.SetDevice(left[index], right_device);
    arrangement_.SetDevice(right[index], left_device);
  }
}

/*! \brief Gives a branch the devices of another one that is alike. */
void Moves::CopyBranch() {
  const int from = random_.Below(branches_.tasks.num_rows());
  const auto alike = branches_.of_kind[branches_.kind[from]];
  const int to = alike[static_cast<size_t>(random_.Below(static_cast<int>(alike.size())))];
  const auto source = branches_.tasks[from];
  const auto target = branches_.tasks[to];
  for (size_t index = 0; index < source.size(); ++index) {
    const int device = arrangement_.device()[source[index]];
    if (IsAllowed(target[index], device)) arrangement_.SetDevice(target[index], device);
  }
}

void Moves::ShiftTask(int task) {
  const int from = arrangement_.position()[task];
  auto [lowest, highest] = arrangement_.Range(task);
  lowest = std::max({lowest, first_, from - kMaxShift});
  highest = std::min({highest, last_ - 1, from + kMaxShift});
  if (lowest >= highest) return;
  int to = lowest + random_.Below(highest - lowest);
  if (to >= from) ++to;
  arrangement_.Rotate(from, to);
}

void Moves::ShiftBranch() {
  const auto branch = PickBranch();
  // Draws the branch together: as early as it can be, or as late.
  if (random_.Below(2) == 0) {
    for (int task : branch) {
      const int earliest = arrangement_.Range(task).first;
      const int from = arrangement_.position()[task];
      if (earliest < from) arrangement_.Rotate(from, earliest);
    }
    return;
  }
  for (size_t index = branch.size(); index-- > 0;) {
    const int latest = arrangement_.Range(branch[index]).second;
    const int from = arrangement_.position()[branch[index]];
    if (latest > from) arrangement_.Rotate(from, latest);
  }
}

}  // namespace heteroplace::search
