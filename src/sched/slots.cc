#include "sched/slots.h"

#include <algorithm>

namespace heteroplace {

size_t Slots::FirstEndingAfter(int64_t time_ns) const {
  const auto ends_before = [](const std::pair<int64_t, int64_t>& interval, int64_t time) {
    return interval.second <= time;
  };
  return static_cast<size_t>(std::lower_bound(busy_.begin(), busy_.end(), time_ns, ends_before) -
                             busy_.begin());
}

int64_t Slots::EarliestFit(int64_t ready_ns, int64_t duration_ns) const {
  int64_t start = ready_ns;
  for (size_t index = FirstEndingAfter(ready_ns); index < busy_.size(); ++index) {
    // A zero-length slot fits at the very start of a busy interval, never inside it.
    if (start + duration_ns <= busy_[index].first) break;
    start = std::max(start, busy_[index].second);
  }
  return start;
}

void Slots::Reserve(int64_t start_ns, int64_t finish_ns) {
  if (start_ns == finish_ns) return;
  size_t index = FirstEndingAfter(start_ns);
  const bool joins_before = index > 0 && busy_[index - 1].second == start_ns;
  const bool joins_after = index < busy_.size() && busy_[index].first == finish_ns;
  const auto at = busy_.begin() + static_cast<std::ptrdiff_t>(index);
  if (joins_before && joins_after) {
    busy_[index - 1].second = busy_[index].second;
    busy_.erase(at);
  } else if (joins_before) {
    busy_[index - 1].second = finish_ns;
  } else if (joins_after) {
    busy_[index].first = start_ns;
  } else {
    busy_.insert(at, {start_ns, finish_ns});
  }
}

}  // namespace heteroplace
