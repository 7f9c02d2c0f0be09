// Weights that are a minimum and whole multiples of a scale in each block, found by their values.
#pragma once

#include <cstdint>
#include <span>

namespace heteroplace::kernels {

/*! \brief Where blocks in 4 bits are written: weight = number * scale + minimum, exactly. */
struct MinimumBlocks {
  /*! \brief As many as weights. */
  std::span<uint8_t> numbers;
  /*! \brief One per block, none negative. */
  std::span<float> scales;
  /*! \brief One per block. */
  std::span<float> minimums;
};

/*!
 * \brief Write weights in 4 bits, if that is exact: product and sum are rounded to float32.
 *
 * Scales and minimums are values of float16 where such ones are exact.
 * \param block weights that have one scale and one minimum, one after the other.
 * \return whether it is exact for every block; if not, what was written has no meaning.
 */
bool QuantiseWithMinimums(std::span<const float> weights, int64_t block, MinimumBlocks to);

}  // namespace heteroplace::kernels
