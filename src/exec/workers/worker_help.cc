// Kernel calls, and the help that a worker gives with those of others while it waits.
//
// A worker that waits spins, and looks at the launches of the workers with which it shares a cache.
// It takes a chunk at a time, so what it waits for itself is late by one chunk at most. Nobody is
// woken to help, and nobody helps on a core that another worker needs.
#include <algorithm>

#include "exec/engine/engine.h"
#include "exec/workers/worker.h"

namespace heteroplace::exec {

void Worker::HelpEachOther(std::vector<Team*> others, size_t num_cores) {
  others_ = std::move(others);
  num_other_cores_ = static_cast<uint32_t>(num_cores);
  size_t num_calls = instructions_.size();
  for (const BoundBranch& at : branches_) num_calls += at.step->calls.size();
  call_times_.resize(num_calls);
  for (BoundInstruction& instruction : instructions_) {
    // The team's own cores are no help.
    const uint32_t joiners = std::min(num_other_cores_, instruction.role.threads - 1);
    instruction.role.helpers = std::min(kMaxHelpers, num_other_cores_ - joiners);
  }
}

/*! \brief A team with chunks for this worker; null: none, or its core is not its own. */
Team* Worker::FindOpenTeam() {
  for (size_t i = 0; i < others_.size(); ++i) {
    Team* team = others_[(first_other_ + i) % others_.size()];
    if (!team->IsOpen()) continue;
    // Without a core of its own it would keep the leader waiting for its chunk.
    return core_->MaySpin(/*is_short=*/true) ? team : nullptr;
  }
  return nullptr;
}

void Worker::Help(Team* team) {
  // A chunk that fails leaves its scratch memory behind; between two calls this worker has none.
  if (team->HelpOnce() != 0) workspace_.Clear();
}

/*! \brief Calls the kernel; its parallel loops are shared as the role says. */
[[gnu::always_inline]] inline bool Worker::CallIn(TeamRole role, const KernelCall& call) {
  const bool is_shared = role.threads > 1 || role.helpers > 0;
  if (is_shared) team_.Begin(role);
  const int code = CallKernel(image_->abi(), call);
  // Joiners stay until the call is published: `Tell` ends those.
  if (is_shared && (role.threads == 1 || code != 0)) team_.End();
  if (code == 0) return true;
  Fail(image_->abi().LastErrorLine().c_str());
  return false;
}

/*! \brief Makes a call; `place` is that of its time among `times`. Inlined: all around a kernel
 * takes ten ns. */
[[gnu::always_inline]] inline bool Worker::CallAs(TeamRole role, const KernelCall& call,
                                                  CallTime* times, size_t place) {
  if (!has_teams_ || is_serial_) return CallIn({}, call);
  if (is_open_ && role.helpers > 0) return CallOpen(role, call, &times[place]);
  return CallIn({role.threads, role.rank, 0}, call);
}

bool Worker::Call(const BoundInstruction& instruction) {
  return CallAs(instruction.role, CallOf(instruction), call_times_.data(),
                static_cast<size_t>(&instruction - instructions_.data()));
}

bool Worker::Call(TeamRole role, const KernelCall& call, CallTime* times, size_t place) {
  return CallAs(role, call, times, place);
}

/*! \brief Makes a call with which others may help, if it is long enough for them to come. */
bool Worker::CallOpen(TeamRole role, const KernelCall& call, CallTime* time) {
  TeamRole alone = role;
  alone.helpers = 0;
  if (time->num_timed < kTimedCalls) {
    // Without help: short calls take longer with it, and would pass for long ones.
    const int64_t start_ns = NowNs();
    if (!CallIn(alone, call)) return false;
    time->min_ns = std::min(time->min_ns, NowNs() - start_ns);
    ++time->num_timed;
    return true;
  }
  if (time->min_ns < kMinOpenNs) return CallIn(alone, call);
  if (closed_calls_ > 0) {
    --closed_calls_;
    return CallIn(alone, call);
  }
  if (!CallIn(role, call)) return false;
  // On a machine with other programs a helper may lose its core within a chunk, for milliseconds.
  const bool is_lost = team_.TakeWaitNs() > std::max(kLostCoreNs, time->min_ns);
  last_closed_calls_ =
      is_lost ? std::min(kMaxClosedCalls, 2 * last_closed_calls_ + 16) : last_closed_calls_ / 2;
  if (is_lost) closed_calls_ = last_closed_calls_;
  return true;
}

}  // namespace heteroplace::exec
