// Weights that are whole multiples of one scale in each block, found by their values.
#ifndef HETEROPLACE_PARTS_KERNELS_QUANTISED_WEIGHTS_H_
#define HETEROPLACE_PARTS_KERNELS_QUANTISED_WEIGHTS_H_

#include <cstdint>
#include <span>

namespace heteroplace::kernels {

/// Where blocks in a few bits are written: weight = (number - zero) * scale, exactly.
struct QuantisedBlocks {
  std::span<uint8_t> numbers;  ///< As many as weights.
  std::span<float> scales;     ///< One a block; some are negative.
  std::span<uint8_t> zeros;    ///< One a block: half of the range, 8 or 128, where that fits.
};

/// Returns whether every block of `block` weights was written in numbers of `bits` bits, 4 or 8.
/// If not, what was written has no meaning. Linear in the number of weights but for blocks of
/// which the smallest weight is not the scale.
bool Quantise(std::span<const float> weights, int64_t block, int bits, QuantisedBlocks to);

}  // namespace heteroplace::kernels

#endif  // HETEROPLACE_PARTS_KERNELS_QUANTISED_WEIGHTS_H_
