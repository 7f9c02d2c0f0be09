#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "model/tensor_places.h"

namespace heteroplace::search {

/*!
 * \brief A value for each pair of a tensor and a memory, T() until one is given.
 *
 * A table of all pairs where that is small, as of few memories; else rows for the pairs that were
 * asked for: of 10^5 tensors and 300 memories a plan uses a hundredth.
 */
template <typename T>
class PairTable {
 public:
  PairTable(int num_tensors, size_t num_memories)
      : num_memories_(num_memories),
        is_whole_(static_cast<size_t>(num_tensors) * num_memories <= kMaxWhole),
        places_(is_whole_ ? 0 : num_tensors),
        values_(is_whole_ ? static_cast<size_t>(num_tensors) * num_memories : 0) {}

  /*! \brief Gives all pairs T(). O(pairs asked for), or O(pairs) of a whole table. */
  void Clear() {
    if (is_whole_) {
      std::fill(values_.begin(), values_.end(), T());
    } else {
      places_.Clear();
      values_.clear();
    }
  }

  /*! \brief The row of a pair, valid until Clear. A new one may move the values of the others. */
  size_t Row(int tensor, int memory) {
    if (is_whole_) return Cell(tensor, memory);
    const int known = places_.Find(tensor, memory);
    if (known != model::TensorPlaces::kNone) return static_cast<size_t>(known);
    places_.Add(tensor, memory, static_cast<int>(values_.size()));
    values_.emplace_back();
    return values_.size() - 1;
  }

  T& operator[](size_t row) { return values_[row]; }
  const T& operator[](size_t row) const { return values_[row]; }

  /*! \brief The value of a pair. */
  T Get(int tensor, int memory) const {
    if (is_whole_) return values_[Cell(tensor, memory)];
    const int row = places_.Find(tensor, memory);
    return row == model::TensorPlaces::kNone ? T() : values_[static_cast<size_t>(row)];
  }

 private:
  static constexpr size_t kMaxWhole = size_t{1} << 21;  // pairs

  size_t Cell(int tensor, int memory) const {
    return static_cast<size_t>(tensor) * num_memories_ + static_cast<size_t>(memory);
  }

  size_t num_memories_;
  bool is_whole_;
  model::TensorPlaces places_;  // rows of pairs; of a whole table none
  std::vector<T> values_;       // by row
};

}  // namespace heteroplace::search
