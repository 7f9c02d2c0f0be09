// Reads the name of a library's kernel field by field.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "parts/kernels/nvidia_kernel.h"

namespace heteroplace::exec {

inline constexpr std::array<std::string_view, 3> kPrecisionNames = {"float32", "tf32", "half"};
inline constexpr std::array<std::string_view, 3> kActivationNames = {"none", "relu", "gelu"};

/*! \brief Extents are ints for the libraries, and no tensor has more bytes than a program knows. */
inline constexpr int64_t kMaxExtent = 0x7fffffff;
inline constexpr int64_t kMaxOperandBytes = int64_t{1} << 60;
inline constexpr int64_t kFloatBytes = 4;

/*! \brief "1x2x3", as names have extents. */
std::string ByText(const std::vector<int64_t>& numbers);
/*! \brief "[1, 2, 3]", for messages. */
std::string ShapeText(const std::vector<int64_t>& shape);

class NvidiaKernelName {
 public:
  /*!
   * \param what "product", for messages.
   * \param form of such names.
   * \throws Error kArtifact unless the name begins with the prefix and has all fields.
   */
  NvidiaKernelName(std::string_view symbol, std::string_view prefix, const char* what,
                   std::string_view form);

  /*! \brief A field; 0 is the library. */
  std::string_view Field(size_t at) const { return fields_[at]; }

  /*! \brief Sets version, precision, bias, sum and scratch memory; gives the others' operands. */
  void ReadShared(NvidiaKernel* kernel, int32_t* first, int32_t* second) const;

  /*! \brief A field of so many numbers parted by x. */
  std::vector<int64_t> Numbers(size_t field, size_t count, const char* whole, const char* one,
                               int64_t min) const;

  template <typename Number>
  Number ReadNumber(std::string_view text, const char* what, Number min, Number max,
                    int base = 10) const {
    Number value{};
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value, base);
    if (fault != std::errc() || end != text.data() + text.size() || value < min || value > max) {
      Fail("a " + what_ + " has '" + std::string(text) + "' as " + what);
    }
    return value;
  }

  template <typename Choice, size_t kCount>
  Choice ReadChoice(size_t field, const char* what,
                    const std::array<std::string_view, kCount>& names) const {
    const auto* found = std::find(names.begin(), names.end(), fields_[field]);
    if (found == names.end()) {
      Fail("a " + what_ + " has the " + what + " '" + std::string(fields_[field]) + "'");
    }
    return static_cast<Choice>(found - names.begin());
  }

  /*! \throws Error kArtifact, always. */
  [[noreturn]] void Fail(const std::string& why) const;

 private:
  int32_t ReadOperand(std::string_view text, bool is_optional) const;

  std::string what_;
  std::string_view form_;
  std::vector<std::string_view> fields_;
};

}  // namespace heteroplace::exec
