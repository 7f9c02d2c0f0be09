#pragma once

#include <string>
#include <string_view>

namespace heteroplace {

/*! \brief A text for a terminal: control characters, which could rule it, and what is no UTF-8 as
 * "\x1b". */
std::string ShownText(std::string_view text);

}  // namespace heteroplace
