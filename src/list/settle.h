#pragma once

#include <cstdint>

namespace heteroplace::list {

/*!
 * \brief Earliest start that suits several resources at once.
 * \param ready_ns Not before.
 * \param delay Returns the earliest start, at or after its argument, that suits one resource after
 * the other; asked again until none of them moves it.
 */
template <typename Delay>
int64_t SettleStart(int64_t ready_ns, Delay delay) {
  while (true) {
    const int64_t next = delay(ready_ns);
    if (next == ready_ns) return ready_ns;
    ready_ns = next;
  }
}

}  // namespace heteroplace::list
