#include "exec/devices/cuda/cuda_library_kernels.h"

namespace heteroplace::exec {

LoadedLibraryKernels::LoadedLibraryKernels(const CudaRuntime& cuda, int device,
                                           const std::vector<const LibraryKernel*>& kernels) {
  const DeviceScope scope(cuda, device);
  scope.Check();
  for (const LibraryKernel* kernel : kernels) {
    if (library_of_.count(kernel) != 0) continue;
    std::unique_ptr<LoadedKernels>& library = libraries_[kernel->Kind()];
    if (library == nullptr) library = kernel->MakeLoaded(cuda, device);
    library->Add(*kernel);
    library_of_[kernel] = library.get();
  }
}

void LoadedLibraryKernels::Launch(const KernelCall& call, WorkspacePool* workspace,
                                  CudaStream stream) const {
  library_of_.at(call.function.library_kernel)->Launch(call, workspace, stream);
}

}  // namespace heteroplace::exec
