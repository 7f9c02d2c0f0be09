// How a worker waits: for a condition on a bell, with work of others meanwhile.
#pragma once

#include "exec/requests/limit.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

/*!
 * \brief Waits on a bell as long as requests that are issued may come to their end: their events
 * are looked at in every round, and now and then when the thread would sleep. Whether it is ready.
 * \param spins of the first wait.
 */
template <typename Ready>
bool Worker::PollUntil(Bell* bell, const Ready& ready, int spins, CoreShare* core) {
  while (leader_->MustPoll()) {
    const auto moves = [&] {
      PollNetwork();
      return !leader_->PollAllPending() || ready();
    };
    if (bell->WaitUntil(moves, core, spins, NowNs() + kPollNs) && ready()) return true;
    spins = 0;
  }
  return false;
}

/*!
 * \brief Waits on a bell in a request. Requests that are issued may come to their end meanwhile.
 * Kernels of others may want help: they get it as long as the thread spins, chunk by chunk. A
 * caller is asked now and then whether he goes on.
 */
template <typename Ready>
void Worker::WaitFor(Bell* bell, const Ready& ready, int spins) {
  if (PollUntil(bell, ready, spins, core_)) return;
  is_waiting_.store(true, std::memory_order_relaxed);
  Team* open = nullptr;
  bool is_asked = false;
  do {
    open = nullptr;
    const auto moves = [&] {
      PollNetwork();
      return ready() || (open = FindOpenTeam()) != nullptr;
    };
    is_asked = !bell->WaitUntil(moves, core_, spins, hook_ == nullptr ? kNever : hook_->next_ns());
    if (is_asked) AskCaller();
    if (open != nullptr) Help(open);
  } while (open != nullptr || is_asked);
  is_waiting_.store(false, std::memory_order_relaxed);
}

}  // namespace heteroplace::exec
