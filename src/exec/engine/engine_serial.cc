// Requests that one thread does alone, as long as that is faster.
//
// A request that is alone has all cores, and usually ends sooner as planned. If several are in
// flight, each core may do a request of its own, and waits for nobody. Both cases are measured: a
// request that is alone by its time, concurrent requests by the time from one end to the next.
#include <algorithm>
#include <utility>

#include "exec/engine/engine.h"
#include "exec/program/issue_order.h"

namespace heteroplace::exec {

size_t NumCores(const Program& program) {
  const auto is_core = [](const Queue& queue) { return queue.kind == QueueKind::kCpu; };
  return static_cast<size_t>(std::ranges::count_if(program.queues, is_core));
}

bool MayCallersWork(const Image& image) {
  return image.program().RunsOnCoresAlone() && !image.library().IsInMemory();
}

size_t NumSerialContexts(const Image& image, const ExecutorSource& source) {
  const Program& program = image.program();
  // The decisions of routers are kept by the workers that make them.
  const bool may_be = program.queues.size() > 1 && program.routers.empty() && MayCallersWork(image);
  if (source.serial == SerialRule::kNever || !may_be) return 0;
  return std::min(NumCores(program), static_cast<size_t>(source.max_in_flight));
}

void Engine::MakeSerialContexts() {
  for (size_t c = num_contexts_; c < num_contexts_ + num_serial_contexts_; ++c) {
    std::vector<Worker*> workers, order;
    for (const std::unique_ptr<Worker>& worker : WorkersOf(c)) workers.push_back(worker.get());
    for (const InstructionId& at : IssueOrder(image_.program())) {
      order.push_back(workers[static_cast<size_t>(at.queue)]);
    }
    serial_contexts_.push_back(
        std::make_unique<SerialContext>(this, std::move(workers), std::move(order)));
    free_serial_contexts_.push_back(serial_contexts_.back().get());
  }
}

/*!
 * \brief Chooses how a request is run; the caller holds the lock.
 *
 * It is serial while other programs of the process have requests in flight, if all requests
 * together keep all cores busy. As planned, the programs would take turns and wait for each other.
 * This is a rule and not measured, because a program that takes more cores gains what others lose.
 */
void Engine::ChooseMode(Slot* slot) {
  if (serial_contexts_.empty()) return;
  // Between two concurrent callers the engine may be idle for a moment.
  const bool is_idle = IsIdle();
  const bool is_alone = is_idle && (was_last_alone_ || NowNs() - last_end_ns_ > kBetweenRequestsNs);
  slot->num_before = is_idle ? NumBegun() : -1;
  // One thread that calls several programs in turn has no rivals.
  const int num_rivals = seat_->NumRivalRequests(/*has_pauses=*/had_rivals_);
  const int64_t num_in_flight = 1 + num_rivals + NumBegun() - NumCompleted();
  if (num_rivals == 0) {
    slot->chooser = is_alone ? &alone_chooser_ : &concurrent_chooser_;
    slot->mode = slot->chooser->next();
  } else if (num_in_flight >= static_cast<int64_t>(NumCores(image_.program()))) {
    slot->mode = Mode::kSerial;
  }
  if (is_always_serial_) slot->mode = Mode::kSerial;
  chosen_ = slot->chooser != nullptr ? slot->chooser->chosen() : slot->mode.value_or(chosen_);
}

/*!
 * \brief Submits a serial request; the caller holds the lock.
 *
 * Callers do the work themselves if there is a serial context for each slot: nobody is woken then.
 * With more callers than contexts, those that prepare the next request would keep the others from
 * their cores.
 * \param may_work whether the caller may do the work.
 * \return the context of the caller; null: a worker does it.
 */
SerialContext* Engine::LaunchSerial(Slot* slot, bool may_work, std::atomic<int64_t>* number) {
  const bool is_callers =
      may_work && !free_serial_contexts_.empty() && (IsIdle() || HasContextForEachSlot());
  if (!is_callers) waiting_serial_.push_back(slot);  // first: memory may be short
  const int64_t count = num_serial_.load();
  number->store(kFirstSerial + count);
  BeginRequest(slot, kFirstSerial + count, /*num_parts=*/1);
  num_serial_.store(count + 1);
  if (is_callers) return BeginSerialContext(slot);
  CountServable();
  return nullptr;
}

SerialContext* Engine::BeginSerialContext(Slot* slot) {
  SerialContext* serial = free_serial_contexts_.back();
  free_serial_contexts_.pop_back();
  serial->Begin(slot);
  return serial;
}

/*! \brief How many requests a worker could begin now; the caller holds the lock. */
void Engine::CountServable() {
  num_servable_.store(std::min(waiting_serial_.size(), free_serial_contexts_.size()));
}

SerialContext* Engine::TakeSerial() {
  std::scoped_lock lock(mutex_);
  if (num_servable_.load() == 0) return nullptr;
  SerialContext* serial = BeginSerialContext(waiting_serial_.front());
  waiting_serial_.pop_front();
  CountServable();
  return serial;
}

void Engine::FinishSerial(SerialContext* serial, Slot* slot) {
  {
    std::scoped_lock lock(mutex_);
    free_serial_contexts_.push_back(serial);
    CountServable();
  }
  Finish(slot);
}

/*! \brief A request has failed; it ends at once if it waits for a serial context. */
void Engine::LeaveSerial(Slot* slot) noexcept {
  {
    std::scoped_lock lock(mutex_);
    if (std::erase(waiting_serial_, slot) == 0) return;
    CountServable();
  }
  Finish(slot);
}

/*! \brief The caller does the request of a serial context. */
void Engine::RunSerial(SerialContext* serial, const Limit& limit) {
  serial->first()->RunSerialHere(serial, limit);
  if (HasSerial()) Wake();  // there is a free context for a worker
}

/*! \brief A request has ended: records its time, or the time since the last end. */
void Engine::RecordMode(const Slot& slot) {
  const int64_t now_ns = NowNs();
  std::scoped_lock lock(mutex_);
  had_rivals_ = slot.chooser == nullptr || seat_->NumRivalRequests(/*has_pauses=*/false) > 0;
  was_last_alone_ = slot.num_before >= 0 && NumBegun() == slot.num_before + 1;
  const bool was_concurrent =
      !was_last_alone_ && slot.start_ns <= last_end_ns_ && slot.mode == last_mode_;
  if (slot.chooser == &alone_chooser_ && was_last_alone_) {
    alone_chooser_.Record(*slot.mode, now_ns - slot.start_ns);
  } else if (slot.chooser == &concurrent_chooser_ && was_concurrent) {
    concurrent_chooser_.Record(*slot.mode, now_ns - last_end_ns_);
  }
  last_end_ns_ = now_ns;
  last_mode_ = *slot.mode;
}

ModeCounts Engine::Modes() {
  std::scoped_lock lock(mutex_);
  return {chosen_, alone_chooser_.num_changes() + concurrent_chooser_.num_changes(),
          num_serial_.load()};
}

}  // namespace heteroplace::exec
