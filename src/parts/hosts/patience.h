// How a thread waits for messages: MPI has no bell, so it looks, and rests longer the longer it
// does.
#pragma once

#include <algorithm>
#include <cstdint>
#include <ctime>

#include "exec/engine/sync.h"
#include "exec/requests/limit.h"

namespace heteroplace::exec {

/*! \brief Looks between two reads of the clock while it spins. */
inline constexpr int kLooksPerClock = 16;

/*! \brief How long a message is waited for without sleep that comes in the middle of something. */
inline constexpr int64_t kMessageSpinNs = 200'000;

/*! \brief The looks of one wait; it never spins longer than it is allowed, and then sleeps. */
class Patience {
 public:
  /*! \param spin_ns how long it may spin, while a core is to spare. */
  explicit Patience(int64_t spin_ns) : start_ns_(NowNs()), spin_ns_(spin_ns) {}

  /*! \brief Rests between two looks that found nothing. */
  void Rest() {
    if (spin_ns_ > 0) {
      Pause();
      if (++num_looks_ % kLooksPerClock != 0) return;
      if (NowNs() - start_ns_ < spin_ns_ && core_.MaySpin(/*is_short=*/false)) return;
      spin_ns_ = 0;
      core_.Leave();
    }
    // A look takes some 5 us of processor time with its wake-up: at most a tenth of a core, soon
    // less.
    const int64_t since_ns = NowNs() - start_ns_;
    const int64_t rest_ns = std::clamp<int64_t>(since_ns / 100, kShortRestNs, kLongRestNs);
    const timespec rest = {0, rest_ns};
    nanosleep(&rest, nullptr);
  }
  ~Patience() {
    if (spin_ns_ == 0) core_.Enter();  // as its destructor leaves again
  }
  Patience(const Patience&) = delete;
  Patience& operator=(const Patience&) = delete;

 private:
  static constexpr int64_t kShortRestNs = 50'000;
  static constexpr int64_t kLongRestNs = 1'000'000;

  const int64_t start_ns_;
  int64_t spin_ns_;
  int num_looks_ = 0;
  CoreShare core_{-1};
};

/*! \brief Looks until `ready()`; false at the limit, whose hook is called now and then. */
template <typename Ready>
bool LookUntil(const Limit& limit, int64_t spin_ns, const Ready& ready) {
  Patience patience(spin_ns);
  HookTurn hook(limit);
  while (!ready()) {
    patience.Rest();
    const int64_t now_ns = NowNs();
    if (limit.deadline_ns != kNever && now_ns >= limit.deadline_ns) return ready();
    hook.Look(now_ns);
  }
  return true;
}

}  // namespace heteroplace::exec
