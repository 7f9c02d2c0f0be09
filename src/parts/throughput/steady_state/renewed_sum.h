#pragma once

#include <cmath>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace heteroplace::throughput {

/*!
 * \brief A sum of many parts >= 0, of which few change at a time; the last changes can be undone.
 *
 * What is added and taken away rounds, so the parts are summed up anew now and then, and where most
 * of the sum goes away.
 */
class RenewedSum {
 public:
  /*! \brief Takes other parts, which cannot be undone. */
  void Assign(std::vector<double> parts) {
    parts_ = std::move(parts);
    before_.clear();
    SumUp();
    sum_before_ = sum_;
  }

  /*! \brief Changes from here on are those that Undo undoes. */
  void Begin() {
    if (++num_begun_ >= kMaxBegun || !std::isfinite(sum_)) SumUp();
    before_.clear();
    sum_before_ = sum_;
  }

  void Set(int index, double value) {
    double& part = parts_[static_cast<size_t>(index)];
    before_.emplace_back(index, part);
    sum_ += value - part;
    part = value;
  }

  /*! \brief The sum of the parts as they are. */
  double Get() {
    // Behind infinite parts the sum may be no number, which is not >= either.
    if (!(sum_ >= sum_before_ / 2) || !std::isfinite(sum_)) SumUp();
    return sum_;
  }

  void Undo() {
    for (size_t i = before_.size(); i-- > 0;) {
      parts_[static_cast<size_t>(before_[i].first)] = before_[i].second;
    }
    before_.clear();
    sum_ = sum_before_;
  }

 private:
  static constexpr int64_t kMaxBegun = 1024;

  void SumUp() {
    sum_ = std::accumulate(parts_.begin(), parts_.end(), 0.0);
    num_begun_ = 0;
  }

  std::vector<double> parts_;
  std::vector<std::pair<int, double>> before_;  // (index, part before Set), in order
  double sum_ = 0;
  double sum_before_ = 0;
  int64_t num_begun_ = 0;
};

}  // namespace heteroplace::throughput
