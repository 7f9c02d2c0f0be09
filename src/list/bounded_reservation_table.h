#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace heteroplace {

/*!
 * \brief The busy time of one copy resource, as the latest disjoint intervals in order.
 *
 * Like Slots, but of fixed size, so that the state of a schedule can be kept and restored cheaply:
 * when it is full the oldest gap is forgotten, which at worst delays a copy.
 */
class Lane {
 public:
  Lane() = default;
  Lane(const Lane& other) { *this = other; }
  Lane& operator=(const Lane& other) {
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
  bool IsSameFrom(const Lane& other, int64_t time_ns) const {
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

}  // namespace heteroplace
