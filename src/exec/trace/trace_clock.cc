#include "exec/trace/trace_clock.h"

#include <fstream>
#include <string>

namespace heteroplace::exec {

namespace {

/*! \brief Pairs of readings of which the closest is taken: an interrupt may come between two. */
constexpr int kReadings = 16;

/*! \brief Whether Linux finds the counter the same on all cores, and takes its time from it. */
bool IsCounterTrusted() {
#if defined(__x86_64__)
  std::ifstream file("/sys/devices/system/clocksource/clocksource0/current_clocksource");
  std::string source;
  return file >> source && source == "tsc";
#else
  return false;
#endif
}

}  // namespace

TraceClock::TraceClock(Source source)
    : is_counter_(source == Source::kFastest && IsCounterTrusted()), first_(Both()) {}

TraceClock::Moment TraceClock::Both() const {
  Moment closest{};
  int64_t min_ns = kNever;
  for (int i = 0; i < kReadings; ++i) {
    const int64_t before_ns = NowNs();
    const int64_t ticks = NowAfterWait();
    const int64_t after_ns = NowNs();
    if (after_ns - before_ns >= min_ns) continue;
    min_ns = after_ns - before_ns;
    closest = {ticks, is_counter_ ? before_ns + min_ns / 2 : ticks};
  }
  return closest;
}

TraceClock::ToNs::ToNs(const TraceClock& clock) : first_(clock.first_) {
  const Moment last = clock.Both();
  if (last.ticks > first_.ticks) {
    rate_ =
        static_cast<double>(last.ns - first_.ns) / static_cast<double>(last.ticks - first_.ticks);
  }
}

}  // namespace heteroplace::exec
