// Guarded instructions: whether they are done, at which capacity, and on which rows.
//
// A guard is one load of a number that the router's kernel has written. What it skips counts as
// done at once, so nobody's waits hang on a decision.
#include <algorithm>
#include <cstring>

#include "exec/engine/engine.h"
#include "exec/workers/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Rows of a branch: where they begin in routed buffers, and how many have cells. */
struct RowRange {
  int64_t first;
  int64_t count;
};

const int32_t* Integers(Slot* slot, int32_t tensor) {
  return static_cast<const int32_t*>(slot->tensor(tensor)->data);
}

[[noreturn]] void FailGuard(const GuardedBranch& guard, const std::string& what) {
  throw Error(ErrorKind::kExecution, guard.router->Describe(guard.branch) + what);
}

/*! \brief The rows of a load; throws where it does not fit into the buffers, or must not. */
RowRange RowsOf(Slot* slot, const GuardedBranch& guard, int64_t load) {
  const Router& router = *guard.router;
  const int64_t most = router.CapacitiesOf(guard.branch).back();
  if (load > most && router.overflow == Overflow::kError) {
    FailGuard(guard, " has " + std::to_string(load) + " cells, its largest capacity is " +
                         std::to_string(most) + ", and overflow is an error");
  }
  RowRange rows{0, router.overflow == Overflow::kRounds ? load : std::min(load, most)};
  if (router.offsets < 0) return rows;
  rows.first = Integers(slot, router.offsets)[guard.branch];
  const int64_t padded = router.PaddedLoad(guard.branch, load);
  if (rows.first < 0 || rows.first > router.rows - padded || rows.first % router.quantum != 0) {
    FailGuard(guard, " has " + std::to_string(padded) + " rows from row " +
                         std::to_string(rows.first) + " on; expected a multiple of " +
                         std::to_string(router.quantum) + ", and an end within the " +
                         std::to_string(router.rows) + " rows of its buffers");
  }
  return rows;
}

/*! \brief A copy of rows, or of all. */
struct BranchCopy {
  DLTensor dst;
  DLTensor src;
  int64_t bytes;
};

BranchCopy CopyOf(Slot* slot, const BoundInstruction& instruction, const BranchStep& step,
                  int64_t load) {
  BranchCopy copy{*slot->tensor(instruction.dst), *slot->tensor(instruction.src),
                  instruction.bytes};
  if (!step.copies_rows) return copy;
  const RowRange rows = RowsOf(slot, step.guard, load);
  const int64_t row_bytes = step.copied_row_bytes;
  copy.src.data = static_cast<char*>(copy.src.data) + rows.first * row_bytes;
  copy.dst.data = static_cast<char*>(copy.dst.data) + rows.first * row_bytes;
  copy.bytes = rows.count * row_bytes;
  return copy;
}

}  // namespace

void Worker::BindBranch(const Instruction& from, std::span<const std::unique_ptr<Worker>> workers) {
  const BranchStep& step = image_->branch_steps(index_)[branches_.size()];
  BoundBranch to{from.work->when,
                 from.work->branch,
                 step.guard.router->loads,
                 step.guard.router->num_cells,
                 step.flag,
                 &step,
                 {},
                 {}};
  for (const CapacityStep& call : step.calls) {
    to.kernels.push_back(image_->kernels()[static_cast<size_t>(call.kernel)]);
  }
  for (const GuardedBranch& doubt : step.doubts) {
    std::vector<BoundThere>& there = to.there.emplace_back();
    for (const Wait& wait : doubt.router->there) {
      Worker& other = *workers[static_cast<size_t>(wait.queue)];
      const BoundInstruction& last = other.instructions_[static_cast<size_t>(wait.count - 1)];
      there.push_back({&other.progress_, wait.count,
                       static_cast<int64_t>(other.instructions_.size()), other.stream_ != nullptr,
                       last.writes_word});
    }
  }
  for (int32_t loads : step.nested_loads) {
    const Tensor& tensor = image_->program().tensors[static_cast<size_t>(loads)];
    zeros_.resize(std::max(zeros_.size(), static_cast<size_t>(tensor.shape[0])));
  }
  branches_.push_back(std::move(to));
}

/*!
 * \brief The load of a guarded instruction that is to be done; 0 for one that is not.
 *
 * Of what is predicted no load is known: 1.
 */
int64_t Worker::TakeLoad(const BoundBranch& at) {
  if (at.when == When::kPredicted) {
    return slot_->predicted[at.flag] != 0 && !IsRefuted(at) ? 1 : 0;
  }
  const int64_t load = Integers(slot_, at.loads)[at.branch];
  if (load == 0) {
    if (!at.step->nested_loads.empty()) ForgetNested(*at.step);
    return 0;
  }
  if (load < 0 || load > at.num_cells) {
    FailGuard(at.step->guard, " has " + std::to_string(load) + " cells; expected 0 to " +
                                  std::to_string(at.num_cells));
  }
  return at.when == When::kMissed && slot_->predicted[at.flag] != 0 ? 0 : load;
}

/*! \brief Whether the router of a prediction, or one around it, has said no by now. */
bool Worker::IsRefuted(const BoundBranch& at) const {
  for (size_t d = 0; d < at.there.size(); ++d) {
    const auto& there = at.there[d];
    if (!std::ranges::all_of(there, [this](const BoundThere& each) { return IsThere(each); })) {
      continue;
    }
    const GuardedBranch& doubt = at.step->doubts[d];
    if (Integers(slot_, doubt.router->loads)[doubt.branch] == 0) return true;
  }
  return false;
}

/*! \brief Whether a part of a decision is known to be there. */
bool Worker::IsThere(const BoundThere& there) const {
  const int64_t target = CountAt(there.length, there.count);
  if (there.progress->done.load(std::memory_order_acquire) < target) return false;
  // What an asynchronous queue has issued is there when its device says so.
  return !there.is_async || (there.has_word && there.progress->HasReached(target));
}

/*! \brief A branch that is not active has no nested decisions: their loads become 0. */
void Worker::ForgetNested(const BranchStep& step) {
  for (int32_t loads : step.nested_loads) {
    DLTensor* tensor = slot_->tensor(loads);
    const auto bytes = static_cast<size_t>(tensor->shape[0]) * sizeof(int32_t);
    if (stream_ == nullptr) {
      std::memset(tensor->data, 0, bytes);
      continue;
    }
    // Behind what was issued before: a wrong prediction may still be writing.
    DLTensor zeros = *tensor;
    zeros.data = zeros_.data();
    stream_->Copy(*tensor, zeros, static_cast<int64_t>(bytes));
  }
}

/*!
 * \brief Does a call at the capacities that hold a load, of the largest one as often as needed.
 * \param visit (capacity's call, round, its first row) -> whether to go on.
 */
template <typename Visit>
bool Worker::ForEachRound(const BranchStep& step, int64_t load, const Visit& visit) {
  if (step.calls[0].capacity == 0) return visit(step.calls[0], 0, 0);
  RowRange rows = RowsOf(slot_, step.guard, load);
  const std::vector<int64_t>& capacities = step.guard.router->CapacitiesOf(step.guard.branch);
  for (size_t round = 0; rows.count > 0; ++round) {
    const int64_t cells = std::min(rows.count, capacities.back());
    const auto capacity = std::ranges::lower_bound(capacities, cells);
    const int32_t call = step.call_of[static_cast<size_t>(capacity - capacities.begin())];
    if (call >= 0 && !visit(step.calls[static_cast<size_t>(call)], round, rows.first)) return false;
    rows.first += *capacity;
    rows.count -= cells;
  }
  return true;
}

KernelCall Worker::CallOf(Slot* slot, const BoundBranch& at, const CapacityStep& call, size_t round,
                          int64_t first_row) {
  TVMValue* arguments =
      slot->branch_arguments(index_)->At(call, round % at.step->num_rounds, first_row);
  return {at.kernels[static_cast<size_t>(&call - at.step->calls.data())], arguments,
          type_codes_.data(), static_cast<int>(call.tensors.size())};
}

/*! \brief Makes a guarded call of a queue, this one or another, at a load; false if it failed.
 * Inlined, as all around a kernel takes some ten ns. */
[[gnu::always_inline]] inline bool Worker::DoRoundsHere(Worker* owner, const BoundBranch& at,
                                                        int64_t load, TeamRole role) {
  return ForEachRound(
      *at.step, load, [&](const CapacityStep& call, size_t round, int64_t first_row) {
        return !slot_->HasFailed() &&
               Call(role, owner->CallOf(slot_, at, call, round, first_row),
                    owner->call_times_.data(), owner->instructions_.size() + call.number);
      });
}

bool Worker::DoRounds(Worker* owner, const BoundBranch& at, int64_t load, TeamRole role) {
  return DoRoundsHere(owner, at, load, role);
}

/*! \brief The same on a stream. */
void Worker::IssueRounds(Stream* stream, const BoundBranch& at, int64_t load) {
  ForEachRound(*at.step, load, [&](const CapacityStep& call, size_t round, int64_t first_row) {
    stream->Launch(CallOf(slot_, at, call, round, first_row));
    return true;
  });
}

/*! \brief Does a guarded instruction on the calling core, or skips it; false if it failed. */
bool Worker::ExecuteBranch(const BoundInstruction& instruction) noexcept {
  if (instruction.is_grouped) return true;  // its group has done it
  const BoundBranch& at = branches_[static_cast<size_t>(instruction.branch)];
  try {
    const int64_t load = TakeLoad(at);
    if (load == 0) return true;
    if (instruction.opcode == Opcode::kBranchCall) {
      if (DoRoundsHere(this, at, load, instruction.role)) return true;
      // The rounds before have begun it, and a caller would take it along; `Tell` is not reached.
      if (instruction.has_joins) team_.End();
      return false;
    }
    const BranchCopy copy = CopyOf(slot_, instruction, *at.step, load);
    if (copy.bytes != 0) {
      std::memmove(copy.dst.data, copy.src.data, static_cast<size_t>(copy.bytes));
    }
    CountCopy(instruction, copy.bytes);
    return true;
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
    return false;
  }
}

/*! \brief The same on a stream. */
void Worker::IssueBranch(const BoundInstruction& instruction) {
  const BoundBranch& at = branches_[static_cast<size_t>(instruction.branch)];
  const int64_t load = TakeLoad(at);
  if (load == 0) return;
  if (instruction.opcode == Opcode::kBranchCall) {
    return IssueRounds(stream_.get(), at, load);
  }
  const BranchCopy copy = CopyOf(slot_, instruction, *at.step, load);
  stream_->Copy(copy.dst, copy.src, copy.bytes);
  CountCopy(instruction, copy.bytes);
}

}  // namespace heteroplace::exec
