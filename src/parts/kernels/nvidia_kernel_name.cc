#include "parts/kernels/nvidia_kernel_name.h"

#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr size_t kNumFields = 9;
constexpr int64_t kMaxOperand = 63;

std::vector<std::string_view> PartsOf(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string Joined(const std::vector<int64_t>& numbers, const char* separator) {
  std::string text;
  for (int64_t number : numbers) text += (text.empty() ? "" : separator) + std::to_string(number);
  return text;
}

}  // namespace

std::string ByText(const std::vector<int64_t>& numbers) { return Joined(numbers, "x"); }

std::string ShapeText(const std::vector<int64_t>& shape) { return "[" + Joined(shape, ", ") + "]"; }

NvidiaKernelName::NvidiaKernelName(std::string_view symbol, std::string_view prefix,
                                   const char* what, std::string_view form)
    : what_(what), form_(form), fields_(PartsOf(symbol, ':')) {
  if (!symbol.starts_with(prefix) || fields_.size() != kNumFields) {
    Fail("'" + std::string(symbol) + "' is no " + what_);
  }
}

void NvidiaKernelName::Fail(const std::string& why) const {
  throw Error(ErrorKind::kArtifact, why + "; expected " + std::string(form_) +
                                        ": build the program and its kernels together");
}

void NvidiaKernelName::ReadShared(NvidiaKernel* kernel, int32_t* first, int32_t* second) const {
  kernel->version = ReadNumber<int64_t>(fields_[1], "the version", 0, kMaxExtent);
  kernel->precision = ReadChoice<LibraryPrecision>(2, "precision", kPrecisionNames);
  const std::vector<std::string_view> operands = PartsOf(fields_[6], ',');
  if (operands.size() != 4) {
    Fail("a " + what_ + " has the operands '" + std::string(fields_[6]) + "'");
  }
  *first = ReadOperand(operands[0], /*is_optional=*/false);
  *second = ReadOperand(operands[1], /*is_optional=*/false);
  kernel->bias = ReadOperand(operands[2], /*is_optional=*/true);
  kernel->sum = ReadOperand(operands[3], /*is_optional=*/true);
  kernel->workspace_bytes =
      ReadNumber<int64_t>(fields_[7], "its scratch memory", 0, kMaxOperandBytes);
}

std::vector<int64_t> NvidiaKernelName::Numbers(size_t field, size_t count, const char* whole,
                                               const char* one, int64_t min) const {
  const std::vector<std::string_view> parts = PartsOf(fields_[field], 'x');
  if (parts.size() != count) {
    Fail("a " + what_ + " has the " + whole + " '" + std::string(fields_[field]) + "'");
  }
  std::vector<int64_t> numbers;
  numbers.reserve(parts.size());
  for (std::string_view part : parts) {
    numbers.push_back(ReadNumber<int64_t>(part, one, min, kMaxExtent));
  }
  return numbers;
}

int32_t NvidiaKernelName::ReadOperand(std::string_view text, bool is_optional) const {
  if (is_optional && text == "-") return kNoOperand;
  return static_cast<int32_t>(ReadNumber<int64_t>(text, "an operand", 0, kMaxOperand));
}

}  // namespace heteroplace::exec
