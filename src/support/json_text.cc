#include "support/json_text.h"

#include <cstddef>
#include <cstdint>

#include "support/utf8.h"

namespace heteroplace {

std::string JsonText(std::string_view text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string json = "\"";
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const auto first = static_cast<uint8_t>(text[0]);
    if (bytes == 0) {
      json += "\\ufffd";
    } else if (first < 0x20 || first == 0x7f) {
      json += "\\u00";
      json += kDigits[first >> 4];
      json += kDigits[first & 15];
    } else {
      if (first == '"' || first == '\\') json += '\\';
      json += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return json + "\"";
}

}  // namespace heteroplace
