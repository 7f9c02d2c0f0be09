// Requests that one thread does alone, as long as that is faster.
//
// A request that is alone has all cores, and mostly ends sooner as planned. Where several are in
// flight, each core may do a request of its own, and waits for nobody. Which is faster is measured
// for both cases: by the times of requests that are alone, and by those between the ends of others.
#include <algorithm>
#include <utility>

#include "exec/engine/engine.h"
#include "exec/program/issue_order.h"

namespace heteroplace::exec {

size_t NumCores(const Program& program) {
  const auto is_core = [](const Queue& queue) { return queue.kind == QueueKind::kCpu; };
  return static_cast<size_t>(std::ranges::count_if(program.queues, is_core));
}

size_t NumLanes(const Image& image, const ExecutorSource& source) {
  const Program& program = image.program();
  // The decisions of routers are kept by the workers that make them. Kernels in memory have the
  // threads of TVM's pool, which only our own threads keep small.
  const bool may_be =
      program.queues.size() > 1 && program.routers.empty() && !image.library().IsInMemory() &&
      std::ranges::none_of(program.queues,
                           [](const Queue& q) { return q.IsAsync() || q.HasMessages(); });
  if (source.serial == SerialRule::kNever || !may_be) return 0;
  return std::min(NumCores(program), static_cast<size_t>(source.max_in_flight));
}

void Engine::MakeLanes() {
  for (size_t lane = num_contexts_; lane < num_contexts_ + num_lanes_; ++lane) {
    std::vector<Worker*> workers, order;
    for (const std::unique_ptr<Worker>& worker : WorkersOf(lane)) workers.push_back(worker.get());
    for (const InstructionId& at : IssueOrder(image_.program())) {
      order.push_back(workers[static_cast<size_t>(at.queue)]);
    }
    lanes_.push_back(std::make_unique<SerialLane>(this, std::move(workers), std::move(order)));
    free_lanes_.push_back(lanes_.back().get());
  }
}

/*!
 * \brief Chooses how a request is run; the caller holds the lock.
 *
 * Beside requests of other programs of the process it is serial, if there are enough to keep all
 * cores at work: as planned, the programs would take turns, and wait for each other. That is not
 * measured, because a program gains by using more cores what the others lose.
 */
void Engine::ChooseMode(Slot* slot) {
  if (lanes_.empty()) return;
  // Callers that take turns leave it idle for moments: the next one is not alone for that.
  const bool is_idle = IsIdle();
  const bool is_alone = is_idle && (was_last_alone_ || NowNs() - last_end_ns_ > kBetweenRequestsNs);
  slot->num_before = is_idle ? NumBegun() : -1;
  // A caller of several programs, one after the other, is no rival of himself.
  const int num_rivals = seat_->NumRivalRequests(/*has_pauses=*/had_rivals_);
  const int64_t num_in_flight = 1 + num_rivals + NumBegun() - NumCompleted();
  if (num_rivals == 0) {
    slot->chooser = is_alone ? &alone_chooser_ : &beside_chooser_;
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
 * With a lane for each request in flight, callers do the work themselves, and nobody is woken. Else
 * they would be in each other's way: of more threads than cores some wait, with a lane or without.
 * \param may_work whether the caller may do the work.
 * \return the lane that he has; null: a worker does it.
 */
SerialLane* Engine::LaunchSerial(Slot* slot, bool may_work, std::atomic<int64_t>* number) {
  const bool is_callers = may_work && !free_lanes_.empty() && (IsIdle() || SlotsHaveLanes());
  if (!is_callers) waiting_serial_.push_back(slot);  // first: memory may be short
  const int64_t count = num_serial_.load();
  number->store(kFirstSerial + count);
  BeginRequest(slot, kFirstSerial + count, /*num_parts=*/1);
  num_serial_.store(count + 1);
  CountServable();
  return is_callers ? BeginLane(slot) : nullptr;
}

SerialLane* Engine::BeginLane(Slot* slot) {
  SerialLane* lane = free_lanes_.back();
  free_lanes_.pop_back();
  lane->Begin(slot);
  return lane;
}

/*! \brief How many requests a worker could begin now; the caller holds the lock. */
void Engine::CountServable() {
  num_servable_.store(std::min(waiting_serial_.size(), free_lanes_.size()));
}

SerialLane* Engine::TakeSerial() {
  std::scoped_lock lock(mutex_);
  if (num_servable_.load() == 0) return nullptr;
  SerialLane* lane = BeginLane(waiting_serial_.front());
  waiting_serial_.pop_front();
  CountServable();
  return lane;
}

void Engine::FinishSerial(SerialLane* lane, Slot* slot) {
  {
    std::scoped_lock lock(mutex_);
    free_lanes_.push_back(lane);
    CountServable();
  }
  Finish(slot);
}

/*! \brief A request has failed: if it waits for a lane, it is over. */
void Engine::LeaveSerial(Slot* slot) noexcept {
  {
    std::scoped_lock lock(mutex_);
    if (std::erase(waiting_serial_, slot) == 0) return;
    CountServable();
  }
  Finish(slot);
}

/*! \brief The caller does a request that is in a lane. */
void Engine::RunSerial(SerialLane* lane, const Limit& limit) {
  lane->first()->RunLaneHere(lane, limit);
  if (HasSerial()) Wake();  // a lane is free for a worker
}

/*! \brief A request has ended: its time counts, or that since the end of the last one. */
void Engine::RecordMode(const Slot& slot) {
  const int64_t now_ns = NowNs();
  std::scoped_lock lock(mutex_);
  had_rivals_ = slot.chooser == nullptr || seat_->NumRivalRequests(/*has_pauses=*/false) > 0;
  was_last_alone_ = slot.num_before >= 0 && NumBegun() == slot.num_before + 1;
  const bool was_beside =
      !was_last_alone_ && slot.start_ns <= last_end_ns_ && slot.mode == last_mode_;
  if (slot.chooser == &alone_chooser_ && was_last_alone_) {
    alone_chooser_.Record(*slot.mode, now_ns - slot.start_ns);
  } else if (slot.chooser == &beside_chooser_ && was_beside) {
    beside_chooser_.Record(*slot.mode, now_ns - last_end_ns_);
  }
  last_end_ns_ = now_ns;
  last_mode_ = *slot.mode;
}

ModeCounts Engine::Modes() {
  std::scoped_lock lock(mutex_);
  return {chosen_, alone_chooser_.num_changes() + beside_chooser_.num_changes(),
          num_serial_.load()};
}

}  // namespace heteroplace::exec
