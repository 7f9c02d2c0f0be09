// How a worker waits: for a condition on a bell, with work of others meanwhile.
#pragma once

#include "exec/run/worker.h"

namespace heteroplace::exec {

/*!
 * \brief Waits on a bell. Meanwhile requests that are issued may come to their end: their events
 * are looked at in every round, and now and then when the thread would sleep. Kernels of others may
 * want help: they get it as long as the thread spins, chunk by chunk.
 */
template <typename Ready>
void Worker::WaitFor(Bell* bell, const Ready& ready, int spins) {
  while (leader_->MustPoll()) {
    const auto moves = [&] {
      PollNetwork();
      return !leader_->PollAllPending() || ready();
    };
    if (bell->WaitUntil(moves, core_, spins, NowNs() + kPollNs) && ready()) return;
    spins = 0;
  }
  is_waiting_.store(true, std::memory_order_relaxed);
  Team* open = nullptr;
  do {
    open = nullptr;
    const auto moves = [&] {
      PollNetwork();
      return ready() || (open = FindOpenTeam()) != nullptr;
    };
    bell->WaitUntil(moves, core_, spins);
    if (open != nullptr) Help(open);
  } while (open != nullptr);
  is_waiting_.store(false, std::memory_order_relaxed);
}

}  // namespace heteroplace::exec
