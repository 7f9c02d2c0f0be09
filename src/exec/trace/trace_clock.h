// A clock that can be read between two kernels of some nanoseconds.
#pragma once

#include <cstdint>

#include "exec/engine/sync.h"

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace heteroplace::exec {

/*!
 * \brief The processor's counter where the system itself takes its time from it, else NowNs.
 *
 * The counter takes 10 ns to read, NowNs 24. Linux uses it only where it is the same on all cores
 * and runs at one speed. Its ticks become ns by two moments at which both clocks are read.
 */
class TraceClock {
 public:
  enum class Source {
    kFastest,
    kMonotonic  ///< NowNs
  };

  /*! \brief Both clocks at one moment, to within a reading of NowNs. */
  struct Moment {
    int64_t ticks;
    int64_t ns;
  };

  explicit TraceClock(Source source);

  /*! \brief The present moment in ticks. Work of the caller from before may still be under way in
   * its core's pipeline: some ns. */
  int64_t Now() const {
#if defined(__x86_64__)
    if (is_counter_) return static_cast<int64_t>(__rdtsc());
#endif
    return NowNs();
  }

  /*! \brief The same after a wait: never earlier than what was waited for. */
  int64_t NowAfterWait() const {
#if defined(__x86_64__)
    // Else the counter may be read before the load that ended the wait.
    if (is_counter_) _mm_lfence();
#endif
    return Now();
  }

  /*! \brief NowNs when the clock was made. */
  int64_t start_ns() const { return first_.ns; }

  /*! \brief Ticks -> ns of NowNs, for moments between the making of the clock and that of this. */
  class ToNs {
   public:
    explicit ToNs(const TraceClock& clock);
    int64_t operator()(int64_t ticks) const {
      return first_.ns + static_cast<int64_t>(static_cast<double>(ticks - first_.ticks) * rate_);
    }

   private:
    Moment first_;
    double rate_ = 1;
  };

 private:
  Moment Both() const;

  bool is_counter_;
  Moment first_;
};

}  // namespace heteroplace::exec
