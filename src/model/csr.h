#pragma once

#include <span>
#include <vector>

namespace heteroplace::model {

/*! \brief Lists of small integers, one list per row, stored flat. */
struct Csr {
  std::vector<int> offsets{0};  // [num_rows + 1]
  std::vector<int> values;      // [offsets.back()]

  /*! \brief The values of one row. */
  std::span<const int> operator[](int row) const {
    return {values.data() + offsets[row], static_cast<size_t>(offsets[row + 1] - offsets[row])};
  }
  /*! \brief Number of lists. */
  int num_rows() const { return static_cast<int>(offsets.size()) - 1; }
  /*! \brief Adds one list at the end. */
  template <typename Range>
  void AddRow(const Range& row) {
    values.insert(values.end(), row.begin(), row.end());
    offsets.push_back(static_cast<int>(values.size()));
  }
};

}  // namespace heteroplace::model
