#pragma once

#include <string>
#include <string_view>

namespace heteroplace {

/*!
 * \brief A text as JSON has it, in quotation marks.
 *
 * What is no UTF-8 becomes U+FFFD, byte by byte, as a file of JSON that holds it is none.
 */
std::string JsonText(std::string_view text);

}  // namespace heteroplace
