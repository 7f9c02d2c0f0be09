#pragma once

#include <cmath>
#include <cstdint>

namespace heteroplace {

/*! \brief A small generator with the same sequence everywhere (splitmix64, Steele et al. 2014). */
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  /*! \brief 64 random bits. */
  uint64_t Next() {
    uint64_t bits = (state_ += 0x9E3779B97F4A7C15U);
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
    return bits ^ (bits >> 31);
  }
  /*! \brief An integer in [0, count); count > 0. The bias is below count / 2^32. */
  int Below(int count) {
    return static_cast<int>(((Next() >> 32) * static_cast<uint64_t>(count)) >> 32);
  }
  /*! \brief A number in (0, 1]. */
  double Unit() { return static_cast<double>((Next() >> 11) + 1) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace heteroplace
