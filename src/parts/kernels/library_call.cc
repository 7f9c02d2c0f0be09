#include "parts/kernels/library_call.h"

#include "support/error.h"

namespace heteroplace::exec {

ScratchMemory::ScratchMemory(WorkspacePool* pool, int64_t bytes)
    : pool_(pool),
      bytes_(static_cast<uint64_t>(bytes)),
      data_(bytes == 0 ? nullptr : pool->Allocate(bytes_)) {}

ScratchMemory::~ScratchMemory() {
  if (data_ != nullptr) pool_->Free(data_);
}

void* DataOf(const KernelCall& call, int32_t operand) {
  if (operand == kNoOperand) return nullptr;
  const auto* tensor = static_cast<const DLTensor*>(call.arguments[operand].v_handle);
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

std::string OnDevice(int device) { return " on " + DeviceName({kDLCUDA, device}); }

std::string AlgorithmOnDevice(const NvidiaKernel& kernel, int device) {
  return "the algorithm of the " + kernel.Describe() + OnDevice(device);
}

void CheckScratch(const NvidiaKernel& kernel, size_t needed_bytes, int device) {
  if (needed_bytes <= static_cast<size_t>(kernel.workspace_bytes)) return;
  throw Error(ErrorKind::kExecution,
              AlgorithmOnDevice(kernel, device) + " needs " + std::to_string(needed_bytes) +
                  " bytes of scratch memory, the program has " +
                  std::to_string(kernel.workspace_bytes) + "; place the model again here");
}

}  // namespace heteroplace::exec
