// A kernel that a library of NVIDIA's computes, as its name says it.
//
// Such a kernel has no code: its name is all that there is, so whoever has the program has it. The
// fields of a name, parted by colons, are the library, its version, the precision, two of the
// kernel's own, the activation, the operands, the scratch memory and the algorithm.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "exec/devices/library_kernel.h"

namespace heteroplace::exec {

/*! \brief In what numbers are multiplied; all are float32, and so are the sums. */
enum class LibraryPrecision : uint8_t { kFloat32, kTf32, kHalf };

/*! \brief What is done to each number at the end. */
enum class KernelActivation : uint8_t { kNone, kRelu, kGelu };

/*! \brief An argument that a kernel does not have. */
inline constexpr int32_t kNoOperand = -1;

struct NvidiaKernel : LibraryKernel {
  /*! \brief What the library says of itself when the algorithm is chosen, 120903 for 12.9.3; 0:
   * none is chosen, and the kernel cannot be run. */
  int64_t version = 0;
  LibraryPrecision precision = LibraryPrecision::kFloat32;
  KernelActivation activation = KernelActivation::kNone;
  /*! \brief Positions of the arguments of a call; the result is the last one. */
  int32_t bias = kNoOperand;
  int32_t sum = kNoOperand;
  /*! \brief Scratch memory that the algorithm needs. */
  int64_t workspace_bytes = 0;

  /*! \brief Its name, which the reader of its library takes. */
  virtual std::string ToText() const = 0;

 protected:
  /*! \brief The first fields of a name: library, version, precision. */
  std::string HeadText(std::string_view prefix) const;
  /*! \brief The last fields but the algorithm; `first` and `second` are multiplied. */
  std::string TailText(int32_t first, int32_t second) const;
  const char* PrecisionName() const;
  /*! \brief Checks that there are two arguments and more. */
  void CheckCount(const std::vector<LibraryArgument>& arguments) const;
  /*! \brief Checks an operand's place and bytes, of so many float32; `what` is "result", ... */
  void CheckOperand(const std::vector<LibraryArgument>& arguments, int32_t operand,
                    std::string_view what, int64_t count) const;
};

/*! \brief "12.9.3" for 120903. */
std::string LibraryVersionText(int64_t version);

}  // namespace heteroplace::exec
