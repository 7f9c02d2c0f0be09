// A product of matrices that cuBLASLt computes, as the name of its kernel says it.
//
// Such a kernel has no code: its name is all that there is, so whoever has the program has it. The
// matrices are row major and compact:
//
//   result[b] = activation(left[b] right[b] + bias + sum[b])
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/tvm_abi.h"

namespace heteroplace::exec {

/*! \brief In what the numbers are multiplied; all are float32, and so are the sums. */
enum class ProductPrecision : uint8_t { kFloat32, kTf32, kHalf };

/*! \brief What is done to each number at the end. */
enum class ProductActivation : uint8_t { kNone, kRelu, kGelu };

/*! \brief One of cuBLASLt's ways to compute a product; valid for one version of the library. */
using ProductAlgorithm = std::array<uint64_t, 8>;

/*! \brief An argument that a product does not have. */
inline constexpr int32_t kNoOperand = -1;

struct Product {
  /*! \brief What cublasLtGetVersion says of the library that the algorithm is of; 0: none is
   * chosen, and the product cannot be run. */
  int64_t version = 0;
  ProductPrecision precision = ProductPrecision::kFloat32;
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
  ProductActivation activation = ProductActivation::kNone;
  /*! \brief Positions of the arguments of a call; the result is the last one. The bias is
   * [columns], the sum as the result. */
  int32_t left = 0;
  int32_t right = 1;
  int32_t bias = kNoOperand;
  int32_t sum = kNoOperand;
  /*! \brief Scratch memory that the algorithm needs. */
  int64_t workspace_bytes = 0;
  ProductAlgorithm algorithm{};

  /*! \brief "float32 product of [8, 64] and [64, 32]", for messages. */
  std::string Describe() const;
  /*! \brief Its name; ParseProduct's inverse. */
  std::string ToText() const;
};

/*! \brief Whether a kernel's name is that of a product. */
bool IsProduct(std::string_view symbol);

/*! \brief Reads a name. \throws Error kArtifact, which says what is wrong with it. */
Product ParseProduct(std::string_view symbol);

/*! \brief What a product needs to know of an argument. */
struct ProductArgument {
  DLDataType dtype;
  int64_t bytes;
};

/*!
 * \brief Checks what a product is called with: the bytes that it reads and writes are there.
 * \throws Error kArtifact.
 */
void CheckProductCall(const Product& product, const std::vector<ProductArgument>& arguments);

/*! \brief "cuBLASLt 12.9.3" for 120903. */
std::string CublasLtName(int64_t version);

}  // namespace heteroplace::exec
