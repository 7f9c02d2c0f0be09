#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace heteroplace {

/*!
 * \brief The busy time of one unit or channel, as disjoint intervals in order.
 *
 * Intervals that touch are merged, so that looking for a gap passes over few of them. They lie in
 * chunks of bounded size, each with its widest gap: reserving moves one chunk only, and chunks
 * without a gap that is wide enough are passed over as a whole. Both take O(sqrt(intervals)) or
 * less; a request behind all intervals, the most frequent one, O(1).
 */
class Slots {
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
  struct Place {
    size_t chunk;
    size_t item;
  };

  int64_t FindGap(int64_t ready_ns, int64_t duration_ns) const;
  /*! \brief First interval that ends after time_ns; past the last one if there is none. */
  Place FirstEndingAfter(int64_t time_ns) const;
  Chunk& At(size_t chunk) { return pool_[order_[chunk]]; }
  const Chunk& At(size_t chunk) const { return pool_[order_[chunk]]; }
  /*! \brief Reserves behind all intervals; false if it is not there, or the last chunk is full. */
  bool Append(int64_t start_ns, int64_t finish_ns);
  void Insert(Place at, Interval interval);
  void Erase(Place at);
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

}  // namespace heteroplace
