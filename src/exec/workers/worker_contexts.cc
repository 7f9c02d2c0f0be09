// Several requests at once on one core: where one waits for another core, the next one goes on.
//
// A core has contexts, as a multithreaded processor has: each holds a request, its next instruction
// and counters of its own, by which others wait for it. Between two instructions the thread takes
// the oldest request whose next one has all that it waits for. So a core is idle only if no request
// in flight has work for it, however often the plan goes from core to core, and the time per item
// comes near the largest sum of a core's kernels: what a plan for throughput promises (see
// simulate/throughput.py). In one context after the other, a core that is first and last in a plan
// would wait for everything between.
#include <algorithm>

#include "exec/engine/engine.h"
#include "exec/team/core_turns.h"
#include "exec/workers/serial_context.h"
#include "exec/workers/worker.h"
#include "exec/workers/worker_wait.h"
#include "support/error.h"

namespace heteroplace::exec {

/*! \brief Does requests until all that it has begun are over. */
void Worker::DoContexts(const CoreTurn& of_core) {
  is_draining_ = false;
  for (;;) {
    BeginContexts(of_core);
    if (active_.empty() && serial_ == nullptr) return;
    if (AdvanceOne()) continue;
    const auto moves = [&] {
      return NextContext() != nullptr || (!is_draining_ && MayServe()) ||
             std::ranges::any_of(active_, [](const Worker* context) { return context->IsReady(); });
    };
    WaitFor(engine_->submitted_bell(), moves, Spins());
  }
}

/*! \brief The context of the next request; null: none has come, or that is still at another one. */
Worker* Worker::NextContext() const {
  if (is_draining_ || engine_->num_submitted() <= taken_) return nullptr;
  Worker* context = members_[static_cast<size_t>(taken_ % num_contexts_)];
  return context->is_over_ ? context : nullptr;
}

/*! \brief Whether the turn allows another request; if not, the thread ends those at work first. */
bool Worker::MayBegin(const CoreTurn& of_core) {
  is_draining_ = !of_core.MayBegin(taken_);
  return !is_draining_;
}

/*! \brief Begins the requests that have come, in their order, as far as there are contexts, and one
 * serial request. */
void Worker::BeginContexts(const CoreTurn& of_core) {
  // Outside of a turn a serial request needs none.
  if (serial_ == nullptr && !is_draining_ && MayServe() &&
      (!of_core.is_inside() || MayBegin(of_core))) {
    serial_ = TakeSerial();
  }
  while (Worker* context = NextContext()) {
    if (!MayBegin(of_core)) return;
    ++taken_;
    KeepToCore(true);
    context->Begin(context->NextSlot());
    if (context->slot_->kind != RequestKind::kRun) {
      context->is_waiting_.store(false, std::memory_order_relaxed);
      context->DoHost();  // nothing else is in flight
      continue;
    }
    context->is_over_ = false;
    context->is_waiting_.store(true, std::memory_order_relaxed);
    context->BeginRecording();
    active_.push_back(context);
  }
}

/*! \brief Does one instruction of the oldest request that can go on; false if none can. */
bool Worker::AdvanceOne() {
  const auto ready =
      std::ranges::find_if(active_, [](const Worker* context) { return context->IsReady(); });
  // A serial request can always go on.
  if (serial_ != nullptr &&
      (ready == active_.end() || serial_->start_ns() < (*ready)->slot_->start_ns)) {
    if (!serial_->Step()) serial_ = nullptr;
    return true;
  }
  if (ready == active_.end()) return false;
  Worker* context = *ready;
  context->is_waiting_.store(false, std::memory_order_relaxed);
  context->Advance();
  context->is_waiting_.store(true, std::memory_order_relaxed);
  if (context->is_over_) active_.erase(ready);
  return true;
}

/*! \brief Whether the request of this context can go on, or is to end. */
bool Worker::IsReady() const {
  return at_ == instructions_.size() || slot_->HasFailedInOrder() || HasCome(instructions_[at_]);
}

/*! \brief Whether all that an instruction waits for is done; a join waits until its call begins. */
bool Worker::HasCome(const BoundInstruction& instruction) const {
  for (const BoundWait& wait : instruction.waits) {
    if (wait.progress->done.load() < CountAt(wait.length, wait.count)) return false;
  }
  if (instruction.opcode != Opcode::kJoin) return true;
  const int64_t target = CountAt(instruction.leader_length, instruction.leader_count);
  return instruction.team->IsAnnounced(target) || instruction.leader->done.load() >= target;
}

/*! \brief Does the next instruction, or ends the request. */
void Worker::Advance() noexcept {
  const auto is_at_end = [&] { return at_ == instructions_.size(); };
  if (is_at_end() || slot_->HasFailed() || !DoNext() || is_at_end()) EndContext();
}

/*! \brief A worker that does one instruction at a time begins with the first. */
void Worker::BeginRecording() {
  at_ = 0;
  if (slot_->trace == nullptr) return;
  recorder_.emplace(slot_->trace->Recorder(index_, slot_->trace_place));
}

void Worker::EndRecording() {
  if (recorder_.has_value()) recorder_->End(at_, instructions_.size());
  recorder_.reset();
}

/*! \brief Does the next instruction; false if it failed. */
bool Worker::DoNext() noexcept {
  const BoundInstruction& instruction = instructions_[at_];
  position_.store(at_, std::memory_order_relaxed);
  if (recorder_.has_value()) {
    recorder_->Waited();
    recorder_->Start(at_);
  }
  if (instruction.has_joins) team_.Announce(base_ + static_cast<int64_t>(at_) + 1);
  bool is_done = false;
  try {
    is_done = Execute(instruction);
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
  }
  if (!is_done) return false;
  if (recorder_.has_value()) recorder_->Finish(at_);
  Tell(instruction, at_);
  ++at_;
  return true;
}

/*! \brief Its part of the request is over. */
void Worker::EndContext() {
  EndRecording();
  is_over_ = true;
  FinishPart(slot_);
}

}  // namespace heteroplace::exec
