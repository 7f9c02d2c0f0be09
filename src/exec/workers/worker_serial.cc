// A whole request by one thread, in one order of all instructions: no core waits for another.
//
// The thread is that of a caller who waits without a limit, or else that of the first worker. It
// may go to any core, because its own may be taken. The other workers sleep until the next request
// that is not serial.
#include <exception>
#include <vector>

#include "exec/engine/engine.h"
#include "exec/team/core_turns.h"
#include "exec/team/threads.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

void Worker::RunAllHere(const Limit& limit) {
  CoreShare core(-1);
  const CoreTurn of_core(engine_->seat(), next_, &core);
  SetWorkspacePool(&image_->abi(), &workspace_);
  HookTurn hook(limit);
  hook_ = &hook;
  core_ = &core;
  RunAll();
  core_ = nullptr;
  hook_ = nullptr;
  SetWorkspacePool(&image_->abi(), nullptr);
}

/*! \brief Does all of the next request. */
void Worker::RunAll() {
  const std::vector<std::unique_ptr<Worker>>& workers = engine_->workers();
  for (const std::unique_ptr<Worker>& worker : workers) worker->BeginSerial(core_);
  Slot* slot = slot_;
  size_t num_done = 0;
  for (Worker* worker : engine_->serial_order()) {
    if (hook_ != nullptr && num_done++ % kStepsPerQuestion == 0) AskCaller();
    if (slot->HasFailed()) break;
    worker->is_waiting_.store(false, std::memory_order_relaxed);
    if (!worker->DoNext()) break;
    worker->is_waiting_.store(true, std::memory_order_relaxed);
  }
  for (const std::unique_ptr<Worker>& worker : workers) {
    worker->EndSerial();
    if (worker.get() != this) worker->core_ = nullptr;
  }
  // The last of them ends the request, and others may begin the next one.
  for (const std::unique_ptr<Worker>& worker : workers) worker->FinishPart(slot);
}

void Worker::BeginSerial(CoreShare* core) {
  core_ = core;
  Begin();
  BeginRecording();
  is_serial_ = true;
  is_waiting_.store(true, std::memory_order_relaxed);
}

void Worker::EndSerial() {
  EndRecording();
  is_serial_ = false;
  is_waiting_.store(false, std::memory_order_relaxed);
}

/*! \brief Whether the next request is to be done by one thread. */
bool Worker::IsNextSerial() const {
  return !engine_->serial_order().empty() && engine_->SlotOf(next_)->mode == Mode::kSerial;
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
