#include "support/shown_text.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "support/utf8.h"

namespace heteroplace {

std::string ShownText(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const auto first = static_cast<uint8_t>(text[0]);
    if (bytes == 0 || first < 0x20 || first == 0x7f) {
      shown += "\\x";
      shown += kDigits[first >> 4];
      shown += kDigits[first & 15];
    } else {
      shown += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return shown;
}

}  // namespace heteroplace
