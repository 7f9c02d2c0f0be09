#include "parts/kernels/minimum_weights.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

namespace heteroplace::kernels {

namespace {

constexpr float kUnbounded = std::numeric_limits<float>::infinity();
constexpr int kMostSteps = 15;
// Float32 scales that are tried on each side of the one in the middle.
constexpr int kNearScales = 128;
// By how many steps of the largest weight a weight may be off a multiple before it is ruled out.
constexpr double kSlack = 4 * 0x1p-23;

// The float16 next to a value: 11 digits, fewer below 2^-14.
float ByFloat16(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  std::frexp(value, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent, -13) - 11);
  const double nearest = std::nearbyint(value / unit) * unit;
  return std::abs(nearest) < 65520 ? static_cast<float>(nearest) : std::nanf("");
}

float AsItIs(double value) { return static_cast<float>(value); }

// Weights of a block that are the same number of scales above the least.
struct Level {
  float weight;
  float multiple;
  // Sums between these two are rounded to the weight.
  double low;
  double high;
};

// The scale and the minimum of a block of weights.
class Block {
 public:
  // Write numbers, scale and minimum of the block; return whether they are exact.
  bool Find(std::span<const float> weights, std::span<uint8_t> numbers, float* scale,
            float* minimum) {
    weights_ = weights;
    numbers_ = numbers;
    const auto [least, most] = std::ranges::minmax(weights);
    if (!(most < kUnbounded && least > -kUnbounded)) return false;
    least_ = least;
    range_ = static_cast<double>(most) - least;
    slack_ = kSlack * std::max(std::abs(least), std::abs(most));
    if (range_ > 0) {
      return Search(ByFloat16, 0, scale, minimum) || Search(AsItIs, kNearScales, scale, minimum);
    }
    std::ranges::fill(numbers, uint8_t{0});
    *scale = 0;
    *minimum = least;
    return std::ranges::all_of(weights, [=](float each) { return each == least; });
  }

 private:
  using Rounding = float (*)(double);

  // Try scales that make the range so many steps, the most first: a quantiser uses them all.
  bool Search(Rounding rounded, int near, float* scale, float* minimum) {
    for (int steps = kMostSteps; steps > 0; --steps) {
      if (!AreMultiples(range_ / steps)) continue;
      float above = rounded(MiddleScale());
      float below = above;
      for (int more = 0; more <= near; ++more) {
        for (const float each : {above, below}) {
          const int first = FirstNumber(each, steps, rounded, minimum);
          if (first < 0) continue;
          *scale = each;
          for (uint8_t& number : numbers_) number = static_cast<uint8_t>(number + first);
          return true;
        }
        above = std::nextafter(above, kUnbounded);
        below = std::nextafter(below, 0.0F);
      }
    }
    return false;
  }

  // Write how many scales each weight is above the least; return whether all are near to these.
  bool AreMultiples(double scale) {
    std::array<float, kMostSteps + 1> weights;
    weights.fill(kUnbounded);
    for (size_t i = 0; i < weights_.size(); ++i) {
      const double above = weights_[i] - least_;
      const double multiple = std::nearbyint(above / scale);
      if (!(std::abs(above - multiple * scale) <= slack_)) return false;
      numbers_[i] = static_cast<uint8_t>(multiple);
      float& weight = weights[numbers_[i]];
      if (weight == kUnbounded) weight = weights_[i];
      if (weight != weights_[i]) return false;
    }
    levels_.clear();
    for (size_t i = 0; i < weights.size(); ++i) {
      const float weight = weights[i];
      if (weight == kUnbounded) continue;
      const double below = std::nextafter(weight, -kUnbounded);
      const double above = std::nextafter(weight, kUnbounded);
      levels_.push_back(
          {weight, static_cast<float>(i), (below + weight) / 2, (weight + above) / 2});
    }
    return true;
  }

  // The middle of the scales that all pairs of levels allow.
  double MiddleScale() {
    double low = 0;
    double high = kUnbounded;
    for (size_t i = 0; i < levels_.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        const double steps = levels_[i].multiple - levels_[j].multiple;
        low = std::max(low, (levels_[i].low - levels_[j].high) / steps);
        high = std::min(high, (levels_[i].high - levels_[j].low) / steps);
      }
    }
    return (low + high) / 2;
  }

  // Return the number of the least weight, and write the minimum, with which all weights are exact;
  // -1: there are none.
  int FirstNumber(float scale, int steps, Rounding rounded, float* minimum) {
    if (!(scale > 0 && scale < kUnbounded)) return -1;
    for (int first = 0; first + steps <= kMostSteps; ++first) {
      const auto offset = static_cast<float>(first);
      double low = -kUnbounded;
      double high = kUnbounded;
      for (const Level& each : levels_) {
        const float product = scale * (each.multiple + offset);
        low = std::max(low, each.low - product);
        high = std::min(high, each.high - product);
      }
      if (low > high) continue;
      // The ends are ties, of which some are rounded to the weights.
      for (const double each : {(low + high) / 2, low, high}) {
        *minimum = rounded(each);
        if (IsExact(scale, *minimum, offset)) return first;
      }
    }
    return -1;
  }

  bool IsExact(float scale, float minimum, float offset) const {
    return std::ranges::all_of(levels_, [=](const Level& each) {
      const float product = scale * (each.multiple + offset);
      return product + minimum == each.weight;
    });
  }

  std::span<const float> weights_;
  std::span<uint8_t> numbers_;
  std::vector<Level> levels_;
  double least_ = 0;
  double range_ = 0;
  double slack_ = 0;
};

}  // namespace

bool QuantiseWithMinimums(std::span<const float> weights, int64_t block, MinimumBlocks to) {
  const auto size = static_cast<size_t>(block);
  Block of_weights;
  for (size_t first = 0, index = 0; first < weights.size(); first += size, ++index) {
    if (!of_weights.Find(weights.subspan(first, size), to.numbers.subspan(first, size),
                         &to.scales[index], &to.minimums[index])) {
      return false;
    }
  }
  return true;
}

}  // namespace heteroplace::kernels
