#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace heteroplace {

/*!
 * \brief The busy time of one unit or channel, as disjoint intervals in order.
 *
 * Intervals that touch are merged, so that looking for a gap passes over few of them.
 */
class Slots {
 public:
  /*! \brief Earliest start >= ready_ns of a gap of duration_ns. */
  int64_t EarliestFit(int64_t ready_ns, int64_t duration_ns) const;
  /*! \brief Marks [start_ns, finish_ns) as busy; it must be free. */
  void Reserve(int64_t start_ns, int64_t finish_ns);
  /*! \brief Makes all time free. */
  void Clear() { busy_.clear(); }
  /*! \brief Whether nothing is reserved. */
  bool is_empty() const { return busy_.empty(); }

 private:
  /*! \brief Position of the first interval that ends after time_ns. */
  size_t FirstEndingAfter(int64_t time_ns) const;

  std::vector<std::pair<int64_t, int64_t>> busy_;  // (start, finish), ascending
};

}  // namespace heteroplace
