#include "parts/kernels/registration.h"

#include <memory>
#include <mutex>
#include <string_view>

#include "exec/devices/library_kernel.h"
#include "parts/kernels/convolution.h"
#include "parts/kernels/product.h"

namespace heteroplace::exec {

namespace {

template <auto kParse>
std::shared_ptr<const LibraryKernel> Read(std::string_view symbol) {
  using Kernel = decltype(kParse(symbol));
  return std::make_shared<Kernel>(kParse(symbol));
}

}  // namespace

void RegisterNvidiaKernels() {
  static std::once_flag is_done;
  std::call_once(is_done, [] {
    RegisterLibrary({kProductPrefix, Read<ParseProduct>});
    RegisterLibrary({kConvolutionPrefix, Read<ParseConvolution>});
  });
}

}  // namespace heteroplace::exec
