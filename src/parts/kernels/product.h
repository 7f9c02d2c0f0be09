// A product of matrices that cuBLASLt computes, as the name of its kernel says it.
//
// The matrices are row major and compact:
//
//   result[b] = activation(left[b] right[b] + bias + sum[b])
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "parts/kernels/nvidia_kernel.h"

namespace heteroplace::exec {

/*! \brief One of cuBLASLt's ways to compute a product; valid for one version of the library. */
using ProductAlgorithm = std::array<uint64_t, 8>;

/*! \brief The bias is [columns], the sum as the result. */
struct Product : NvidiaKernel {
  /*! \brief Extents, 1 or more: the result is [batch, rows, columns]. */
  int64_t batch = 1;
  int64_t rows = 1;
  int64_t columns = 1;
  int64_t depth = 1;
  /*! \brief Whether the left is [depth, rows] for [rows, depth], the right [columns, depth]. */
  bool is_left_transposed = false;
  bool is_right_transposed = false;
  /*! \brief Whether there is one for each of the batch; else all have the same. */
  bool is_left_batched = false;
  bool is_right_batched = false;
  int32_t left = 0;
  int32_t right = 1;
  ProductAlgorithm algorithm{};

  std::string Kind() const override { return "product of cuBLASLt"; }
  std::string Describe() const override;
  std::string ToText() const override;
  void CheckCall(const std::vector<LibraryArgument>& arguments) const override;
  std::unique_ptr<LoadedKernels> MakeLoaded(const CudaRuntime& cuda, int device) const override;
};

/*! \brief How the names of such kernels begin. */
inline constexpr std::string_view kProductPrefix = "cublaslt:";

/*! \brief Reads a name. \throws Error kArtifact, which says what is wrong with it. */
Product ParseProduct(std::string_view symbol);

}  // namespace heteroplace::exec
