#pragma once

#include <cstddef>
#include <string_view>

namespace heteroplace {

/*! \brief Bytes of the UTF-8 character that a text, not empty, begins with; 0: it begins with none.
 */
size_t CharacterBytes(std::string_view text);

}  // namespace heteroplace
