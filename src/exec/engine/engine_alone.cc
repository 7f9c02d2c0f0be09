// One caller who has the engine alone: measurements, repeated without him.
#include "exec/engine/engine.h"
#include "support/error.h"

namespace heteroplace::exec {

Engine::Alone::Alone(Engine* engine, const Limit& limit)
    : engine_(engine), slot_(engine->slots_.AcquireFirst(limit)) {
  if (slot_ == nullptr) {
    throw Error(ErrorKind::kExecution, "the executor was at work for another caller all the time");
  }
  {
    std::scoped_lock lock(engine_->mutex_);
    engine_->is_measuring_ = true;
  }
  bool is_idle = false;
  try {
    is_idle = limit.Wait(&engine_->idle_bell_, [&] { return engine_->IsIdle(); });
  } catch (...) {
    Leave();
    throw;
  }
  if (!is_idle) {
    Leave();
    throw Error(ErrorKind::kExecution, "the executor was at work for other callers all the time");
  }
}

Engine::Alone::~Alone() { Leave(); }

void Engine::Alone::Leave() {
  engine_->is_repeating_.store(false);
  {
    std::scoped_lock lock(engine_->mutex_);
    engine_->is_measuring_ = false;
  }
  engine_->num_measured_.fetch_add(1);
  engine_->idle_bell_.Ring();
  if (is_abandoned_) return;
  slot_->measurement = nullptr;
  engine_->slots_.Release(slot_);
}

void Engine::Alone::Run(RequestKind kind, const std::shared_ptr<Measurement>& measurement,
                        const Limit& limit) {
  slot_->Prepare(kind, measurement);
  const bool is_timed = measurement != nullptr && measurement->trace != nullptr;
  if (is_timed || engine_->IsTracing()) engine_->MakeTimers(slot_);
  engine_->is_repeating_.store(measurement != nullptr && measurement->runs_left > 1);
  {
    std::scoped_lock lock(engine_->mutex_);
    // Others take no part in a throw between two cores of this one.
    if (engine_->on_order_ && measurement != nullptr && kind != RequestKind::kPassLine) {
      const Order::Kind timed = is_timed ? Order::kProfile : Order::kBenchmark;
      engine_->on_order_(
          {kind == RequestKind::kCpuTimed ? Order::kProfileCpu : timed, measurement->runs_left});
    }
    engine_->Launch(slot_);
  }
  engine_->Wake();
  engine_->Finish(slot_, limit, &is_abandoned_);
}

/*! \brief Last worker of a measured request: keeps its times; false if it was the last one. */
bool Engine::Repeat(Slot* slot) {
  const int64_t finish_ns = NowNs();
  Measurement* found = slot->measurement.get();
  if (!slot->has_outputs || found->is_cancelled.load()) return false;
  try {
    found->wall_ns.push_back(finish_ns - slot->start_ns);
    if (found->trace != nullptr) {
      found->trace->AddDurations(slot->trace_place, &found->durations_ns);
    }
  } catch (const std::bad_alloc&) {
    slot->Fail(kMemoryIsShort);
    slot->has_outputs = false;
    return false;
  }
  if (--found->runs_left == 0) return false;
  is_repeating_.store(found->runs_left > 1, std::memory_order_relaxed);
  seat_->EndRequest();
  num_completed_.fetch_add(1);
  {
    std::scoped_lock lock(
        mutex_);  // nobody else submits while one measures, but a recording may end
    Launch(slot);
  }
  Wake();
  return true;
}

}  // namespace heteroplace::exec
