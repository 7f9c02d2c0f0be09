#include "support/utf8.h"

#include <cstdint>

namespace heteroplace {

size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t bytes = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
  if (first < 0xc2 || first > 0xf4 || text.size() < bytes) return 0;
  for (size_t i = 1; i < bytes; ++i) {
    if (byte(i) < 0x80 || byte(i) > 0xbf) return 0;
  }
  // Longer forms than needed, halves of pairs, and what is beyond the last character.
  const bool is_valid = !(first == 0xe0 && byte(1) < 0xa0) && !(first == 0xed && byte(1) > 0x9f) &&
                        !(first == 0xf0 && byte(1) < 0x90) && !(first == 0xf4 && byte(1) > 0x8f);
  return is_valid ? bytes : 0;
}

}  // namespace heteroplace
