#include "list/engine/reservation_table.h"

#include <algorithm>

namespace heteroplace::list {

void ReservationTable::Clear() {
  spare_.insert(spare_.end(), order_.begin(), order_.end());
  order_.clear();
  last_ns_.clear();
  gap_ns_.clear();
}

ReservationTable::Position ReservationTable::FirstEndingAfter(int64_t time_ns) const {
  const auto chunk =
      static_cast<size_t>(std::ranges::upper_bound(last_ns_, time_ns) - last_ns_.begin());
  if (chunk == last_ns_.size()) return {chunk, 0};
  const Chunk& found = At(chunk);
  const auto* begin = found.items.data();
  const auto* item =
      std::upper_bound(begin, begin + found.count, time_ns,
                       [](int64_t time, const Interval& one) { return time < one.second; });
  return {chunk, static_cast<size_t>(item - begin)};
}

int64_t ReservationTable::FindGap(int64_t ready_ns, int64_t duration_ns) const {
  const Position first = FirstEndingAfter(ready_ns);
  int64_t start = ready_ns;
  for (size_t chunk = first.chunk; chunk < last_ns_.size(); ++chunk) {
    const bool is_first = chunk == first.chunk;
    // Behind the first chunk every gap begins where an interval ends, so its width decides.
    if (is_first || gap_ns_[chunk] >= duration_ns) {
      const Chunk& items = At(chunk);
      for (size_t item = is_first ? first.item : 0; item < items.count; ++item) {
        // A zero-length slot fits at the very start of a busy interval, never inside it.
        if (start + duration_ns <= items.items[item].first) return start;
        start = std::max(start, items.items[item].second);
      }
    }
    start = last_ns_[chunk];
  }
  return start;
}

void ReservationTable::Reserve(int64_t start_ns, int64_t finish_ns) {
  if (Append(start_ns, finish_ns)) return;
  const Position after = FirstEndingAfter(start_ns);
  // Of no length, between two intervals that were joined since its place was found.
  const bool is_covered = start_ns == finish_ns && after.chunk < order_.size() &&
                          At(after.chunk).items[after.item].first < start_ns;
  if (is_covered) return;
  const bool has_before = after.chunk > 0 || after.item > 0;
  Position before = after;
  if (after.item > 0) {
    --before.item;
  } else if (has_before) {
    before = {after.chunk - 1, At(after.chunk - 1).count - 1};
  }
  const bool has_after = after.chunk < order_.size();
  const bool joins_before = has_before && At(before.chunk).items[before.item].second == start_ns;
  const bool joins_after = has_after && At(after.chunk).items[after.item].first == finish_ns;
  if (joins_before) {
    const int64_t end = joins_after ? At(after.chunk).items[after.item].second : finish_ns;
    At(before.chunk).items[before.item].second = end;
    Summarise(before.chunk);
    if (joins_after) {
      Erase(after);
    } else if (has_after) {
      Summarise(after.chunk);
    }
  } else if (joins_after) {
    At(after.chunk).items[after.item].first = start_ns;
    Summarise(after.chunk);
  } else if (has_before && after.item == 0) {
    Insert({before.chunk, before.item + 1}, {start_ns, finish_ns});  // Behind a chunk's last one.
  } else {
    Insert(after, {start_ns, finish_ns});
  }
}

bool ReservationTable::Append(int64_t start_ns, int64_t finish_ns) {
  if (order_.empty() || start_ns < last_ns_.back()) return false;
  Chunk& chunk = At(order_.size() - 1);
  if (start_ns == last_ns_.back()) {
    chunk.items[chunk.count - 1].second = finish_ns;
  } else {
    if (chunk.count == kCapacity) return false;
    gap_ns_.back() = std::max(gap_ns_.back(), start_ns - last_ns_.back());
    chunk.items[chunk.count++] = {start_ns, finish_ns};
  }
  last_ns_.back() = finish_ns;
  return true;
}

void ReservationTable::Insert(Position at, Interval interval) {
  if (order_.empty()) AddChunk(0);
  if (At(at.chunk).count == kCapacity) {
    Split(at.chunk);
    const size_t half = At(at.chunk).count;
    if (at.item > half) at = {at.chunk + 1, at.item - half};
  }
  Chunk& chunk = At(at.chunk);
  const auto begin = chunk.items.begin() + static_cast<std::ptrdiff_t>(at.item);
  const auto end = chunk.items.begin() + static_cast<std::ptrdiff_t>(chunk.count);
  std::move_backward(begin, end, end + 1);
  chunk.items[at.item] = interval;
  ++chunk.count;
  Summarise(at.chunk);
  if (at.chunk + 1 < order_.size()) Summarise(at.chunk + 1);
}

void ReservationTable::Erase(Position at) {
  Chunk& chunk = At(at.chunk);
  const auto begin = chunk.items.begin() + static_cast<std::ptrdiff_t>(at.item);
  std::move(begin + 1, chunk.items.begin() + static_cast<std::ptrdiff_t>(chunk.count), begin);
  --chunk.count;
  if (chunk.count > 0) {
    Summarise(at.chunk);
    return;
  }
  const auto position = static_cast<std::ptrdiff_t>(at.chunk);
  spare_.push_back(order_[at.chunk]);
  order_.erase(order_.begin() + position);
  last_ns_.erase(last_ns_.begin() + position);
  gap_ns_.erase(gap_ns_.begin() + position);
  if (at.chunk < order_.size()) Summarise(at.chunk);
}

void ReservationTable::AddChunk(size_t position) {
  if (spare_.empty()) {
    spare_.push_back(pool_.size());
    pool_.emplace_back();
  }
  const auto at = static_cast<std::ptrdiff_t>(position);
  order_.insert(order_.begin() + at, spare_.back());
  last_ns_.insert(last_ns_.begin() + at, 0);
  gap_ns_.insert(gap_ns_.begin() + at, 0);
  spare_.pop_back();
  At(position).count = 0;
}

void ReservationTable::Split(size_t chunk) {
  AddChunk(chunk + 1);
  Chunk& left = At(chunk);
  Chunk& right = At(chunk + 1);
  // What is appended at the end, the usual case, leaves full chunks behind.
  const bool is_last = chunk + 2 == order_.size();
  const size_t kept = is_last ? kCapacity - kCapacity / 8 : kCapacity / 2;
  right.count = left.count - kept;
  std::copy_n(left.items.begin() + static_cast<std::ptrdiff_t>(kept), right.count,
              right.items.begin());
  left.count = kept;
  Summarise(chunk);
  Summarise(chunk + 1);
}

void ReservationTable::Summarise(size_t chunk) {
  const Chunk& items = At(chunk);
  int64_t last = chunk > 0 ? last_ns_[chunk - 1] : 0;
  int64_t widest = 0;
  for (size_t item = 0; item < items.count; ++item) {
    widest = std::max(widest, items.items[item].first - last);
    last = items.items[item].second;
  }
  gap_ns_[chunk] = widest;
  last_ns_[chunk] = last;
}

}  // namespace heteroplace::list
