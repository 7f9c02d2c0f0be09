// A convolution of images that cuDNN computes, as the name of its kernel says it.
//
// The data are [batch, channels, height, width], the filters [filters, channels / groups, rows,
// columns], both compact and float32; as everywhere in networks it is a cross-correlation:
//
//   result = activation(data * filters + bias + sum)
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parts/kernels/nvidia_kernel.h"

namespace heteroplace::exec {

/*! \brief The bias is [filters], one for each channel of the result; the sum is as the result. */
struct Convolution : NvidiaKernel {
  int64_t batch = 1;
  int64_t channels = 1;
  /*! \brief Of the data; rows, columns, as of all pairs. */
  std::array<int64_t, 2> size = {1, 1};
  int64_t filters = 1;
  std::array<int64_t, 2> window = {1, 1};
  std::array<int64_t, 2> strides = {1, 1};
  /*! \brief Zeros before the first and behind the last row and column. */
  std::array<int64_t, 2> padding = {0, 0};
  std::array<int64_t, 2> dilation = {1, 1};
  int64_t groups = 1;
  int32_t data = 0;
  int32_t filter = 1;
  /*! \brief A number of cudnnConvolutionFwdAlgo_t; what stands behind it differs by version. */
  int32_t algorithm = 0;

  /*! \brief Extent of the result, 1 or more; `axis` is 0 for rows, 1 for columns. */
  int64_t ResultSize(size_t axis) const;

  std::string Kind() const override { return "convolution of cuDNN"; }
  std::string Describe() const override;
  std::string ToText() const override;
  void CheckCall(const std::vector<LibraryArgument>& arguments) const override;
  std::unique_ptr<LoadedKernels> MakeLoaded(const CudaRuntime& cuda, int device) const override;
};

/*! \brief How the names of such kernels begin. */
inline constexpr std::string_view kConvolutionPrefix = "cudnn:";

/*! \brief Reads a name. \throws Error kArtifact, which says what is wrong with it. */
Convolution ParseConvolution(std::string_view symbol);

}  // namespace heteroplace::exec
