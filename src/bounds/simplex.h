#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

namespace heteroplace::bounds {

/*!
 * \brief Moves a vector to the nearest one of non-negative numbers that sum to 1 (Held, Wolfe and
 * Crowder 1974). O(n log n).
 */
inline void ProjectOntoSimplex(std::span<double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted, std::greater<>());
  double sum = 0, shift = 0;
  for (size_t count = 1; count <= sorted.size(); ++count) {
    sum += sorted[count - 1];
    const double trial = (sum - 1.0) / static_cast<double>(count);
    if (count == 1 || sorted[count - 1] > trial) shift = trial;
  }
  for (double& value : values) value = std::max(0.0, value - shift);
}

}  // namespace heteroplace::bounds
