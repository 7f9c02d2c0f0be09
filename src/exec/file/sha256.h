// SHA-256 (FIPS 180-4), by the processor's own instructions where it has them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace heteroplace::exec {

using Digest = std::array<uint8_t, 32>;

/*! \brief Takes bytes in any portions. Not for several threads at once. */
class Sha256 {
 public:
  void Update(const void* data, size_t bytes);

  /*! \brief The digest of all bytes so far; nothing may be added after. */
  Digest Finish();

 private:
  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  uint64_t bytes_ = 0;
};

/*! \brief The digest of bytes that lie in memory. */
Digest Sha256Of(const void* data, size_t bytes);

/*! \brief Lower-case hexadecimal digits. */
std::string HexOf(const Digest& digest);

}  // namespace heteroplace::exec
