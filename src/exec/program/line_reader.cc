#include "exec/program/line_reader.h"

#include <algorithm>
#include <charconv>

#include "exec/program/program.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

/*!
 * \brief Reads a field in double quotes, which may hold blanks, \" and \\.
 * \return The position after the closing quote, or npos if there is none.
 */
size_t ReadQuoted(std::string_view line, size_t begin, std::string* field) {
  for (size_t i = begin + 1; i < line.size(); ++i) {
    if (line[i] == '"') return i + 1;
    if (line[i] == '\\' && i + 1 < line.size()) ++i;
    *field += line[i];
  }
  return std::string_view::npos;
}

}  // namespace

bool LineReader::SetLine(std::string_view line) {
  ++line_;
  fields_.clear();
  size_t i = 0;
  while (i < line.size()) {
    if (IsBlank(line[i])) {
      ++i;
      continue;
    }
    std::string& field = fields_.emplace_back();
    if (line[i] == '"') {
      i = ReadQuoted(line, i, &field);
      if (i == std::string_view::npos) Fail("a quoted name has no closing quote");
    } else {
      while (i < line.size() && !IsBlank(line[i])) field += line[i++];
    }
  }
  return !fields_.empty() && !fields_[0].starts_with('#');
}

void LineReader::Fail(const std::string& what) const {
  throw Error(ErrorKind::kArtifact, "program line " + std::to_string(line_) + ": " + what);
}

void LineReader::ExpectFields(size_t count, const std::string& form) const {
  if (fields_.size() != count) {
    Fail("expected '" + form + "' (" + std::to_string(count) + " fields), got " +
         std::to_string(fields_.size()) + " fields");
  }
}

void LineReader::ExpectNextId(const char* what, size_t expected) const {
  if (fields_[1] != std::to_string(expected)) {
    Fail(std::string("expected ") + what + " " + std::to_string(expected) + ", got '" + fields_[1] +
         "'; ids are dense and in order");
  }
}

void LineReader::ExpectAligned(int64_t offset, const char* what) const {
  if (offset % kTensorAlignmentBytes != 0) {
    Fail(std::string(what) + " " + std::to_string(offset) + " is no multiple of " +
         std::to_string(kTensorAlignmentBytes));
  }
}

int32_t LineReader::Id(size_t field, const char* what, size_t size) const {
  return static_cast<int32_t>(Number(field, what, 0, LastId(size)));
}

int64_t LineReader::Number(size_t field, const char* what, int64_t min, int64_t max) const {
  return Integer(fields_[field], what, min, max);
}

int64_t LineReader::Integer(std::string_view text, const char* what, int64_t min,
                            int64_t max) const {
  int64_t value = 0;
  auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || code != std::errc() || end != text.data() + text.size()) {
    Fail(std::string(what) + ": expected an integer, got '" + std::string(text) + "'");
  }
  if (value < min || value > max) {
    Fail(std::string(what) + ": got " + std::string(text) +
         (max < min ? ", and none is declared before this line"
                    : ", expected " + std::to_string(min) + " to " + std::to_string(max)));
  }
  return value;
}

std::vector<int64_t> LineReader::List(size_t field, const char* what, int64_t min,
                                      int64_t max) const {
  std::vector<int64_t> values;
  if (fields_[field] == "-") return values;
  for (std::string_view item : Split(fields_[field], ',')) {
    values.push_back(Integer(item, what, min, max));
  }
  return values;
}

std::vector<std::string_view> LineReader::Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

}  // namespace heteroplace::exec
