#include "parts/kernels/convolution.h"

#include "parts/kernels/nvidia_kernel_name.h"

namespace heteroplace::exec {

namespace {

constexpr std::string_view kConvolutionForm =
    "cudnn:<version>:<precision>:<batch>x<channels>x<height>x<width>x<filters>x<window rows>x"
    "<window columns>:<stride rows>x<stride columns>x<padding rows>x<padding columns>x"
    "<dilation rows>x<dilation columns>x<groups>:<activation>:<data>,<filters>,<bias>,<sum>:"
    "<workspace bytes>:<algorithm>";
constexpr std::array<std::string_view, 2> kConvolutionActivations = {"none", "relu"};
constexpr int64_t kMaxAlgorithm = 7;

/*! \brief A product of numbers, but no more than `limit` and one. */
int64_t CappedProduct(std::initializer_list<int64_t> numbers, int64_t limit) {
  int64_t product = 1;
  for (int64_t number : numbers) {
    if (number > limit / product) return limit + 1;
    product *= number;
  }
  return product;
}

void CheckConvolution(const NvidiaKernelName& name, const Convolution& all) {
  if (all.channels % all.groups != 0 || all.filters % all.groups != 0) {
    name.Fail("a convolution has " + std::to_string(all.channels) + " channels and " +
              std::to_string(all.filters) + " filters in " + std::to_string(all.groups) +
              " groups");
  }
  for (size_t axis : {0, 1}) {
    if (all.strides[axis] < 1 || all.dilation[axis] < 1) {
      name.Fail("a convolution has a stride or a dilation of 0");
    }
    // The sums fit: each number is less than 2^31.
    const int64_t reach = (all.window[axis] - 1) * all.dilation[axis] + 1;
    if (reach > all.size[axis] + 2 * all.padding[axis]) {
      name.Fail("the window of a convolution is larger than its padded data");
    }
  }
  constexpr int64_t kMost = kMaxOperandBytes / kFloatBytes;
  const bool fits =
      CappedProduct({all.batch, all.channels, all.size[0], all.size[1]}, kMost) <= kMost &&
      CappedProduct({all.filters, all.channels / all.groups, all.window[0], all.window[1]},
                    kMost) <= kMost &&
      CappedProduct({all.batch, all.filters, all.ResultSize(0), all.ResultSize(1)}, kMost) <= kMost;
  if (!fits) name.Fail("a convolution is too large");
}

}  // namespace

int64_t Convolution::ResultSize(size_t axis) const {
  const int64_t reach = (window[axis] - 1) * dilation[axis] + 1;
  return (size[axis] + 2 * padding[axis] - reach) / strides[axis] + 1;
}

std::string Convolution::Describe() const {
  return std::string(PrecisionName()) + " convolution of " +
         ShapeText({batch, channels, size[0], size[1]}) + " by " +
         ShapeText({filters, channels / groups, window[0], window[1]});
}

std::string Convolution::ToText() const {
  return HeadText(kConvolutionPrefix) +
         ByText({batch, channels, size[0], size[1], filters, window[0], window[1]}) + ":" +
         ByText(
             {strides[0], strides[1], padding[0], padding[1], dilation[0], dilation[1], groups}) +
         TailText(data, filter) + std::to_string(algorithm);
}

Convolution ParseConvolution(std::string_view symbol) {
  const NvidiaKernelName name(symbol, kConvolutionPrefix, "convolution", kConvolutionForm);
  Convolution all;
  name.ReadShared(&all, &all.data, &all.filter);
  const std::vector<int64_t> extents = name.Numbers(3, 7, "extents", "an extent", 1);
  all.batch = extents[0];
  all.channels = extents[1];
  all.size = {extents[2], extents[3]};
  all.filters = extents[4];
  all.window = {extents[5], extents[6]};
  const std::vector<int64_t> steps = name.Numbers(4, 7, "steps", "a step", 0);
  all.strides = {steps[0], steps[1]};
  all.padding = {steps[2], steps[3]};
  all.dilation = {steps[4], steps[5]};
  all.groups = steps[6];
  if (all.groups < 1) name.Fail("a convolution has 0 groups");
  CheckConvolution(name, all);
  all.activation = name.ReadChoice<KernelActivation>(5, "activation", kConvolutionActivations);
  all.algorithm = static_cast<int32_t>(
      name.ReadNumber<int64_t>(name.Field(8), "its algorithm", 0, kMaxAlgorithm));
  return all;
}

void Convolution::CheckCall(const std::vector<LibraryArgument>& arguments) const {
  CheckCount(arguments);
  CheckOperand(arguments, data, "data", batch * channels * size[0] * size[1]);
  CheckOperand(arguments, filter, "filters", filters * (channels / groups) * window[0] * window[1]);
  CheckOperand(arguments, bias, "bias", filters);
  const int64_t whole = batch * filters * ResultSize(0) * ResultSize(1);
  CheckOperand(arguments, sum, "sum", whole);
  CheckOperand(arguments, static_cast<int32_t>(arguments.size()) - 1, "result", whole);
}

}  // namespace heteroplace::exec
