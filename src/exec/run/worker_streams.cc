// Issuing the work of streams: one thread for all queues of a GPU, or for a fake device.
#include <algorithm>

#include "exec/run/engine.h"
#include "exec/run/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

/*! \brief Issues the part of all queues of the thread, in the order of the plan. */
void Worker::DoStreams() {
  const bool is_issued = IssueAll();
  for (Worker* member : members_) {
    if (slot_->kind != RequestKind::kRun && is_issued) member->EndSample();
  }
  for (Worker* member : members_) member->EndIssue();
}

/*! \brief Issues all instructions of all queues; false if the request has failed. */
bool Worker::IssueAll() {
  const RequestKind kind = slot_->kind;
  if (kind != RequestKind::kRun && kind != RequestKind::kSample) return true;  // none for streams
  for (Worker* member : members_) {
    try {
      if (slot_->trace != nullptr) member->BeginTrace();
    } catch (const std::exception& fault) {
      member->Fail(CauseOf(fault));
      return false;
    }
  }
  for (const IssueStep& step : order_) {
    try {
      if (!step.worker->Issue(step.index)) return false;
    } catch (const std::exception& fault) {
      step.worker->Fail(CauseOf(fault));
      return false;
    }
  }
  return true;
}

/*! \brief Issues one instruction after its waits; false if the request has failed. */
bool Worker::Issue(size_t index) {
  const BoundInstruction& instruction = instructions_[index];
  const bool is_traced = slot_->trace != nullptr;
  position_.store(index, std::memory_order_relaxed);
  if (!Await(instruction) || slot_->HasFailed()) return false;
  if (is_traced) BeginTimer(index);
  if (slot_->kind == RequestKind::kSample && instruction.opcode == Opcode::kCall) {
    if (!SampleStream(instruction, &slot_->measurement->sample)) return false;
  } else {
    IssueOne(instruction);
  }
  if (is_traced) EndTimer(index);
  if (!instruction.is_awaited) return true;
  stream_->Record(slot_->events(index_)[static_cast<size_t>(instruction.event)].get());
  progress_.Publish(base_ + static_cast<int64_t>(index) + 1);
  return true;
}

/*! \brief Waits for the end of a request that is no run. */
void Worker::EndSample() {
  position_.store(instructions_.size(), std::memory_order_relaxed);
  try {
    stream_->Synchronise();
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
  }
}

/*! \brief Ends this queue's part, at once or when its stream has come to the end of it. */
void Worker::EndIssue() {
  bool is_pending = slot_->kind == RequestKind::kRun;
  if (!is_pending && slot_->HasFailed()) Drain();
  // Nobody waits for what this queue has not issued.
  if (slot_->HasFailed()) progress_.Publish(next_ * static_cast<int64_t>(instructions_.size()));
  position_.store(instructions_.size(), std::memory_order_relaxed);
  try {
    // Also after a failure: what was issued before is at work in the slot until then.
    if (is_pending) {
      stream_->RecordEnd(slot_->events(index_).back().get());
      pending_.push_back(slot_);
    }
  } catch (const std::exception& fault) {
    is_pending = false;
    Fail(CauseOf(fault));
    Drain();
    PollPending();  // requests end in their order
  }
  if (!is_pending) return FinishPart(slot_);
  slot_ = nullptr;
  PollPending();
}

bool Worker::IsAnyPending() const {
  return std::any_of(members_.begin(), members_.end(),
                     [](const Worker* member) { return !member->pending_.empty(); });
}

bool Worker::PollAllPending() noexcept {
  for (Worker* member : members_) member->PollPending();
  return IsAnyPending();
}

/*!
 * \brief Waits until the stream is empty, as what was issued is at work in the slot until then. A
 * fault that it had is of the present request, if there is one.
 */
void Worker::Drain() noexcept {
  for (;;) {
    try {
      return stream_->Synchronise();
    } catch (const std::exception& fault) {
      if (slot_ != nullptr) Fail(CauseOf(fault));
      if (dynamic_cast<const Error*>(&fault) != nullptr) return;  // else it may not be empty yet
    }
  }
}

void Worker::PollPending() noexcept {
  while (!pending_.empty()) {
    Slot* slot = pending_.front();
    try {
      if (!slot->events(index_).back()->IsReached()) return;
      if (slot->trace != nullptr) ReadTimers(slot);
    } catch (const std::exception& fault) {
      FailPending(slot, CauseOf(fault));
    }
    pending_.pop_front();
    FinishPart(slot);
  }
}

/*! \brief A stream tells of a fault only when it is asked, so its step is not known. */
void Worker::FailPending(Slot* slot, const char* cause) noexcept {
  try {
    engine_->Fail(slot, DescribeQueue(queue_, "failed") + ": " + cause);
  } catch (const std::bad_alloc&) {
    engine_->Fail(slot, kMemoryIsShort);
  }
  Drain();
}

void Worker::IssueOne(const BoundInstruction& instruction) {
  if (instruction.opcode == Opcode::kCall) {
    stream_->Launch(CallOf(instruction));
  } else {
    stream_->Copy(*slot_->tensor(instruction.dst), *slot_->tensor(instruction.src),
                  instruction.bytes);
  }
}

}  // namespace heteroplace::exec
