// What a request failed of, and at which step: a stream tells of a fault only when it is asked.
//
// Of a step that fails in the calling thread the place is known. One that fails on a device, long
// after it was issued, lies between what the device is known to have done and what it was given, on
// one of its queues: those steps are named.
#include <algorithm>
#include <vector>

#include "exec/engine/engine.h"
#include "exec/workers/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief The router whose decision a call makes; null: it makes none. */
const Router* RouterOf(const Program& program, const Instruction& at) {
  if (!at.IsCall()) return nullptr;
  for (const Router& router : program.routers) {
    for (const Wait& there : router.there) {
      const Queue& queue = program.queues[static_cast<size_t>(there.queue)];
      if (&queue.instructions[static_cast<size_t>(there.count) - 1] == &at) return &router;
    }
  }
  return nullptr;
}

/*! \brief "on queue 'q0' (cpu:0)". */
std::string QueueText(const Queue& queue) {
  return "on queue '" + queue.name + "' (" + DeviceName(queue.device) + ")";
}

}  // namespace

std::string Worker::Where(const std::string& what) const {
  const Instruction* grouped = grouped_.load(std::memory_order_relaxed);
  if (grouped != nullptr) return StepText(*grouped, what);
  return StepText(position_.load(std::memory_order_relaxed), what);
}

/*! \brief An instruction, or "a step" behind the last one. */
std::string Worker::StepText(size_t index, const std::string& what) const {
  if (index >= queue_.instructions.size()) return "a step " + what + " " + QueueText(queue_);
  return StepText(queue_.instructions[index], what);
}

std::string Worker::StepText(const Instruction& at, const std::string& what) const {
  std::string text = "step " + std::to_string(at.step) + " " + what + " " + QueueText(queue_);
  const Program& program = image_->program();
  if (at.work != nullptr) {
    const Router& router = program.routers[static_cast<size_t>(at.work->router)];
    text += " in " + router.Describe(at.work->branch);
  }
  if (at.IsCall()) text += " in kernel '" + program.KernelName(at.kernel) + "'";
  // Kernels of routers that are alike are one, which cannot say whose mask it refuses.
  if (const Router* router = RouterOf(program, at); router != nullptr) {
    text += " of router '" + router->name + "'";
  }
  if (at.tag >= 0) {
    text += " in message " + std::to_string(at.tag) +
            (at.opcode == Opcode::kSend ? " to rank " : " from rank ") +
            std::to_string(queue_.peer);
  }
  return text;
}

/*! \brief "steps 3 (kernel 'add') to 7 (a copy) of queue 'q0'": a row of instructions. */
std::string Worker::StepsText(size_t first, size_t end) const {
  const auto name = [&](size_t index) {
    const Instruction& at = queue_.instructions[index];
    return std::to_string(at.step) +
           (at.IsCall() ? " (kernel '" + image_->program().KernelName(at.kernel) + "')"
            : at.opcode == Opcode::kGroup ? " (branches)"
                                          : " (a copy)");
  };
  return (end - first == 1 ? "step " + name(first)
                           : "steps " + name(first) + " to " + name(end - 1)) +
         " of queue '" + queue_.name + "'";
}

/*! \brief Instructions of a request that this queue's stream was given. Of the issuing thread. */
size_t Worker::NumIssued(const Slot* slot) const {
  if (slot == slot_) return num_issued_;
  const bool is_issued = std::ranges::find(pending_, slot) != pending_.end();
  return is_issued ? instructions_.size() : 0;
}

/*! \brief Whether the device answers that it has done an instruction. Of the issuing thread. */
bool Worker::HasReached(Slot* slot, size_t index) noexcept {
  const int32_t event = instructions_[index].event;
  try {
    // Both were recorded behind it in this request.
    if (slot->trace != nullptr && slot->has_timers) {
      return slot->timers(index_)[2 * index + 1]->IsReached();
    }
    return event >= 0 && slot->events(index_)[static_cast<size_t>(event)]->IsReached();
  } catch (const std::exception&) {
    return false;
  }
}

/*!
 * \brief Instructions of a request that the device is known to have done: what it has written, or a
 * core has found reached. Any thread.
 */
size_t Worker::NumReached(const Slot* slot, size_t num_issued) const {
  const int64_t begin = slot->number() * static_cast<int64_t>(instructions_.size());
  const int64_t seen = progress_.seen.load(std::memory_order_relaxed) - begin;
  const int64_t written = word_ == 0 ? 0 : progress_.ReachedAfter(begin);
  const auto most = static_cast<int64_t>(num_issued);
  return static_cast<size_t>(std::clamp<int64_t>(std::max(seen, written), 0, most));
}

/*!
 * \brief "one of steps 5 (kernel 'add') to 7 (a copy) of queue 'gpu', or ...", for steps that may
 * have failed; of this queue the step `unknown` where there are none.
 */
std::string Worker::DoubtText(const std::vector<Doubt>& doubts, size_t unknown,
                              bool is_oldest) const {
  std::string steps;
  size_t count = 0;
  for (const Doubt& doubt : doubts) {
    steps += (count == 0 ? "" : ", or ") + doubt.worker->StepsText(doubt.first, doubt.end);
    count += doubt.end - doubt.first;
  }
  if (count == 0) return StepText(unknown, "failed");
  if (count == 1 && is_oldest) return doubts[0].worker->StepText(doubts[0].first, "failed");
  return "a step failed on " + DeviceName(queue_.device) + ", one of " + steps +
         (is_oldest ? "" : ", or of a request before this one");
}

/*!
 * \brief Which steps of a request may have failed, on any queue of the device. After a fault of a
 * GPU all questions are answered with it, but a word tells what was done before.
 * \param unknown the instruction that is named where none was issued and not done.
 */
std::string Worker::FaultText(Slot* slot, size_t unknown) {
  std::vector<Doubt> doubts;
  bool is_oldest = true;  // else the fault may be of a request before it, which ends in turn
  for (Worker* member : leader_->members_) {
    is_oldest = is_oldest &&
                (member->pending_.empty() || member->pending_.front()->number() >= slot->number());
    const size_t end = member->NumIssued(slot);
    size_t first = member->NumReached(slot, end);
    for (size_t i = first; i < end; ++i) {
      if (member->HasReached(slot, i)) first = i + 1;
    }
    if (first != end) doubts.push_back({member, first, end});
  }
  return DoubtText(doubts, unknown, is_oldest);
}

/*! \brief Fails the request that is being issued if the stream has had a fault. */
void Worker::LookForFault() noexcept {
  if (slot_ == nullptr || slot_->HasFailed()) return;
  try {
    static_cast<void>(stream_->IsIdle());
  } catch (const std::exception& fault) {
    FailQueue(slot_, CauseOf(fault));
  }
}

/*! \brief After a failure: a GPU that answers a question with a fault again is lost. */
bool Worker::IsLost() noexcept {
  if (stream_ == nullptr || queue_.device.device_type != kDLCUDA) return false;
  try {
    static_cast<void>(stream_->IsIdle());
    return false;
  } catch (const Error& error) {
    engine_->Lose(error.what());
  } catch (const std::exception&) {
    // Only a fault has a text, for which memory was short.
    engine_->Lose("a fault");
  }
  return true;
}

/*! \brief Fails the present request at the present step; if the device is lost, an earlier one did
 * that, as it answers every call with its fault from then on. */
void Worker::Fail(const char* cause) noexcept {
  const bool is_lost = IsLost();
  try {
    engine_->Fail(slot_,
                  (is_lost ? FaultText(slot_, position_.load()) : Where("failed")) + ": " + cause);
  } catch (const std::bad_alloc&) {
    engine_->Fail(slot_, kMemoryIsShort);
  }
}

/*! \brief Fails a request whose work on the stream has had a fault. */
void Worker::FailQueue(Slot* slot, const char* cause) noexcept {
  try {
    engine_->Fail(slot, FaultText(slot, instructions_.size()) + ": " + cause);
  } catch (const std::bad_alloc&) {
    engine_->Fail(slot, kMemoryIsShort);
  }
  IsLost();
}

/*!
 * \brief The same for another worker, which waits for an instruction of this queue. Any thread:
 * what was issued on other queues of the device is not known here, and any of it may have failed.
 */
void Worker::FailBefore(Slot* slot, const BoundWait& wait, const char* cause) noexcept {
  try {
    std::vector<Doubt> doubts;
    for (const Worker* member : leader_->members_) {
      const size_t end =
          member == this ? static_cast<size_t>(wait.count) : member->instructions_.size();
      const size_t first = member->NumReached(slot, end);
      if (first != end) doubts.push_back({member, first, end});
    }
    const auto last = static_cast<size_t>(wait.count) - 1;
    engine_->Fail(slot, DoubtText(doubts, last, /*is_oldest=*/true) + ": " + cause);
  } catch (const std::bad_alloc&) {
    engine_->Fail(slot, kMemoryIsShort);
  }
}

void Worker::FailPending(Slot* slot, const char* cause) noexcept {
  FailQueue(slot, cause);
  Drain();
}

}  // namespace heteroplace::exec
