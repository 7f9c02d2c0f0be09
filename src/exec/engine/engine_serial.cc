// Requests that one thread does alone, as long as that is faster.
#include <algorithm>
#include <utility>

#include "exec/engine/engine.h"
#include "exec/program/issue_order.h"

namespace heteroplace::exec {

void Engine::PrepareSerial(SerialRule rule) {
  // The decisions of routers are kept by the workers that make them.
  const bool may_be = leaders_.size() > 1 && image_.program().routers.empty();
  if (rule == SerialRule::kNever || !may_be) return;
  is_always_serial_ = rule == SerialRule::kAlways;
  for (const InstructionId& at : IssueOrder(image_.program())) {
    serial_order_.push_back(workers_[static_cast<size_t>(at.queue)].get());
  }
}

/*!
 * \brief Chooses how a request is run; the caller holds the lock.
 *
 * A program that takes turns with others of the process is parallel, and its times do not count.
 * \param may_work whether the caller may do the work.
 * \param turns of all workers, where he does all of it; empty: the thread of the first one does.
 */
void Engine::ChooseMode(Slot* slot, bool may_work, Turns* turns) {
  if (serial_order_.empty() || !IsIdle() || seat_->HasActiveRivals()) return;
  slot->mode = is_always_serial_ ? Mode::kSerial : mode_chooser_.next();
  if (slot->mode == Mode::kParallel) return;
  for (Worker* leader : std::span(leaders_).subspan(1)) {
    turns->push_back(leader->Lend());
    if (turns->back().owns_lock()) continue;
    slot->mode.reset();  // that worker is about to leave the request before
    return turns->clear();
  }
  ++num_serial_;
  if (may_work) turns->push_back(leaders_.front()->Lend());
  if (!may_work || !turns->back().owns_lock()) turns->clear();
}

/*! \brief Does all of a request on the calling thread, which has all turns, or on the first
 * worker's. */
void Engine::RunSerial(Turns turns, const Limit& limit) {
  if (!turns.empty()) return leaders_.front()->RunAllHere(limit);
  leaders_.front()->TakeBack();
  submitted_bell_.Ring();
}

/*! \brief A request has ended: its time counts. */
void Engine::RecordMode(const Slot& slot) {
  const int64_t now_ns = NowNs();
  std::scoped_lock lock(mutex_);
  mode_chooser_.Record(*slot.mode, now_ns - slot.start_ns);
}

ModeCounts Engine::Modes() {
  std::scoped_lock lock(mutex_);
  return {mode_chooser_.chosen(), mode_chooser_.num_changes(), num_serial_};
}

}  // namespace heteroplace::exec
