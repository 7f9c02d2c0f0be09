// Whole files, in and out.
#pragma once

#include <string>
#include <string_view>

namespace heteroplace {

/*! \brief All bytes of a file. \throws Error kExecution. */
std::string ReadWhole(const std::string& path);

/*! \brief Tells before the work that WriteWhole would fail. \throws Error kExecution. */
void CheckWritable(const std::string& path);

/*!
 * \brief Writes a file as a whole: under another name first, so that no half of it is ever there.
 *
 * What is no regular file (/dev/null, a pipe) is written to as it is.
 * \throws Error kExecution.
 */
void WriteWhole(const std::string& path, std::string_view bytes);

}  // namespace heteroplace
