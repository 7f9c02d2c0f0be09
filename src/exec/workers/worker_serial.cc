// A whole request by one thread, in one order of all instructions: no core waits for another.
//
// The thread is that of a caller who waits without a limit, or else that of the first worker. It
// may go to any core: whoever stays on one may find it taken. The other workers sleep meanwhile, as
// those whose part a caller does, and come back for the next request that is not serial.
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
  for (const auto& [worker, index] : engine_->serial_order()) {
    if (hook_ != nullptr && num_done++ % kStepsPerQuestion == 0) AskCaller();
    if (slot->HasFailed() || !worker->RunStep(index)) break;
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
  at_ = 0;
  is_serial_ = true;
  is_waiting_.store(true, std::memory_order_relaxed);
  if (slot_->trace == nullptr) return;
  recorder_.emplace(slot_->trace->Recorder(index_, slot_->trace_number));
}

void Worker::EndSerial() {
  if (recorder_.has_value()) recorder_->End(at_, instructions_.size());
  recorder_.reset();
  is_serial_ = false;
  is_waiting_.store(false, std::memory_order_relaxed);
}

/*! \brief Does an instruction; false if it failed. Nothing is left of a join. */
bool Worker::RunStep(size_t index) noexcept {
  const BoundInstruction& instruction = instructions_[index];
  position_.store(index, std::memory_order_relaxed);
  is_waiting_.store(false, std::memory_order_relaxed);
  if (recorder_.has_value()) {
    recorder_->Waited();
    recorder_->Start(index);
  }
  bool is_done = instruction.opcode == Opcode::kJoin;
  try {
    is_done = is_done || Execute(instruction);
  } catch (const std::exception& fault) {
    Fail(CauseOf(fault));
  }
  if (!is_done) return false;
  if (recorder_.has_value()) recorder_->Finish(index);
  Tell(instruction, index);
  at_ = index + 1;
  is_waiting_.store(true, std::memory_order_relaxed);
  return true;
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
