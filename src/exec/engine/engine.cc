#include "exec/engine/engine.h"

#include <sched.h>

#include <algorithm>
#include <exception>
#include <utility>

#include "exec/net/network.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

/*! \brief Checks a number from a caller before anything is made of it. */
int MaxSlots(const Program& program, int max_in_flight) {
  if (max_in_flight > 1 && program.HasState()) {
    throw Error(ErrorKind::kExecution,
                "max_in_flight is " + std::to_string(max_in_flight) +
                    ", and every run of the program replaces its state, so that one run is to end "
                    "before the next begins; load it with max_in_flight=1");
  }
  if (max_in_flight < 1 || max_in_flight > kMaxSlots) {
    throw Error(ErrorKind::kExecution, "the number of requests in flight is " +
                                           std::to_string(max_in_flight) + "; expected 1 to " +
                                           std::to_string(kMaxSlots));
  }
  return max_in_flight;
}

/*!
 * \brief Contexts of each queue: as many as requests in flight, but few, as each has its counters
 * and resolved instructions.
 *
 * Only of cores of one host: streams take work in order, and messages have one order for both ends.
 * What routers decide is kept by the order of requests.
 */
size_t NumContexts(const Program& program, int max_in_flight) {
  if (!program.RunsOnCoresAlone() || program.queues.size() < 2 || !program.routers.empty())
    return 1;
  return std::min(kMaxContexts, static_cast<size_t>(max_in_flight));
}

}  // namespace

Engine::Engine(const ExecutorSource& source)
    : on_order_(source.on_order),
      shared_image_(std::make_shared<Image>(source)),
      image_(*shared_image_),
      num_contexts_(
          NumContexts(image_.program(), MaxSlots(image_.program(), source.max_in_flight))),
      num_serial_contexts_(NumSerialContexts(image_, source)),
      progress_(image_, num_contexts_ + num_serial_contexts_),
      slots_(&image_, MaxSlots(image_.program(), source.max_in_flight),
             [this](Slot* slot) {
               for (std::unique_ptr<Worker>& worker : workers_) worker->MakeEvents(slot);
               if (network_ != nullptr) network_->MakeMessages(slot);
             }),
      is_always_serial_(source.serial == SerialRule::kAlways),
      ring_(static_cast<size_t>(source.max_in_flight)),
      concurrent_chooser_(
          num_serial_contexts_ == NumCores(image_.program()) ? Mode::kSerial : Mode::kParallel,
          ModeChooser::kLongWindowNs) {
  Cores().Refresh();
  if (!image_.program().routers.empty()) {
    decisions_ = std::make_unique<Decisions>(&image_.program());
  }
  const std::vector<Queue>& queues = image_.program().queues;
  MakeWorkers();
  if (std::ranges::any_of(queues, [](const Queue& q) { return q.HasMessages(); })) {
    network_ = std::make_unique<Network>(this, &image_, workers_);
    for (std::unique_ptr<Worker>& worker : workers_) worker->Join(network_.get());
  }
  GroupWorkers();
  has_callers_work_ = num_contexts_ == 1 && MayCallersWork(image_);
  MakeSerialContexts();
  // Workers of copies and GPUs are pinned to no core: spinning ones need one to spare for each.
  const bool all_have_cores = static_cast<int>(leaders_.size()) <= Cores().usable.load();
  run_spins_ = all_have_cores ? kRunSpins : kSpins;
  if (source.helping.value_or(all_have_cores)) GroupHelpers(source.helping.has_value());
  seat_.emplace(SharedCores());
  // A destructor does not run for a constructor that throws, and threads must be joined.
  try {
    StartThreads();
    Alone alone(this, {});
    // Streams issue kernels of libraries once, and record launches: for that alone there is state.
    if (std::ranges::any_of(queues, [](const Queue& queue) { return queue.IsAsync(); })) {
      alone.slot()->Use(std::make_shared<Session>(&image_));
    }
    // Arenas of cores are touched by those cores; here the ones that no core works in.
    for (size_t s = 0; s < image_.program().spaces.size(); ++s) {
      const bool has_core = std::ranges::any_of(queues, [&](const Queue& queue) {
        return queue.kind == QueueKind::kCpu && queue.space == static_cast<int32_t>(s);
      });
      if (image_.program().spaces[s].device.device_type == kDLCPU && !has_core) {
        alone.slot()->TouchArena(static_cast<int32_t>(s));
      }
    }
    alone.Run(RequestKind::kTouch, nullptr, {});
    alone.slot()->has_outputs = false;
    fork_watch_.emplace(static_cast<ForkAware*>(this));
  } catch (...) {
    Stop();
    throw;
  }
}

Engine::~Engine() = default;

bool Engine::Stop() {
  {
    std::scoped_lock lock(mutex_);
    if (is_child_) return false;
  }
  const bool is_idle = Limit{}.Within(kGraceNs).Wait(&idle_bell_, [&] { return IsIdle(); });
  is_stopping_.store(true);
  Wake();
  if (!is_idle) return false;
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  return true;
}

bool Engine::CanEnd() {
  std::scoped_lock lock(mutex_);
  return !is_child_;
}

void Engine::Submit(Slot* slot, const Limit& limit, bool is_waited, std::atomic<int64_t>* number) {
  CheckUsable();
  const bool may_work = is_waited && limit.deadline_ns == kNever;
  Worker* here = may_work ? WorkerHere() : nullptr;
  std::unique_lock<std::mutex> turn;
  SerialContext* serial = nullptr;
  for (;;) {
    if (!slot->has_timers && IsTracing()) MakeTimers(slot);
    const uint32_t seen = num_measured_.load();
    {
      std::scoped_lock lock(mutex_);
      if (!is_measuring_) {
        if (on_order_) on_order_({Order::kRun, 1});
        ChooseMode(slot);
        if (slot->mode == Mode::kSerial) {
          serial = LaunchSerial(slot, may_work, number);
          break;
        }
        if (here != nullptr) turn = here->Lend();
        number->store(Launch(slot));
        break;
      }
    }
    if (!limit.Wait(&idle_bell_, [&] { return num_measured_.load() != seen; })) {
      throw Error(
          ErrorKind::kExecution,
          "the request could not begin within its limit, as the executor is being measured");
    }
  }
  if (serial != nullptr) return RunSerial(serial, limit);
  Wake(turn.owns_lock() ? here : nullptr);
  if (turn.owns_lock()) here->WorkHere(number->load(), limit);
}

/*!
 * \brief The worker whose part a caller does himself; null: none.
 *
 * With several that of the core on which he is: elsewhere he would be in the way of another.
 */
Worker* Engine::WorkerHere() const {
  if (!has_callers_work_) return nullptr;
  if (leaders_.size() == 1) return leaders_.front();
  const int core = sched_getcpu();
  const auto here = std::ranges::find_if(
      leaders_, [&](const Worker* leader) { return leader->queue().core == core; });
  return here == leaders_.end() || core < 0 ? nullptr : *here;
}

/*!
 * \brief A request has been submitted.
 * \param here lent to a caller who does its part.
 */
void Engine::Wake(const Worker* here) {
  for (Worker* leader : leaders_) {
    if (leader != here) leader->TakeBack();
  }
  if (here == nullptr || leaders_.size() > 1) submitted_bell_.Ring();
  if (network_ != nullptr) network_->Advance();
}

/*! \brief Puts a slot in the ring; returns the request's number. The caller holds the lock. */
int64_t Engine::Launch(Slot* slot) {
  const int64_t number = num_submitted_.load();
  ring_[static_cast<size_t>(number) % ring_.size()].store(slot, std::memory_order_relaxed);
  BeginRequest(slot, number, image_.program().queues.size());
  // Sequentially consistent: all of the above is seen by whoever sees the new number.
  num_submitted_.store(number + 1);
  return number;
}

/*! \brief Prepares a slot for its next request; the caller holds the lock. */
void Engine::BeginRequest(Slot* slot, int64_t number, size_t num_parts) {
  // Whoever loads the file by TVM, too, points its loops to TVM's own threads.
  image_.library().InstallRuntime();
  slot->Begin(number);
  if (slot->measurement != nullptr && slot->measurement->is_cancelled.load()) {
    slot->Fail("the measurement was cancelled");  // its canceller may have seen the last repetition
  }
  slot->working.store(static_cast<uint32_t>(num_parts), std::memory_order_relaxed);
  slot->state.store(SlotState::kInFlight, std::memory_order_relaxed);
  last_slot_.store(slot);
  slot->start_ns = NowNs();
  seat_->BeginRequest();
  BeginTrace(slot);
  if (decisions_ != nullptr) decisions_->Begin(slot);
}

bool Engine::Await(Slot* slot, const Limit& limit) {
  return limit.Wait(&slot->bell, [&] { return slot->state.load() == SlotState::kHeld; });
}

void Engine::Fail(Slot* slot, std::string_view text, FailureCause cause) noexcept {
  slot->Fail(text, cause);
  if (network_ != nullptr) network_->AbortFor(slot);
  WakeAll();
}

void Engine::Lose(const char* text) noexcept {
  std::scoped_lock lock(mutex_);
  if (!lost_.empty()) return;
  try {
    lost_ = text;
  } catch (const std::bad_alloc&) {
    lost_ = "a fault";  // short enough for a string without memory of its own
  }
}

void Engine::Cancel(Slot* slot, int64_t number, std::string_view text) noexcept {
  if (slot->state.load() != SlotState::kInFlight || !slot->CancelRequest(number, text)) return;
  // No AbortFor: it may end just now, and well. Who meets the failure at work ends the job.
  if (network_ != nullptr) network_->Advance();
  WakeAll();
  LeaveSerial(slot);
}

void Engine::WakeAll() noexcept {
  for (std::unique_ptr<Worker>& worker : workers_) {
    worker->progress().bell.Ring();
    worker->team().bell()->Ring();
  }
  submitted_bell_.Ring();
}

void Engine::Finish(Slot* slot) {
  // Acquire and release: what every worker did is seen by the last one, and so by the caller.
  if (slot->working.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  slot->has_outputs = !slot->HasFailed();
  if (!slot->has_outputs) slot->ForgetState();
  if (!slot->HasSession()) slot->ForgetChanged();
  EndTrace(slot);
  if (decisions_ != nullptr) EndDecisions(slot);
  if (network_ != nullptr && !slot->has_outputs) network_->AbortFor(slot);
  if (slot->measurement != nullptr && Repeat(slot)) return;
  if (slot->mode.has_value() && slot->has_outputs) RecordMode(*slot);
  // Before the slot is handed back: a caller whose requests are over may fork, and must find the
  // engine idle. Its place in the ring is free only after, when somebody has released the slot.
  seat_->EndRequest();
  (slot->mode == Mode::kSerial ? num_serial_completed_ : num_completed_).fetch_add(1);
  // The caller, who may be gone, frees the slot once it is his again; else nobody comes for it.
  const bool is_abandoned = slot->state.exchange(SlotState::kHeld) == SlotState::kAbandoned;
  if (is_abandoned) {
    if (slot->is_stuck) num_stuck_.fetch_sub(1);
    slots_.Release(slot);
  } else {
    slot->bell.Ring();
  }
  idle_bell_.Ring();
}

void Engine::Abandon(Slot* slot, bool is_stuck) {
  if (is_stuck) {
    std::scoped_lock lock(mutex_);
    stuck_ = DescribeStuck(slot, "");
    num_stuck_.fetch_add(1);
    idle_bell_.Ring();
  }
  slot->is_stuck = is_stuck;
  SlotState expected = SlotState::kInFlight;
  if (slot->state.compare_exchange_strong(expected, SlotState::kAbandoned)) return;
  if (is_stuck) num_stuck_.fetch_sub(1);
  slots_.Release(slot);
}

std::string Engine::DescribeStuck(Slot* slot, const char* before) const noexcept {
  try {
    // One that waits, or helps, waits for the step of another, and messages for other hosts.
    const auto patience = [](const Worker& worker) {
      return worker.is_waiting() ? 2 : worker.queue().HasMessages() ? 1 : 0;
    };
    const Worker* stuck = nullptr;
    for (const std::unique_ptr<Worker>& worker : workers_) {
      if (!worker->IsAt(slot->number())) continue;
      if (stuck == nullptr || patience(*worker) < patience(*stuck)) stuck = worker.get();
    }
    if (stuck != nullptr) return before + stuck->Where("does not end");
    return std::string(before) + "a step does not end";
  } catch (const std::bad_alloc&) {
    return kMemoryIsShort;  // a slot must not be lost for a text
  }
}

/*! \brief Why the job on all ranks ended, if it did; else what became of a request here. */
std::string Engine::ReasonOr(const std::string& failure) const {
  return network_ != nullptr && network_->is_aborted() ? network_->reason() : failure;
}

/*! \brief Of what ReasonOr tells. Another request of a job that was cancelled has failed. */
FailureCause Engine::FailureCauseOf(Slot* slot) const {
  const FailureCause cause = slot->cause();
  const bool is_others =
      network_ != nullptr && network_->is_aborted() && network_->cause() != cause;
  return is_others ? FailureCause::kFault : cause;
}

void Engine::Finish(Slot* slot, const Limit& limit, bool* is_abandoned) {
  const auto end = [&](std::string_view why, FailureCause cause) {
    if (slot->measurement != nullptr) slot->measurement->is_cancelled.store(true);
    Fail(slot, why, cause);
    LeaveSerial(slot);
    // Without the hook: it has just thrown, or has had its turn.
    if (Await(slot, Limit{}.Within(kGraceNs))) return;
    *is_abandoned = true;
    Abandon(slot, /*is_stuck=*/true);
  };
  bool is_over = false;
  try {
    if (slot->interruption != nullptr) {
      std::rethrow_exception(std::exchange(slot->interruption, nullptr));
    }
    is_over = Await(slot, limit);
  } catch (...) {
    end("the request was interrupted", FailureCause::kFault);
    throw;
  }
  if (!is_over) {
    const std::string late = DescribeStuck(slot, "the request did not end within its limit: ");
    end(late, FailureCause::kWaiting);
    throw Error(
        ErrorKind::kExecution,
        ReasonOr(late) + (*is_abandoned ? "; the executor cannot be used until it does" : ""));
  }
  if (!slot->has_outputs) throw RequestError(ReasonOr(slot->failure()), FailureCauseOf(slot));
}

}  // namespace heteroplace::exec
