// Groups: guarded calls whose branches are done side by side, each by one core or on one stream.
//
// Which branches are active, and with how many rows, is known in the run alone. So they are no part
// of any core's queue: whoever is free takes the next one, and does all of its calls, whose rows
// are in its caches. What is done, and in how many rows, is the same as without a group.
#include <algorithm>

#include "exec/engine/engine.h"
#include "exec/workers/worker_wait.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Branches for each core that are left for the end, when all take the largest. */
constexpr size_t kLastLanes = 2;

}  // namespace

/*! \brief Lists the active branches of a group, and forgets what is nested in the others. */
void Worker::ListLanes(BoundGroup* group) {
  group->list.Clear();
  for (size_t n = 0; n < group->lanes.size(); ++n) {
    const Lane lane = group->lanes[n];
    grouped_.store(&queue_.instructions[lane.first], std::memory_order_relaxed);
    for (size_t i = lane.first; i < lane.end; ++i) {
      const BoundBranch& at = branches_[static_cast<size_t>(instructions_[i].branch)];
      if (i != lane.first && at.step->nested_loads.empty()) continue;
      const int64_t load = TakeLoad(at);
      if (load == 0) continue;
      const GuardedBranch& guard = at.step->guard;
      group->list.Add(n, guard.router->PaddedLoad(guard.branch, load));
      break;
    }
  }
  grouped_.store(nullptr, std::memory_order_relaxed);
}

/*! \brief Does a group with all who have joined it; false if it failed. */
[[gnu::noinline]] bool Worker::DoGroup(const BoundInstruction& instruction) noexcept {
  BoundGroup* group = instruction.group;
  try {
    ListLanes(group);
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
    return false;
  }
  group->list.Open(static_cast<uint32_t>(next_));
  if (instruction.has_joins) team_.bell()->Ring();
  DoLanes(group, instruction.role);
  // Also after a failure: others are in the slot until then.
  WaitFor(team_.bell(), [&] { return group->list.IsOver(); }, Spins());
  return !slot_->HasFailed();
}

/*! \brief Does branches of another queue's group until that is over. */
[[gnu::noinline]] void Worker::JoinGroup(const BoundInstruction& instruction) {
  BoundGroup* group = instruction.group;
  const auto turn = static_cast<uint32_t>(next_);
  const int64_t target = CountAt(instruction.leader_length, instruction.leader_count);
  const auto is_over = [&] {
    return instruction.leader->done.load() >= target || slot_->HasFailedInOrder();
  };
  while (!is_over()) {
    WaitFor(
        instruction.team->bell(), [&] { return group->list.HasNext(turn) || is_over(); },
        engine_->run_spins());
    DoLanes(group, instruction.role);
  }
}

/*! \brief Does branches of a group, of this queue or another, until none is left to begin. */
void Worker::DoLanes(BoundGroup* group, TeamRole role) noexcept {
  const bool has_fewest = role.rank % 2 == 1;
  const size_t least_left = has_fewest ? kLastLanes * role.threads : SIZE_MAX;
  while (const auto lane = group->list.Take(static_cast<uint32_t>(next_), least_left)) {
    if (!slot_->HasFailed()) DoLane(*group, group->lanes[*lane]);
    if (group->list.Finish()) group->owner->team_.bell()->Ring();
  }
}

/*! \brief Does the calls of an active branch. With the last ones those may help who find none. */
void Worker::DoLane(const BoundGroup& group, Lane lane) noexcept {
  Worker* owner = group.owner;
  const bool is_recorded = slot_->trace != nullptr && slot_->kind == RequestKind::kRun;
  const uint32_t num_others = owner->call_times_.empty() ? 0 : num_other_cores_;
  TeamRole role;
  for (size_t i = lane.first; i < lane.end; ++i) {
    const BoundBranch& at = owner->branches_[static_cast<size_t>(owner->instructions_[i].branch)];
    grouped_.store(&owner->queue_.instructions[i], std::memory_order_relaxed);
    const int64_t start = is_recorded ? slot_->trace->Now() : 0;
    const bool is_last = !group.list.HasNext(static_cast<uint32_t>(next_));
    role.helpers = is_last ? std::min(kMaxHelpers, num_others) : 0;
    try {
      const int64_t load = static_cast<const int32_t*>(slot_->tensor(at.loads)->data)[at.branch];
      if (!DoRounds(owner, at, load, role)) break;
    } catch (const std::exception& fault) {
      Fail(CauseOf(fault));
      break;
    }
    if (!is_recorded) continue;
    slot_->trace->grouped_spans(owner->index_, slot_->trace_place)[i] = {
        {start, slot_->trace->Now()}, static_cast<int32_t>(index_)};
  }
  grouped_.store(nullptr, std::memory_order_relaxed);
}

/*! \brief Issues a group: each branch to one of several streams beside that of the queue. */
void Worker::IssueGroup(const BoundInstruction& instruction) {
  BoundGroup* group = instruction.group;
  ListLanes(group);
  stream_->Record(fork_.get());
  try {
    IssueLanes(group);
  } catch (...) {
    // What was issued is at work in the slot, and the queue's stream does not wait for it.
    for (const std::unique_ptr<Stream>& side : sides_) {
      try {
        side->Synchronise();
      } catch (const std::exception&) {
        continue;  // it is the fault that is thrown, or comes of it
      }
    }
    throw;
  }
}

void Worker::IssueLanes(BoundGroup* group) {
  const auto& order = group->list.Sort();
  const size_t num_used = std::min(order.size(), sides_.size());
  for (size_t side = 0; side < num_used; ++side) sides_[side]->Wait(fork_.get());
  std::vector<bool> is_active(group->lanes.size());
  for (size_t n = 0; n < order.size(); ++n) {
    is_active[order[n].second] = true;
    const size_t side = n % num_used;
    IssueLane(sides_[side].get(), group->lanes[order[n].second],
              first_side_ + static_cast<int32_t>(side));
  }
  for (size_t n = 0; n < is_active.size() && slot_->trace != nullptr; ++n) {
    if (!is_active[n]) IssueLane(stream_.get(), group->lanes[n], -1);
  }
  for (size_t side = 0; side < sides_.size(); ++side) {
    Event* end = slot_->side_ends(index_)[group->number * sides_.size() + side].get();
    sides_[side]->RecordEnd(end);
    if (side < num_used) stream_->Wait(end);
  }
}

/*! \brief Issues the calls of a branch to a side stream, or (-1) only times of none of them. */
void Worker::IssueLane(Stream* stream, Lane lane, int32_t side) {
  for (size_t i = lane.first; i < lane.end; ++i) {
    const BoundBranch& at = branches_[static_cast<size_t>(instructions_[i].branch)];
    grouped_.store(&queue_.instructions[i], std::memory_order_relaxed);
    const auto mark = [&](size_t timer) {
      if (slot_->trace != nullptr) stream->Record(slot_->timers(index_)[2 * i + timer].get());
    };
    mark(0);
    if (side >= 0) {
      IssueRounds(stream, at,
                  static_cast<const int32_t*>(slot_->tensor(at.loads)->data)[at.branch]);
    }
    mark(1);
    if (slot_->trace == nullptr) continue;
    slot_->trace->grouped_spans(index_, slot_->trace_place)[i].core = side;
  }
  grouped_.store(nullptr, std::memory_order_relaxed);
}

}  // namespace heteroplace::exec
