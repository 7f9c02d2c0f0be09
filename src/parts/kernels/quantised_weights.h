// Weights that are whole multiples of one scale in each block, found by their values.
#pragma once

#include <cstdint>
#include <span>

namespace heteroplace::kernels {

/*! \brief Where blocks in a few bits are written: weight = (number - zero) * scale, exactly. */
struct QuantisedBlocks {
  /*! \brief As many as weights. */
  std::span<uint8_t> numbers;
  /*! \brief One per block; some are negative. */
  std::span<float> scales;
  /*! \brief One per block: half of the range, 8 or 128, where that fits. */
  std::span<uint8_t> zeros;
};

/*!
 * \brief Write weights in a few bits, if that is exact.
 * \param block weights that have one scale, one after the other.
 * \param bits of a number: 4 or 8.
 * \return whether it is exact for every block; if not, what was written has no meaning.
 */
bool Quantise(std::span<const float> weights, int64_t block, int bits, QuantisedBlocks to);

}  // namespace heteroplace::kernels
