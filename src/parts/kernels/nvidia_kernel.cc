#include "parts/kernels/nvidia_kernel.h"

#include "parts/kernels/nvidia_kernel_name.h"
#include "support/error.h"

namespace heteroplace::exec {

namespace {

std::string OperandText(int32_t operand) {
  return operand == kNoOperand ? "-" : std::to_string(operand);
}

}  // namespace

std::string LibraryVersionText(int64_t version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

const char* NvidiaKernel::PrecisionName() const {
  return kPrecisionNames[static_cast<size_t>(precision)].data();
}

std::string NvidiaKernel::HeadText(std::string_view prefix) const {
  return std::string(prefix) + std::to_string(version) + ":" + PrecisionName() + ":";
}

std::string NvidiaKernel::TailText(int32_t first, int32_t second) const {
  return ":" + std::string(kActivationNames[static_cast<size_t>(activation)]) + ":" +
         OperandText(first) + "," + OperandText(second) + "," + OperandText(bias) + "," +
         OperandText(sum) + ":" + std::to_string(workspace_bytes) + ":";
}

void NvidiaKernel::CheckCount(const std::vector<LibraryArgument>& arguments) const {
  if (arguments.size() >= 2) return;
  throw Error(ErrorKind::kArtifact, "the " + Describe() + " is called with " +
                                        std::to_string(arguments.size()) +
                                        " tensors, expected 2 or more");
}

void NvidiaKernel::CheckOperand(const std::vector<LibraryArgument>& arguments, int32_t operand,
                                std::string_view what, int64_t count) const {
  if (operand == kNoOperand) return;
  const size_t last = arguments.size() - 1;
  const bool is_there = static_cast<size_t>(operand) < arguments.size() &&
                        (operand == static_cast<int32_t>(last)) == (what == "result");
  if (!is_there) {
    throw Error(ErrorKind::kArtifact, "the " + Describe() + " has argument " +
                                          std::to_string(operand) + " as its " + std::string(what) +
                                          ", of " + std::to_string(arguments.size()));
  }
  const LibraryArgument& argument = arguments[static_cast<size_t>(operand)];
  const bool is_float = argument.dtype.code == kDLFloat && argument.dtype.bits == 32;
  if (is_float && argument.bytes == count * kFloatBytes) return;
  throw Error(ErrorKind::kArtifact,
              "the " + std::string(what) + " of the " + Describe() + " is " +
                  TypeName(argument.dtype) + " of " + std::to_string(argument.bytes) +
                  " bytes, expected float32 of " + std::to_string(count * kFloatBytes));
}

}  // namespace heteroplace::exec
