#include "parts/kernels/algorithms.h"

#include "exec/devices/cuda/cuda_api.h"
#include "parts/kernels/convolution.h"
#include "parts/kernels/cuda_convolutions.h"
#include "parts/kernels/cuda_products.h"
#include "parts/kernels/product.h"
#include "support/error.h"

namespace heteroplace::exec {

int64_t LibraryVersion(const TvmAbi& abi, std::string_view prefix) {
  const CudaRuntime& cuda = RuntimeOf(abi);
  if (prefix == "cublaslt") return static_cast<int64_t>(TheCublasLt(cuda).GetVersion());
  if (prefix == "cudnn") return static_cast<int64_t>(TheCudnn(cuda).GetVersion());
  throw Error(ErrorKind::kArtifact,
              "no kernels are of library '" + std::string(prefix) + "', but of cublaslt and cudnn");
}

std::vector<std::string> FindAlgorithms(const TvmAbi& abi, int device, std::string_view symbol,
                                        int64_t max_workspace_bytes, int max_count) {
  const auto find = [&](const auto& kernel, const auto& algorithms) {
    const CudaRuntime& cuda = RuntimeOf(abi);
    const DeviceScope scope(cuda, device);
    scope.Check();
    return algorithms(cuda, device, kernel, max_workspace_bytes, max_count);
  };
  if (symbol.starts_with(kConvolutionPrefix)) {
    return find(ParseConvolution(symbol), FindConvolutionAlgorithms);
  }
  return find(ParseProduct(symbol), FindProductAlgorithms);
}

}  // namespace heteroplace::exec
