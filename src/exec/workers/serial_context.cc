#include "exec/workers/serial_context.h"

#include <utility>

#include "exec/engine/engine.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

SerialContext::SerialContext(Engine* engine, std::vector<Worker*> workers,
                             std::vector<Worker*> order)
    : engine_(engine), workers_(std::move(workers)), order_(std::move(order)) {}

void SerialContext::Begin(Slot* slot) {
  slot_ = slot;
  num_done_ = 0;
  for (Worker* worker : workers_) worker->BeginSerial(slot);
}

bool SerialContext::Step() {
  const bool may_go_on = num_done_ < order_.size() && !slot_->HasFailed();
  if (may_go_on && order_[num_done_]->StepSerial() && ++num_done_ < order_.size()) return true;
  for (Worker* worker : workers_) worker->EndSerial();
  engine_->FinishSerial(this, std::exchange(slot_, nullptr));
  return false;
}

int64_t SerialContext::start_ns() const { return slot_->start_ns; }

}  // namespace heteroplace::exec
