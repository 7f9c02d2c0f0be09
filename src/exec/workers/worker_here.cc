// A caller does a worker's part of his request himself.
//
// Whoever waits for a request has a thread and a core. If a worker of the program has that core,
// the caller does its part: its own thread need not be woken on the core of the caller, nor the
// caller at the end. A hand-over takes some 30 us on a virtual machine, as much as a kernel. The
// worker's thread sleeps meanwhile, and until a request comes for which nobody waits, or whose
// caller is on another core.
#include <sched.h>

#include <exception>
#include <utility>

#include "exec/engine/engine.h"
#include "exec/team/core_turns.h"
#include "exec/workers/worker.h"
#include "exec/workers/worker_wait.h"

namespace heteroplace::exec {

std::unique_lock<std::mutex> Worker::Lend() {
  std::unique_lock turn(*turn_, std::try_to_lock);
  if (turn.owns_lock()) is_lent_.store(true);
  return turn;
}

void Worker::TakeBack() {
  if (!is_lent_.exchange(false)) return;
  returned_bell_.Ring();
  if (Bell* bell = caller_bell_.load(); bell != nullptr) bell->Ring();
}

void Worker::WorkHere(int64_t number, const Limit& limit) {
  Slot* slot = engine_->SlotOf(number);
  CoreShare core(sched_getcpu() == queue_.core ? queue_.core : -1);
  core_ = &core;
  SetWorkspacePool(&image_->abi(), &workspace_);
  HookTurn hook(limit);
  while (next_ <= number) {
    const CoreTurn of_core(queue_.core >= 0 ? engine_->seat() : nullptr, /*needs_turn=*/true, next_,
                           &core);
    do {
      if (next_ == number) hook_ = &hook;  // those of others are not interrupted by this caller
      Do();
    } while (next_ <= number && of_core.MayGoOn(next_));
  }
  if (!others_.empty()) {
    // He goes where the worker's own thread is to begin the next request.
    caller_bell_.store(&slot->bell);
    WaitFor(
        &slot->bell, [&] { return slot->state.load() == SlotState::kHeld || !is_lent_.load(); },
        Spins());
  }
  hook_ = nullptr;
  SetWorkspacePool(&image_->abi(), nullptr);
  core_ = nullptr;
}

void Worker::AskCaller() { engine_->AskCaller(hook_, slot_); }

void Engine::AskCaller(HookTurn* hook, Slot* slot) {
  try {
    hook->Look(NowNs());
  } catch (...) {
    slot->interruption = std::current_exception();
    Fail(slot, "the request was interrupted");
  }
}

}  // namespace heteroplace::exec
