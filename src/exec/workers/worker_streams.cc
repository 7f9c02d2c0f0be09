// Issuing the work of streams: one thread for all queues of a GPU, or for a fake device.
#include <algorithm>

#include "exec/engine/engine.h"
#include "exec/workers/worker.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Rounds of polling between two questions whether a stream has had a fault. */
constexpr uint32_t kPollsPerFault = 64;

/*! \brief Whether a request has work for streams. */
bool IssuesWork(RequestKind kind) {
  return kind == RequestKind::kRun || kind == RequestKind::kSample;
}

}  // namespace

/*! \brief Issues the part of all queues of the thread, in the order of the plan. */
void Worker::DoStreams() {
  looks_for_faults_ = word_ != 0;
  const bool is_issued = IssueAll();
  looks_for_faults_ = false;
  for (Worker* member : members_) member->CatchUp();
  for (Worker* member : members_) {
    if (slot_->kind != RequestKind::kRun && is_issued) member->EndSample();
  }
  for (Worker* member : members_) member->EndIssue();
}

/*!
 * \brief Records what is issued together, where the slot does not have it yet: the first one when
 * it is loaded, others in their first request.
 */
void Worker::RecordLaunches() {
  std::vector<std::unique_ptr<RecordedWork>>& recorded = slot_->recorded(index_);
  while (recorded.size() < recorded_.size()) {
    const auto [first, last] = recorded_[recorded.size()];
    recorded.push_back(stream_->Capture([&, first = first, last = last] {
      for (size_t i = first; i <= last; ++i) {
        position_.store(i, std::memory_order_relaxed);
        IssueOne(instructions_[i]);
      }
    }));
  }
}

/*!
 * \brief Issues each kernel of NVIDIA's libraries once when the program is loaded: the library
 * brings its code to the device at the first call, which may wait for the device and must be in no
 * run and no graph. What it computes of what lies there is overwritten by the first run.
 */
void Worker::WarmLibraryKernels() {
  for (size_t i = 0; i < instructions_.size(); ++i) {
    if (instructions_[i].kernel.library_kernel == nullptr) continue;
    position_.store(i, std::memory_order_relaxed);
    IssueOne(instructions_[i]);
  }
}

/*! \brief Issues all instructions of all queues; false if the request has failed. */
bool Worker::IssueAll() {
  const RequestKind kind = slot_->kind;
  for (Worker* member : members_) {
    try {
      if (kind == RequestKind::kTouch) member->WarmLibraryKernels();
      if (kind == RequestKind::kTouch || kind == RequestKind::kRun) member->RecordLaunches();
      if (IssuesWork(kind) && slot_->trace != nullptr) member->BeginTrace();
    } catch (const std::exception& fault) {
      member->Fail(CauseOf(fault));
      return false;
    }
  }
  if (!IssuesWork(kind)) return true;
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
  // Times of single kernels need launches of their own.
  const bool is_together = slot_->kind == RequestKind::kRun && !is_traced;
  position_.store(index, std::memory_order_relaxed);
  if (!Await(instruction) || slot_->HasFailed()) return false;
  if (is_traced && !instruction.is_grouped) BeginTimer(index);
  if (slot_->kind == RequestKind::kSample && instruction.opcode == Opcode::kCall) {
    if (!SampleStream(instruction, &slot_->measurement->sample)) return false;
  } else if (is_together && instruction.recorded >= 0) {
    stream_->Replay(*slot_->recorded(index_)[static_cast<size_t>(instruction.recorded)]);
  } else if (!is_together || !instruction.is_in_recorded) {
    IssueOne(instruction);
  }
  if (is_traced) EndTimer(index);
  num_issued_ = index + 1;
  if (!instruction.is_awaited) return true;
  const int64_t count = base_ + static_cast<int64_t>(index) + 1;
  if (instruction.writes_word) stream_->WriteWord(word_, static_cast<uint32_t>(count));
  if (instruction.event >= 0) {
    stream_->Record(slot_->events(index_)[static_cast<size_t>(instruction.event)].get());
  }
  progress_.Publish(count);
  return true;
}

/*! \brief However many requests are not issued, the word stays near the counter: see HasReached. */
void Worker::CatchUp() {
  if (word_ == 0 || (!slot_->HasFailed() && IssuesWork(slot_->kind))) return;
  try {
    stream_->WriteWord(word_, static_cast<uint32_t>(base_ + instructions_.size()));
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
  }
}

/*! \brief Waits for the end of a request that is no run. */
void Worker::EndSample() {
  position_.store(instructions_.size(), std::memory_order_relaxed);
  try {
    stream_->Synchronise();
  } catch (const std::exception& fault) {
    FailQueue(slot_, CauseOf(fault));
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
  return std::ranges::any_of(members_,
                             [](const Worker* member) { return !member->pending_.empty(); });
}

bool Worker::PollAllPending() noexcept {
  for (Worker* member : members_) {
    member->PollPending();
    if (looks_for_faults_ && num_polls_ % kPollsPerFault == 0) member->LookForFault();
  }
  ++num_polls_;
  return MustPoll();
}

/*!
 * \brief Waits until the stream is empty, as what was issued is at work in the slot until then. A
 * fault that it had is of the present request, if there is one.
 */
void Worker::Drain() noexcept {
  try {
    stream_->Synchronise();
  } catch (const std::exception& fault) {
    if (slot_ != nullptr) FailQueue(slot_, CauseOf(fault));
  }
}

void Worker::PollPending() noexcept {
  while (!pending_.empty()) {
    Slot* slot = pending_.front();
    try {
      if (!slot->events(index_).back()->IsReached()) return;
      for (const std::unique_ptr<Event>& end : slot->side_ends(index_)) {
        static_cast<void>(end->IsReached());  // tells of a fault there
      }
      if (slot->trace != nullptr) ReadTimers(slot);
    } catch (const std::exception& fault) {
      FailPending(slot, CauseOf(fault));
    }
    pending_.pop_front();
    FinishPart(slot);
  }
}

void Worker::IssueOne(const BoundInstruction& instruction) {
  if (instruction.opcode == Opcode::kCall) {
    stream_->Launch(CallOf(instruction));
  } else if (instruction.opcode == Opcode::kCopy) {
    stream_->Copy(*slot_->tensor(instruction.dst), *slot_->tensor(instruction.src),
                  instruction.bytes);
    CountCopy(instruction, instruction.bytes);
  } else if (instruction.opcode == Opcode::kGroup) {
    IssueGroup(instruction);
  } else if (!instruction.is_grouped) {  // else its group has issued it
    IssueBranch(instruction);
  }
}

}  // namespace heteroplace::exec
