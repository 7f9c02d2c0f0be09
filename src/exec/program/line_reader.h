// Reads the fields of one line of a program's text, with errors that name the line.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace heteroplace::exec {

/*! \brief The fields of the present line; field 0 is its word. All checks throw kArtifact. */
class LineReader {
 protected:
  /*! \param first_line number of the first line, for messages. */
  explicit LineReader(int first_line) : line_(first_line - 1) {}

  /*! \brief Goes to the next line; false if it is blank or a comment. */
  bool SetLine(std::string_view line);

  /*! \brief Throws: the number of the line, and what is wrong with it. */
  [[noreturn]] void Fail(const std::string& what) const;

  /*! \brief Checks the number of fields; `form` shows all of them. */
  void ExpectFields(size_t count, const std::string& form) const;

  /*! \brief Checks that field 1 is the next id of its kind. */
  void ExpectNextId(const char* what, size_t expected) const;

  /*! \brief Checks that bytes are a multiple of kTensorAlignmentBytes. */
  void ExpectAligned(int64_t offset, const char* what) const;

  /*! \brief A field as an id of something that was declared before: below `size`. */
  int32_t Id(size_t field, const char* what, size_t size) const;

  /*! \brief A field as an integer from `min` to `max`. */
  int64_t Number(size_t field, const char* what, int64_t min, int64_t max) const;

  /*! \brief A text as an integer from `min` to `max`. */
  int64_t Integer(std::string_view text, const char* what, int64_t min, int64_t max) const;

  /*! \brief A field as integers with commas between; "-" for none. */
  std::vector<int64_t> List(size_t field, const char* what, int64_t min, int64_t max) const;

  /*! \brief The parts of a text between separators, at least one. */
  static std::vector<std::string_view> Split(std::string_view text, char separator);

  static int64_t LastId(size_t size) { return static_cast<int64_t>(size) - 1; }

  static constexpr int64_t kMaxCount = std::numeric_limits<int32_t>::max();

  std::vector<std::string> fields_;
  /*! \brief Number of the line, from 1. */
  int line_;
};

}  // namespace heteroplace::exec
