// How long a caller waits, and what may end its waiting.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "exec/engine/sync.h"

namespace heteroplace::exec {

/*! \brief Between two calls of the hook of a waiting caller. */
inline constexpr int64_t kHookNs = 50'000'000;

/*!
 * \brief Spins where a core is to spare of a caller who waits, so that short requests need no
 * wake-up, and of a worker after a request, so that the next one needs none: some 0.4 ms.
 */
inline constexpr int kCallerSpins = 20 * kSpins;

/*! \brief The patience of one call. */
struct Limit {
  /*! \brief Of NowNs. */
  int64_t deadline_ns = kNever;
  /*! \brief Called now and then by the thread that waits; what it throws ends the call. */
  std::function<void()> hook;

  /*! \brief A limit of `ns` from now, with the same hook. */
  Limit Within(int64_t ns) const {
    const int64_t now_ns = NowNs();
    return {ns < kNever - now_ns ? now_ns + ns : kNever, hook};
  }

  /*! \brief Waits for `ready()`; false at the deadline. */
  template <typename Ready>
  bool Wait(Bell* bell, const Ready& ready) const {
    if (ready()) return true;
    if (deadline_ns != kNever && NowNs() >= deadline_ns) return false;  // only asked: no spins
    CoreShare core(-1);
    int spins = core.MaySpin(/*is_short=*/false) ? kCallerSpins : 0;
    for (;;) {
      const int64_t slice_ns = hook ? std::min(deadline_ns, NowNs() + kHookNs) : deadline_ns;
      if (bell->WaitUntil(ready, &core, spins, slice_ns)) return true;
      if (deadline_ns != kNever && NowNs() >= deadline_ns) return false;
      if (hook) hook();
      spins = 0;
    }
  }
};

/*! \brief Calls the hook of a limit now and then. */
class HookTurn {
 public:
  explicit HookTurn(const Limit& limit) : limit_(limit), next_ns_(NowNs() + kHookNs) {}
  void Look(int64_t now_ns) {
    if (!limit_.hook || now_ns < next_ns_) return;
    next_ns_ = now_ns + kHookNs;
    limit_.hook();
  }
  int64_t next_ns() const { return limit_.hook ? next_ns_ : kNever; }

 private:
  const Limit& limit_;
  int64_t next_ns_;
};

}  // namespace heteroplace::exec
