#include "exec/devices/libraries/cuda_library_kernels.h"

#include "exec/devices/libraries/convolution.h"
#include "exec/devices/libraries/cuda_convolutions.h"
#include "exec/devices/libraries/cuda_products.h"
#include "exec/devices/libraries/product.h"
#include "support/error.h"

namespace heteroplace::exec {

LoadedLibraryKernels::LoadedLibraryKernels(const CudaRuntime& cuda, int device,
                                           const std::vector<const LibraryKernel*>& kernels) {
  const DeviceScope scope(cuda, device);
  scope.Check();
  for (const LibraryKernel* kernel : kernels) {
    if (library_of_.count(kernel) != 0) continue;
    std::unique_ptr<LoadedKernels>& library = libraries_[kernel->Kind()];
    if (library == nullptr && dynamic_cast<const Convolution*>(kernel) != nullptr) {
      library = std::make_unique<LoadedConvolutions>(cuda, device);
    } else if (library == nullptr) {
      library = std::make_unique<LoadedProducts>(cuda, device);
    }
    library->Add(*kernel);
    library_of_[kernel] = library.get();
  }
}

void LoadedLibraryKernels::Launch(const KernelCall& call, WorkspacePool* workspace,
                                  CudaStream stream) const {
  library_of_.at(call.function.library_kernel)->Launch(call, workspace, stream);
}

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

std::string AlgorithmOnDevice(const LibraryKernel& kernel, int device) {
  return "the algorithm of the " + kernel.Describe() + OnDevice(device);
}

void CheckScratch(const LibraryKernel& kernel, size_t needed_bytes, int device) {
  if (needed_bytes <= static_cast<size_t>(kernel.workspace_bytes)) return;
  throw Error(ErrorKind::kExecution,
              AlgorithmOnDevice(kernel, device) + " needs " + std::to_string(needed_bytes) +
                  " bytes of scratch memory, the program has " +
                  std::to_string(kernel.workspace_bytes) + "; place the model again here");
}

int64_t LibraryVersion(const TvmAbi& abi, std::string_view prefix) {
  const CudaRuntime& cuda = RuntimeOf(abi);
  if (prefix == "cublaslt") return static_cast<int64_t>(TheCublasLt(cuda).GetVersion());
  if (prefix == "cudnn") return static_cast<int64_t>(TheCudnn(cuda).GetVersion());
  throw Error(ErrorKind::kArtifact,
              "no kernels are of library '" + std::string(prefix) + "', but of cublaslt and cudnn");
}

std::vector<std::string> FindAlgorithms(const TvmAbi& abi, int device, std::string_view symbol,
                                        int64_t max_workspace_bytes, int max_count) {
  const std::shared_ptr<const LibraryKernel> kernel = ParseLibraryKernel(symbol);
  const CudaRuntime& cuda = RuntimeOf(abi);
  const DeviceScope scope(cuda, device);
  scope.Check();
  if (const auto* convolution = dynamic_cast<const Convolution*>(kernel.get())) {
    return FindConvolutionAlgorithms(cuda, device, *convolution, max_workspace_bytes, max_count);
  }
  const auto& product = static_cast<const Product&>(*kernel);
  return FindProductAlgorithms(cuda, device, product, max_workspace_bytes, max_count);
}

}  // namespace heteroplace::exec
