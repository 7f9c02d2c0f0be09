#include "cli/npy.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <optional>

#include "cli/exit_codes.h"

namespace heteroplace::cli {

namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
/*! \brief numpy itself has 64. */
constexpr size_t kMaxDimensions = 64;

/*! \brief numpy's letters of types, and DLPack's codes. */
struct Kind {
  char letter;
  uint8_t code;
};
constexpr Kind kKinds[] = {{'i', exec::kDLInt}, {'u', exec::kDLUInt}, {'f', exec::kDLFloat}};

/*! \brief Reads the header, a literal of Python: {'descr': '<f4', 'shape': (1, 3), ...}. */
class HeaderReader {
 public:
  HeaderReader(std::string_view text, const std::string& name) : text_(text), name_(name) {}

  void Read() {
    Expect('{');
    while (!Take('}')) {
      const std::string key = Text();
      Expect(':');
      if (key == "descr") {
        type_ = Text();
      } else if (key == "fortran_order") {
        is_fortran_ = Truth();
      } else if (key == "shape") {
        shape_ = Shape();
      } else {
        Fail("has a header with the unknown field '" + key + "'");
      }
      if (!Take(',')) {
        Expect('}');
        break;
      }
    }
    Skip();
    if (at_ != text_.size()) Fail("has a header with more behind its end");
    if (!type_ || !is_fortran_ || !shape_) {
      Fail("has a header without all of 'descr', 'fortran_order' and 'shape'");
    }
  }

  const std::string& type() const { return *type_; }
  bool is_fortran() const { return *is_fortran_; }
  const std::vector<int64_t>& shape() const { return *shape_; }

  [[noreturn]] void Fail(const std::string& what) const {
    throw Stop(ExitCode::kBadArray,
               name_ + ": " + what + "; write it by numpy.save from an array of numbers");
  }

 private:
  void Skip() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool Take(char expected) {
    Skip();
    if (at_ == text_.size() || text_[at_] != expected) return false;
    ++at_;
    return true;
  }

  void Expect(char expected) {
    if (!Take(expected)) {
      Fail("has a damaged header: expected '" + std::string(1, expected) + "' at character " +
           std::to_string(at_));
    }
  }

  std::string Text() {
    Skip();
    const char mark = at_ < text_.size() ? text_[at_] : ' ';
    if (mark != '\'' && mark != '"') {
      Fail("has a header without a text at character " + std::to_string(at_) +
           ", as arrays of structs have");
    }
    const size_t end = text_.find(mark, ++at_);
    if (end == std::string_view::npos) Fail("has a damaged header: a text without end");
    const std::string text(text_.substr(at_, end - at_));
    at_ = end + 1;
    return text;
  }

  bool Truth() {
    Skip();
    for (const bool value : {false, true}) {
      const std::string_view word = value ? "True" : "False";
      if (text_.substr(at_, word.size()) == word) {
        at_ += word.size();
        return value;
      }
    }
    Fail("has a damaged header: fortran_order is neither True nor False");
  }

  std::vector<int64_t> Shape() {
    std::vector<int64_t> shape;
    Expect('(');
    while (!Take(')')) {
      Skip();
      int64_t extent = 0;
      const char* begin = text_.data() + at_;
      const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), extent);
      if (error != std::errc() || extent < 0) Fail("has a damaged header: its shape");
      at_ += static_cast<size_t>(end - begin);
      shape.push_back(extent);
      if (shape.size() > kMaxDimensions) Fail("has a shape of too many dimensions");
      if (!Take(',')) {
        Expect(')');
        break;
      }
    }
    return shape;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  std::optional<std::string> type_;
  std::optional<bool> is_fortran_;
  std::optional<std::vector<int64_t>> shape_;
};

/*! \brief DLPack's type of numpy's "<f4"; none if no executor has it. */
std::optional<exec::DLDataType> TypeOf(const std::string& descr) {
  if (descr.size() != 3 || std::string_view("<|=>").find(descr[0]) == std::string_view::npos) {
    return {};
  }
  const int bytes = descr[2] - '0';
  if (bytes != 1 && bytes != 2 && bytes != 4 && bytes != 8) return {};
  if (bytes > 1 && descr[0] == '>') return {};
  if (descr[1] == 'b')
    return bytes == 1 ? std::optional(exec::DLDataType{exec::kDLBool, 8, 1}) : std::nullopt;
  for (const Kind& kind : kKinds) {
    if (descr[1] != kind.letter || (kind.letter == 'f' && bytes == 1)) continue;
    return exec::DLDataType{kind.code, static_cast<uint8_t>(8 * bytes), 1};
  }
  return {};
}

std::string DescrOf(const exec::DLDataType& dtype) {
  const int bytes = (dtype.bits + 7) / 8;
  char letter = dtype.code == exec::kDLBool ? 'b' : 'u';  // the bits of a bfloat16
  for (const Kind& kind : kKinds) {
    if (kind.code == dtype.code) letter = kind.letter;
  }
  return (bytes == 1 ? "|" : "<") + std::string(1, letter) + std::to_string(bytes);
}

/*! \brief Bytes of an array; none where they are more than can be. */
std::optional<uint64_t> BytesOf(const exec::DLDataType& dtype, const std::vector<int64_t>& shape) {
  uint64_t bytes = dtype.bits / 8;
  for (const int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(extent), &bytes)) return {};
  }
  return bytes;
}

}  // namespace

NpyArray ReadNpy(std::string_view bytes, const std::string& name) {
  const auto fail = [&](const std::string& what) {
    throw Stop(ExitCode::kBadArray, name + ": " + what);
  };
  const auto byte = [&](size_t i) { return static_cast<size_t>(static_cast<uint8_t>(bytes[i])); };
  if (!bytes.starts_with(kMagic)) {
    fail("is no .npy file; write it by numpy.save");
  }
  const size_t version = bytes.size() > kMagic.size() ? byte(kMagic.size()) : 0;
  const size_t begin = version == 1 ? 10 : 12;
  if (bytes.size() < begin) fail("is truncated: it ends in its header");
  if (version < 1 || version > 3) {
    fail("is of format " + std::to_string(version) +
         "; expected 1, 2 or 3: write it by numpy.save");
  }
  size_t header_bytes = byte(8) | byte(9) << 8;
  if (version > 1) header_bytes |= byte(10) << 16 | byte(11) << 24;
  if (header_bytes > bytes.size() - begin) fail("is truncated: it ends in its header");
  HeaderReader header(bytes.substr(begin, header_bytes), name);
  header.Read();
  const std::optional<exec::DLDataType> dtype = TypeOf(header.type());
  if (!dtype) {
    fail("is of numpy's type '" + header.type() +
         "'; expected little-endian integers, floats or booleans: convert it by astype");
  }
  if (header.is_fortran() && header.shape().size() > 1) {
    fail("is in Fortran order; save numpy.ascontiguousarray of it");
  }
  const std::string_view data = bytes.substr(begin + header_bytes);
  const std::optional<uint64_t> expected = BytesOf(*dtype, header.shape());
  if (!expected || *expected != data.size()) {
    fail("is " + std::string(!expected || *expected > data.size() ? "truncated" : "damaged") +
         ": " + exec::DescribeTensor(*dtype, header.shape()) + " takes " +
         (expected ? std::to_string(*expected) : "more than 2^64") + " bytes, and it has " +
         std::to_string(data.size()) + "; write it again");
  }
  return {*dtype, header.shape(), data};
}

std::string WriteNpy(const exec::DLDataType& dtype, const std::vector<int64_t>& shape,
                     std::string_view data) {
  std::string header = "{'descr': '" + DescrOf(dtype) + "', 'fortran_order': False, 'shape': (";
  for (size_t i = 0; i < shape.size(); ++i) {
    header += (i == 0 ? "" : " ") + std::to_string(shape[i]);
    if (i + 1 < shape.size() || shape.size() == 1) header += ',';
  }
  header += "), }";
  constexpr size_t kPrefixBytes = 10;
  constexpr size_t kAlignment = 64;
  const size_t end = kPrefixBytes + header.size() + 1;
  header += std::string((kAlignment - end % kAlignment) % kAlignment, ' ') + "\n";
  std::string bytes(kMagic);
  bytes +=
      {'\1', '\0', static_cast<char>(header.size() & 255), static_cast<char>(header.size() >> 8)};
  bytes += header;
  bytes += data;
  return bytes;
}

}  // namespace heteroplace::cli
