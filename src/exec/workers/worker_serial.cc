// Whole requests by one thread: no core waits for another.
//
// The thread is that of a caller who waits without a limit, while nothing else is in flight, or
// else that of a worker. The workers of a lane hold its state. A worker that does one request at a
// time leaves its core meanwhile, because another program may have taken that.
#include <exception>

#include "exec/engine/engine.h"
#include "exec/team/core_turns.h"
#include "exec/team/threads.h"
#include "exec/workers/serial_lane.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

void Worker::BeginSerial(Slot* slot) {
  Begin(slot);
  BeginRecording();
  is_waiting_.store(true, std::memory_order_relaxed);
  lane_request_.store(slot->number(), std::memory_order_relaxed);
}

bool Worker::StepSerial() {
  is_waiting_.store(false, std::memory_order_relaxed);
  const bool is_done = DoNext();
  is_waiting_.store(true, std::memory_order_relaxed);
  return is_done;
}

void Worker::EndSerial() {
  EndRecording();
  lane_request_.store(-1, std::memory_order_relaxed);
}

void Worker::RunLaneHere(SerialLane* lane, const Limit& limit) {
  const CoreShare core(-1);
  SetWorkspacePool(&image_->abi(), &workspace_);
  HookTurn hook(limit);
  Slot* slot = lane->slot();
  for (size_t num_done = 0;; ++num_done) {
    if (num_done % kStepsPerQuestion == 0) engine_->AskCaller(&hook, slot);
    if (!lane->Step()) break;
  }
  SetWorkspacePool(&image_->abi(), nullptr);
}

/*! \brief Whether a request waits for a thread that does all of it, and this one may. */
bool Worker::MayServe() const { return queue_.kind == QueueKind::kCpu && engine_->HasSerial(); }

/*! \brief Does the next such request, unless another thread has taken it. */
void Worker::DoSerial() {
  SerialLane* lane = engine_->TakeSerial();
  if (lane == nullptr) return;
  KeepToCore(false);
  workspace_.Clear();
  while (lane->Step()) {
  }
}

/*! \brief Lets the worker's own thread go to any core, or back to its own. */
void Worker::KeepToCore(bool is_kept) noexcept {
  if (is_kept == is_on_core_ || queue_.core < 0) return;
  try {
    is_kept ? PinToCore(queue_) : GoAnywhere();
    is_on_core_ = is_kept;
  } catch (const std::exception&) {
    return;  // the core has been taken from the process: the thread stays where it may be
  }
}

}  // namespace heteroplace::exec
