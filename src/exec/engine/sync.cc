#include "exec/engine/sync.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <ctime>

namespace heteroplace::exec {

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void SleepOn(std::atomic<uint32_t>* word, uint32_t seen, int64_t deadline_ns) {
  static_assert(sizeof(*word) == sizeof(uint32_t), "the system knows words of 32 bits");
  timespec until{};
  until.tv_sec = deadline_ns / 1'000'000'000;
  until.tv_nsec = deadline_ns % 1'000'000'000;
  // With a mask the time is a moment of the monotonic clock, and not a duration. Whatever ends the
  // sleep (a wake-up, a signal, the deadline), the caller looks at its condition again.
  syscall(SYS_futex, word, FUTEX_WAIT_BITSET_PRIVATE, seen,
          deadline_ns == kNever ? nullptr : &until, nullptr, FUTEX_BITSET_MATCH_ANY);
}

void WakeAll(std::atomic<uint32_t>* word) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace heteroplace::exec
