#include "parts/kernels/product.h"

#include "parts/kernels/nvidia_kernel_name.h"

namespace heteroplace::exec {

namespace {

constexpr std::string_view kProductForm =
    "cublaslt:<version>:<precision>:<batch>x<rows>x<columns>x<depth>:<layouts>:<activation>:"
    "<left>,<right>,<bias>,<sum>:<workspace bytes>:<algorithm>";
constexpr size_t kWordDigits = 16;

bool ReadFlag(const NvidiaKernelName& name, char letter, char no, char yes) {
  if (letter != no && letter != yes) {
    name.Fail(std::string("a product has the layout '") + letter + "'");
  }
  return letter == yes;
}

void ReadExtents(const NvidiaKernelName& name, Product* product) {
  const std::vector<int64_t> extents = name.Numbers(3, 4, "extents", "an extent", 1);
  product->batch = extents[0];
  product->rows = extents[1];
  product->columns = extents[2];
  product->depth = extents[3];
  const auto expect_fits = [&](int64_t rows, int64_t columns) {
    const int64_t most = kMaxOperandBytes / kFloatBytes / product->batch;
    if (rows > most / columns) name.Fail("a product is too large");
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

std::string MatrixText(bool is_batched, int64_t batch, int64_t rows, int64_t columns) {
  if (!is_batched) return ShapeText({rows, columns});
  return ShapeText({batch, rows, columns});
}

}  // namespace

std::string Product::Describe() const {
  return std::string(PrecisionName()) + " product of " +
         MatrixText(is_left_batched, batch, rows, depth) + " and " +
         MatrixText(is_right_batched, batch, depth, columns);
}

std::string Product::ToText() const {
  std::string text = HeadText(kProductPrefix) + ByText({batch, rows, columns, depth}) + ":";
  text += is_left_transposed ? 't' : 'n';
  text += is_right_transposed ? 't' : 'n';
  text += is_left_batched ? 'b' : 's';
  text += is_right_batched ? 'b' : 's';
  text += TailText(left, right);
  for (uint64_t word : algorithm) text += HexOf(word);
  return text;
}

Product ParseProduct(std::string_view symbol) {
  const NvidiaKernelName name(symbol, kProductPrefix, "product", kProductForm);
  Product product;
  name.ReadShared(&product, &product.left, &product.right);
  ReadExtents(name, &product);
  const std::string_view layouts = name.Field(4), digits = name.Field(8);
  if (layouts.size() != 4) name.Fail("a product has '" + std::string(layouts) + "' as layouts");
  product.is_left_transposed = ReadFlag(name, layouts[0], 'n', 't');
  product.is_right_transposed = ReadFlag(name, layouts[1], 'n', 't');
  product.is_left_batched = ReadFlag(name, layouts[2], 's', 'b');
  product.is_right_batched = ReadFlag(name, layouts[3], 's', 'b');
  product.activation = name.ReadChoice<KernelActivation>(5, "activation", kActivationNames);
  if (digits.size() != product.algorithm.size() * kWordDigits) {
    name.Fail("the algorithm of a product has " + std::to_string(digits.size()) + " digits");
  }
  for (size_t w = 0; w < product.algorithm.size(); ++w) {
    product.algorithm[w] = name.ReadNumber<uint64_t>(digits.substr(w * kWordDigits, kWordDigits),
                                                     "a part of the algorithm", 0, UINT64_MAX, 16);
  }
  return product;
}

void Product::CheckCall(const std::vector<LibraryArgument>& arguments) const {
  CheckCount(arguments);
  CheckOperand(arguments, left, "left", (is_left_batched ? batch : 1) * rows * depth);
  CheckOperand(arguments, right, "right", (is_right_batched ? batch : 1) * depth * columns);
  CheckOperand(arguments, bias, "bias", columns);
  const int64_t whole = batch * rows * columns;
  CheckOperand(arguments, sum, "sum", whole);
  CheckOperand(arguments, static_cast<int32_t>(arguments.size()) - 1, "result", whole);
}

}  // namespace heteroplace::exec
