#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/*
 * Reservation tables: the busy intervals of one resource, with the search for a gap. There are two,
 * with one interface. List schedulers need every gap of a long plan: the unbounded one. The search
 * keeps and restores the state of a plan at checkpoints, hundreds of times for each change that it
 * tries: the bounded one is copied without allocating. It cannot serve the list schedulers, as it
 * forgets; the unbounded one in its place takes twice as long for each reservation (94 against 47
 * ns with a checkpoint every 8 reservations, AMD EPYC, Zen 5), and other gaps make other plans.
 */

namespace heteroplace::list {

/*!
 * \brief All busy time of one unit or channel, as disjoint intervals in order.
 *
 * Intervals that touch are merged, so that looking for a gap passes over few of them. They lie in
 * chunks of bounded size, each with its widest gap: reserving moves one chunk only, and chunks
 * without a gap that is wide enough are passed over as a whole. Both take O(sqrt(intervals)) or
 * less; a request behind all intervals, the most frequent one, O(1).
 */
class ReservationTable {
 public:
  /*! \brief Earliest start >= ready_ns of a gap of duration_ns. */
  int64_t EarliestFit(int64_t ready_ns, int64_t duration_ns) const {
    if (last_ns_.empty() || ready_ns >= last_ns_.back()) return ready_ns;
    return FindGap(ready_ns, duration_ns);
  }
  /*! \brief Marks [start_ns, finish_ns) as busy; it must be free. Of no length, nothing may span it
   * later. */
  void Reserve(int64_t start_ns, int64_t finish_ns);
  /*! \brief Makes all time free; keeps the storage. */
  void Clear();
  /*! \brief Whether nothing is reserved. */
  bool is_empty() const { return last_ns_.empty(); }
  /*! \brief End of the last interval; 0 if there is none. */
  int64_t last_ns() const { return last_ns_.empty() ? 0 : last_ns_.back(); }

 private:
  static constexpr size_t kCapacity = 128;

  using Interval = std::pair<int64_t, int64_t>;  // (start, finish)

  struct Chunk {
    size_t count = 0;
    std::array<Interval, kCapacity> items;  // [count] in use, ascending
  };

  /*! \brief An interval's chunk (position in `order_`) and position in it. */
  struct Position {
    size_t chunk;
    size_t item;
  };

  int64_t FindGap(int64_t ready_ns, int64_t duration_ns) const;
  /*! \brief First interval that ends after time_ns; past the last one if there is none. */
  Position FirstEndingAfter(int64_t time_ns) const;
  Chunk& At(size_t chunk) { return pool_[order_[chunk]]; }
  const Chunk& At(size_t chunk) const { return pool_[order_[chunk]]; }
  /*! \brief Reserves behind all intervals; false if it is not there, or the last chunk is full. */
  bool Append(int64_t start_ns, int64_t finish_ns);
  void Insert(Position at, Interval interval);
  void Erase(Position at);
  void AddChunk(size_t position);
  void Split(size_t chunk);
  /*! \brief Brings `last_ns_` and `gap_ns_` of a chunk up to date. */
  void Summarise(size_t chunk);

  std::vector<Chunk> pool_;       // chunks in use come first, in order of making
  std::vector<size_t> order_;     // [num_chunks], positions in pool_, by time
  std::vector<int64_t> last_ns_;  // [num_chunks], end of the last interval
  std::vector<int64_t> gap_ns_;   // [num_chunks], widest gap before one of its intervals
  std::vector<size_t> spare_;     // positions in pool_ that are not in use
};

/*!
 * \brief The latest busy intervals of one copy resource, of fixed number.
 *
 * When it is full the oldest gap is forgotten, which at worst delays a copy.
 */
class BoundedReservationTable {
 public:
  BoundedReservationTable() = default;
  BoundedReservationTable(const BoundedReservationTable& other) { *this = other; }
  BoundedReservationTable& operator=(const BoundedReservationTable& other) {
    closed_ns_ = other.closed_ns_;
    count_ = other.count_;
    std::copy_n(other.busy_.begin(), count_, busy_.begin());
    return *this;
  }

  /*! \brief Earliest start >= ready_ns of a gap of duration_ns. */
  int64_t EarliestFit(int64_t ready_ns, int64_t duration_ns) const {
    int64_t start = std::max(ready_ns, closed_ns_);
    int index = FirstEndingAfter(start);
    for (; index < count_; ++index) {
      if (start + duration_ns <= busy_[index].start_ns) break;
      start = std::max(start, busy_[index].finish_ns);
    }
    return start;
  }

  /*! \brief Marks [start_ns, finish_ns) as busy; it must be free. Of no length, nothing may span it
   * later. */
  void Reserve(int64_t start_ns, int64_t finish_ns) {
    int index = FirstEndingAfter(start_ns);
    const bool joins_before = index > 0 && busy_[index - 1].finish_ns == start_ns;
    const bool joins_after = index < count_ && busy_[index].start_ns == finish_ns;
    if (joins_before && joins_after) {
      busy_[index - 1].finish_ns = busy_[index].finish_ns;
      std::copy(busy_.begin() + index + 1, busy_.begin() + count_, busy_.begin() + index);
      --count_;
    } else if (joins_before) {
      busy_[index - 1].finish_ns = finish_ns;
    } else if (joins_after) {
      busy_[index].start_ns = start_ns;
    } else {
      if (count_ == kCapacity) {
        if (index == 0) {  // Older than all that is remembered.
          closed_ns_ = std::max(closed_ns_, finish_ns);
          return;
        }
        closed_ns_ = busy_[0].finish_ns;
        std::copy(busy_.begin() + 1, busy_.begin() + count_, busy_.begin());
        --count_;
        --index;
      }
      std::copy_backward(busy_.begin() + index, busy_.begin() + count_, busy_.begin() + count_ + 1);
      busy_[index] = {start_ns, finish_ns};
      ++count_;
    }
  }

  /*! \brief End of the latest interval. */
  int64_t end_ns() const { return count_ == 0 ? closed_ns_ : busy_[count_ - 1].finish_ns; }

  /*! \brief Makes all time free. */
  void Clear() {
    closed_ns_ = 0;
    count_ = 0;
  }

  /*! \brief Whether both offer the same gaps from a time on. */
  bool IsSameFrom(const BoundedReservationTable& other, int64_t time_ns) const {
    if (std::max(closed_ns_, time_ns) != std::max(other.closed_ns_, time_ns)) return false;
    int left = FirstEndingAfter(time_ns), right = other.FirstEndingAfter(time_ns);
    if (count_ - left != other.count_ - right) return false;
    for (; left < count_; ++left, ++right) {
      if (std::max(busy_[left].start_ns, time_ns) !=
              std::max(other.busy_[right].start_ns, time_ns) ||
          busy_[left].finish_ns != other.busy_[right].finish_ns) {
        return false;
      }
    }
    return true;
  }

 private:
  static constexpr int kCapacity = 32;
  struct Interval {
    int64_t start_ns;
    int64_t finish_ns;
  };

  /*! \brief Position of the first interval that ends after time_ns. */
  int FirstEndingAfter(int64_t time_ns) const {
    // Most requests lie near the end.
    int index = count_;
    while (index > 0 && busy_[index - 1].finish_ns > time_ns) --index;
    return index;
  }

  int64_t closed_ns_ = 0;  // nothing starts before
  int count_ = 0;
  std::array<Interval, kCapacity> busy_;
};

}  // namespace heteroplace::list
