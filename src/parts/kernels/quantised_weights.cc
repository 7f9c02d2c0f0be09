#include "parts/kernels/quantised_weights.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace heteroplace::kernels {

namespace {

// Scales that the two nearest sizes of a block may be apart.
constexpr int kMaxGap = 8;
// Added to a float below 2^22 and subtracted again, it leaves the nearest integer.
constexpr float kRounding = 1.5F * (1 << 23);
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The smallest and the largest multiple of a scale in a block, 0 among them.
struct Multiples {
  float least = 0;
  float most = 0;
};

// Write the nearest multiples; return whether they are exact and span less than `limit`.
bool Fits(std::span<const float> weights, float scale, float limit, std::span<float> multiples,
          Multiples* range) {
  int num_exact = 0;
  float least = 0;
  float most = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const float multiple = weights[i] / scale + kRounding - kRounding;
    multiples[i] = multiple;
    num_exact += static_cast<int>(multiple * scale == weights[i]);
    least = std::min(least, multiple);
    most = std::max(most, multiple);
  }
  *range = {least, most};
  return num_exact == static_cast<int>(weights.size()) && most - least < limit;
}

// Scales that a block may have, tried one after the other.
class ScaleSearch {
 public:
  ScaleSearch(std::span<const float> weights, int bits, std::span<float> multiples)
      : weights_(weights), half_(static_cast<float>(1 << (bits - 1))), multiples_(multiples) {}

  // Return the scale whose multiples the weights are, or 0.
  float Find(Multiples* range) {
    float largest = 0;
    float smallest = kInfinity;
    for (const float weight : weights_) {
      const float size = std::abs(weight);
      largest = std::max(largest, size);
      smallest = std::min(smallest, size > 0 ? size : kInfinity);
    }
    if (!(largest < kInfinity)) return 0;
    if (largest == 0) return Try(1, range) ? 1.0F : 0.0F;
    for (const float scale : {smallest, largest / half_, smallest / 2}) {
      if (Try(scale, range)) return scale;
    }
    // The two nearest sizes are a few scales apart. Their difference has lost digits; the largest
    // size has them all.
    const float gap = std::min(smallest, Gap());
    for (int count = 1; count <= kMaxGap; ++count) {
      const float steps = std::max(1.0F, std::nearbyint(largest * static_cast<float>(count) / gap));
      if (!(steps <= 2 * half_)) break;
      float above = largest / steps;
      float below = above;
      if (Try(above, range)) return above;
      for (int rounding = 0; rounding < 2; ++rounding) {
        above = std::nextafter(above, kInfinity);
        below = std::nextafter(below, 0.0F);
        if (Try(above, range)) return above;
        if (Try(below, range)) return below;
      }
    }
    return 0;
  }

 private:
  bool Try(float scale, Multiples* range) {
    return Fits(weights_, scale, 2 * half_, multiples_, range);
  }

  float Gap() {
    std::ranges::transform(weights_, multiples_.begin(), [](float each) { return std::abs(each); });
    std::ranges::sort(multiples_);
    float gap = kInfinity;
    for (size_t i = 1; i < multiples_.size(); ++i) {
      const float difference = multiples_[i] - multiples_[i - 1];
      if (difference > 0) gap = std::min(gap, difference);
    }
    return gap;
  }

  std::span<const float> weights_;
  float half_;
  std::span<float> multiples_;
};

}  // namespace

bool Quantise(std::span<const float> weights, int64_t block, int bits, QuantisedBlocks to) {
  const auto size = static_cast<size_t>(block);
  const float half = static_cast<float>(1 << (bits - 1));
  std::vector<float> multiples(size);
  for (size_t first = 0, index = 0; first < weights.size(); first += size, ++index) {
    Multiples range;
    float scale = ScaleSearch(weights.subspan(first, size), bits, multiples).Find(&range);
    if (scale == 0) return false;
    float sign = 1;
    if (range.most == half && range.least > -half) {
      sign = -1;
      range = {-range.most, -range.least};
    }
    const float zero = range.least >= -half && range.most < half ? half : -range.least;
    to.scales[index] = sign * scale;
    to.zeros[index] = static_cast<uint8_t>(zero);
    for (size_t i = 0; i < size; ++i) {
      to.numbers[first + i] = static_cast<uint8_t>(sign * multiples[i] + zero);
    }
  }
  return true;
}

}  // namespace heteroplace::kernels
