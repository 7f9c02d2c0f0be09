// Requests that one thread does: no core waits for another.
//
// The thread is a caller's or a worker's (see Engine::LaunchSerial). A serial context holds the
// state of the request. A worker may leave its core meanwhile, because another program may have
// taken it.
#include <exception>

#include "exec/engine/engine.h"
#include "exec/team/core_turns.h"
#include "exec/team/threads.h"
#include "exec/workers/serial_context.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

void Worker::BeginSerial(Slot* slot) {
  Begin(slot);
  BeginRecording();
  is_waiting_.store(true, std::memory_order_relaxed);
  serial_request_.store(slot->number(), std::memory_order_relaxed);
}

bool Worker::StepSerial() {
  is_waiting_.store(false, std::memory_order_relaxed);
  const bool is_done = DoNext();
  is_waiting_.store(true, std::memory_order_relaxed);
  return is_done;
}

void Worker::EndSerial() {
  EndRecording();
  serial_request_.store(-1, std::memory_order_relaxed);
}

void Worker::RunSerialHere(SerialContext* serial, const Limit& limit) {
  const CoreShare core(-1);
  SetWorkspacePool(&image_->abi(), &workspace_);
  HookTurn hook(limit);
  Slot* slot = serial->slot();
  for (size_t num_done = 0;; ++num_done) {
    if (num_done % kStepsPerQuestion == 0) engine_->AskCaller(&hook, slot);
    if (!serial->Step()) break;
  }
  SetWorkspacePool(&image_->abi(), nullptr);
}

/*! \brief Whether there is a serial request for this thread. */
bool Worker::MayServe() const { return queue_.kind == QueueKind::kCpu && engine_->HasSerial(); }

/*! \brief Begins a serial request; null: another thread has taken it. */
SerialContext* Worker::TakeSerial() {
  SerialContext* serial = engine_->TakeSerial();
  if (serial == nullptr) return nullptr;
  workspace_.Clear();
  if (active_.empty()) KeepToCore(false);
  return serial;
}

void Worker::DoSerial() {
  SerialContext* serial = TakeSerial();
  while (serial != nullptr && serial->Step()) {
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
