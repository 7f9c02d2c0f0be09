#include "exec/devices/product.h"

#include <algorithm>
#include <charconv>

#include "support/error.h"

namespace heteroplace::exec {

namespace {

constexpr std::string_view kProductPrefix = "cublaslt:";
constexpr std::string_view kProductForm =
    "cublaslt:<version>:<precision>:<batch>x<rows>x<columns>x<depth>:<layouts>:<activation>:"
    "<left>,<right>,<bias>,<sum>:<workspace bytes>:<algorithm>";
constexpr std::array<std::string_view, 3> kPrecisionNames = {"float32", "tf32", "half"};
constexpr std::array<std::string_view, 3> kActivationNames = {"none", "relu", "gelu"};

/*! \brief Extents are ints for the library, and no matrix has more bytes than a program knows. */
constexpr int64_t kMaxExtent = 0x7fffffff;
constexpr int64_t kMaxMatrixBytes = int64_t{1} << 60;
constexpr int64_t kFloatBytes = 4;
constexpr int64_t kMaxOperand = 63;
constexpr size_t kWordDigits = 16;

[[noreturn]] void FailProduct(const std::string& what) {
  throw Error(ErrorKind::kArtifact, what + "; expected " + std::string(kProductForm) +
                                        ": build the program and its kernels together");
}

std::vector<std::string_view> PartsOf(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

template <typename Number>
Number ReadNumber(std::string_view text, const char* what, Number min, Number max, int base = 10) {
  Number value{};
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (fault != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    FailProduct("a product has '" + std::string(text) + "' as " + what);
  }
  return value;
}

template <typename Choice, size_t kCount>
Choice ReadChoice(std::string_view text, const char* what,
                  const std::array<std::string_view, kCount>& names) {
  const auto* found = std::find(names.begin(), names.end(), text);
  if (found == names.end())
    FailProduct("a product has the " + std::string(what) + " '" + std::string(text) + "'");
  return static_cast<Choice>(found - names.begin());
}

bool ReadFlag(char letter, char no, char yes) {
  if (letter != no && letter != yes) {
    FailProduct(std::string("a product has the layout '") + letter + "'");
  }
  return letter == yes;
}

int32_t ReadOperand(std::string_view text, bool is_optional) {
  if (is_optional && text == "-") return kNoOperand;
  return static_cast<int32_t>(ReadNumber<int64_t>(text, "an operand", 0, kMaxOperand));
}

void ReadExtents(std::string_view text, Product* product) {
  const std::vector<std::string_view> extents = PartsOf(text, 'x');
  if (extents.size() != 4) FailProduct("a product has the extents '" + std::string(text) + "'");
  const auto read = [&](size_t at) {
    return ReadNumber<int64_t>(extents[at], "an extent", 1, kMaxExtent);
  };
  product->batch = read(0);
  product->rows = read(1);
  product->columns = read(2);
  product->depth = read(3);
  const auto expect_fits = [&](int64_t rows, int64_t columns) {
    const int64_t most = kMaxMatrixBytes / kFloatBytes / product->batch;
    if (rows > most / columns) FailProduct("a product is too large");
  };
  expect_fits(product->rows, product->depth);
  expect_fits(product->depth, product->columns);
  expect_fits(product->rows, product->columns);
}

std::string HexOf(uint64_t word) {
  std::string text(kWordDigits, '0');
  for (size_t d = 0; d < kWordDigits; ++d) {
    text[d] = "0123456789abcdef"[word >> (4 * (kWordDigits - 1 - d)) & 0xf];
  }
  return text;
}

std::string OperandText(int32_t operand) {
  return operand == kNoOperand ? "-" : std::to_string(operand);
}

std::string MatrixText(bool is_batched, int64_t batch, int64_t rows, int64_t columns) {
  return "[" + (is_batched ? std::to_string(batch) + ", " : "") + std::to_string(rows) + ", " +
         std::to_string(columns) + "]";
}

}  // namespace

std::string CublasLtName(int64_t version) {
  return "cuBLASLt " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

std::string Product::Describe() const {
  return std::string(kPrecisionNames[static_cast<size_t>(precision)]) + " product of " +
         MatrixText(is_left_batched, batch, rows, depth) + " and " +
         MatrixText(is_right_batched, batch, depth, columns);
}

std::string Product::ToText() const {
  std::string text(kProductPrefix);
  text += std::to_string(version) + ":";
  text += std::string(kPrecisionNames[static_cast<size_t>(precision)]) + ":";
  text += std::to_string(batch) + "x" + std::to_string(rows) + "x" + std::to_string(columns) + "x" +
          std::to_string(depth) + ":";
  text += is_left_transposed ? 't' : 'n';
  text += is_right_transposed ? 't' : 'n';
  text += is_left_batched ? 'b' : 's';
  text += is_right_batched ? 'b' : 's';
  text += ":" + std::string(kActivationNames[static_cast<size_t>(activation)]) + ":";
  text += OperandText(left) + "," + OperandText(right) + "," + OperandText(bias) + "," +
          OperandText(sum) + ":" + std::to_string(workspace_bytes) + ":";
  for (uint64_t word : algorithm) text += HexOf(word);
  return text;
}

bool IsProduct(std::string_view symbol) {
  return symbol.substr(0, kProductPrefix.size()) == kProductPrefix;
}

Product ParseProduct(std::string_view symbol) {
  const std::vector<std::string_view> fields = PartsOf(symbol, ':');
  if (!IsProduct(symbol) || fields.size() != 9) {
    FailProduct("'" + std::string(symbol) + "' is no product");
  }
  Product product;
  product.version = ReadNumber<int64_t>(fields[1], "the version", 0, kMaxExtent);
  product.precision = ReadChoice<ProductPrecision>(fields[2], "precision", kPrecisionNames);
  ReadExtents(fields[3], &product);
  if (fields[4].size() != 4)
    FailProduct("a product has '" + std::string(fields[4]) + "' as layouts");
  product.is_left_transposed = ReadFlag(fields[4][0], 'n', 't');
  product.is_right_transposed = ReadFlag(fields[4][1], 'n', 't');
  product.is_left_batched = ReadFlag(fields[4][2], 's', 'b');
  product.is_right_batched = ReadFlag(fields[4][3], 's', 'b');
  product.activation = ReadChoice<ProductActivation>(fields[5], "activation", kActivationNames);
  const std::vector<std::string_view> operands = PartsOf(fields[6], ',');
  if (operands.size() != 4)
    FailProduct("a product has the operands '" + std::string(fields[6]) + "'");
  product.left = ReadOperand(operands[0], /*is_optional=*/false);
  product.right = ReadOperand(operands[1], /*is_optional=*/false);
  product.bias = ReadOperand(operands[2], /*is_optional=*/true);
  product.sum = ReadOperand(operands[3], /*is_optional=*/true);
  product.workspace_bytes =
      ReadNumber<int64_t>(fields[7], "its scratch memory", 0, kMaxMatrixBytes);
  if (fields[8].size() != product.algorithm.size() * kWordDigits) {
    FailProduct("the algorithm of a product has " + std::to_string(fields[8].size()) + " digits");
  }
  for (size_t w = 0; w < product.algorithm.size(); ++w) {
    product.algorithm[w] = ReadNumber<uint64_t>(fields[8].substr(w * kWordDigits, kWordDigits),
                                                "a part of the algorithm", 0, UINT64_MAX, 16);
  }
  return product;
}

void CheckProductCall(const Product& product, const std::vector<ProductArgument>& arguments) {
  const int64_t batch = product.batch;
  const auto expect = [&](int32_t operand, const char* what, int64_t count) {
    if (operand == kNoOperand) return;
    const size_t last = arguments.size() - 1;
    const bool is_there =
        static_cast<size_t>(operand) < arguments.size() &&
        (operand == static_cast<int32_t>(last)) == (std::string_view(what) == "result");
    if (!is_there) {
      throw Error(ErrorKind::kArtifact, "the " + product.Describe() + " has argument " +
                                            std::to_string(operand) + " as its " + what + ", of " +
                                            std::to_string(arguments.size()));
    }
    const ProductArgument& argument = arguments[static_cast<size_t>(operand)];
    const bool is_float = argument.dtype.code == kDLFloat && argument.dtype.bits == 32;
    if (is_float && argument.bytes == count * kFloatBytes) return;
    throw Error(ErrorKind::kArtifact,
                "the " + std::string(what) + " of the " + product.Describe() + " is " +
                    TypeName(argument.dtype) + " of " + std::to_string(argument.bytes) +
                    " bytes, expected float32 of " + std::to_string(count * kFloatBytes));
  };
  if (arguments.size() < 2) {
    throw Error(ErrorKind::kArtifact, "the " + product.Describe() + " is called with " +
                                          std::to_string(arguments.size()) +
                                          " tensors, expected 2 or more");
  }
  expect(product.left, "left",
         (product.is_left_batched ? batch : 1) * product.rows * product.depth);
  expect(product.right, "right",
         (product.is_right_batched ? batch : 1) * product.depth * product.columns);
  expect(product.bias, "bias", product.columns);
  expect(product.sum, "sum", batch * product.rows * product.columns);
  expect(static_cast<int32_t>(arguments.size()) - 1, "result",
         batch * product.rows * product.columns);
}

}  // namespace heteroplace::exec
