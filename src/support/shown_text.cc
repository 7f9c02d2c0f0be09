#include "support/shown_text.h"

#include <cstdint>

namespace heteroplace {

std::string ShownText(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  for (const char character : text) {
    const auto byte = static_cast<uint8_t>(character);
    if (byte < 0x20 || byte == 0x7f) {
      shown += "\\x";
      shown += kDigits[byte >> 4];
      shown += kDigits[byte & 15];
    } else {
      shown += character;
    }
  }
  return shown;
}

}  // namespace heteroplace
