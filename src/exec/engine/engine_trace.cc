// Recordings: from when to when the requests of an engine are recorded.
#include "exec/engine/engine.h"
#include "support/error.h"

namespace heteroplace::exec {

void Engine::StartTrace(std::optional<int64_t> max_requests) {
  CheckUsable();
  auto recorder = std::make_shared<TraceRecorder>(&image_.program(), max_requests,
                                                  slots_.max_slots(), TraceClock::Source::kFastest);
  std::scoped_lock lock(mutex_);
  if (trace_ != nullptr) {
    throw Error(ErrorKind::kExecution,
                "the executor records already; end that recording before the next one");
  }
  if (on_order_) on_order_({Order::kStartTrace, max_requests.value_or(0)});
  trace_ = std::move(recorder);
}

Trace Engine::StopTrace(const Limit& limit) {
  std::shared_ptr<TraceRecorder> recorder;
  bool is_lost = false;  // what was in flight when the process forked never ends in the child
  {
    std::scoped_lock lock(mutex_);
    if (on_order_ && trace_ != nullptr) on_order_({Order::kStopTrace, 0});
    recorder = std::move(trace_);
    is_lost = is_child_ && was_in_flight_;
  }
  if (recorder == nullptr) {
    throw Error(ErrorKind::kExecution, "nothing is recorded: start a recording first");
  }
  // At the limit, too, what has ended can be read: the rest is counted.
  static_cast<void>(limit.Wait(
      &idle_bell_, [&] { return is_lost || recorder->HaveAllEnded() || num_stuck_.load() != 0; }));
  return recorder->Collect();
}

/*! \brief A request begins; the caller holds the lock. */
void Engine::BeginTrace(Slot* slot) {
  const bool is_timed = slot->measurement != nullptr && slot->measurement->trace != nullptr;
  if (is_timed) {
    slot->trace = slot->measurement->trace;
  } else if (slot->kind == RequestKind::kRun && slot->has_timers) {
    slot->trace = trace_;
  }
  slot->trace_number = -1;
  if (slot->trace == nullptr) return;
  const RecordedAt at = slot->trace->BeginRequest(slot->index(), slot->mode == Mode::kSerial);
  slot->trace_number = at.number;
  slot->trace_place = at.place;
}

/*! \brief It is over, and no worker is in it. */
void Engine::EndTrace(Slot* slot) {
  if (slot->trace == nullptr) return;
  slot->trace->EndRequest(slot->trace_place, !slot->has_outputs);
  slot->trace = nullptr;
}

bool Engine::IsTracing() {
  std::scoped_lock lock(mutex_);
  return trace_ != nullptr;
}

void Engine::MakeTimers(Slot* slot) {
  if (slot->has_timers) return;
  for (std::unique_ptr<Worker>& worker : workers_) worker->MakeTimers(slot);
  slot->has_timers = true;
}

}  // namespace heteroplace::exec
