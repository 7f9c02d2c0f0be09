#include "exec/devices/cublaslt_api.h"

#include <dlfcn.h>

#include <filesystem>

namespace heteroplace::exec {

namespace {

constexpr const char* kCublasLtFile = "libcublasLt.so.12";
constexpr const char* kCublasLtMend =
    "; run `pip install nvidia-cublas-cu12`, or place the model with cublas='off'";

/*! \brief Where NVIDIA's wheels put it: nvidia/cublas/lib beside nvidia/cuda_runtime/lib. */
std::string PathInWheels(const CudaRuntime& cuda) {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(cuda.GetDeviceCount), &info) == 0) return "";
  const std::filesystem::path runtime(info.dli_fname);
  const std::filesystem::path packages = runtime.parent_path().parent_path().parent_path();
  return (packages / "cublas" / "lib" / kCublasLtFile).string();
}

void* OpenCublasLt(const CudaRuntime& cuda) {
  // Never closed: it keeps what it has loaded on devices.
  const std::string in_wheels = PathInWheels(cuda);
  void* library = in_wheels.empty() ? nullptr : dlopen(in_wheels.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) library = dlopen(kCublasLtFile, RTLD_NOW | RTLD_LOCAL);
  if (library != nullptr) return library;
  throw Error(ErrorKind::kExecution,
              std::string("cuBLASLt cannot be opened: ") + dlerror() + kCublasLtMend);
}

CublasLt LoadCublasLt(void* library) {
  CublasLt lt{};
  const auto find = [library](const char* name, auto* out) {
    void* symbol = dlsym(library, name);
    if (symbol == nullptr) {
      throw Error(ErrorKind::kExecution,
                  std::string(kCublasLtFile) + " has no function " + name + kCublasLtMend);
    }
    *out = reinterpret_cast<std::remove_pointer_t<decltype(out)>>(symbol);
  };
  find("cublasLtGetVersion", &lt.GetVersion);
  find("cublasLtGetStatusString", &lt.GetStatusString);
  find("cublasLtCreate", &lt.Create);
  find("cublasLtDestroy", &lt.Destroy);
  find("cublasLtMatmulDescCreate", &lt.MatmulDescCreate);
  find("cublasLtMatmulDescDestroy", &lt.MatmulDescDestroy);
  find("cublasLtMatmulDescSetAttribute", &lt.MatmulDescSetAttribute);
  find("cublasLtMatrixLayoutCreate", &lt.MatrixLayoutCreate);
  find("cublasLtMatrixLayoutDestroy", &lt.MatrixLayoutDestroy);
  find("cublasLtMatrixLayoutSetAttribute", &lt.MatrixLayoutSetAttribute);
  find("cublasLtMatmulPreferenceCreate", &lt.PreferenceCreate);
  find("cublasLtMatmulPreferenceDestroy", &lt.PreferenceDestroy);
  find("cublasLtMatmulPreferenceSetAttribute", &lt.PreferenceSetAttribute);
  find("cublasLtMatmulAlgoGetHeuristic", &lt.AlgoGetHeuristic);
  find("cublasLtMatmulAlgoCheck", &lt.AlgoCheck);
  find("cublasLtMatmul", &lt.Matmul);
  return lt;
}

}  // namespace

std::string CublasLt::Describe(int status) const {
  const char* name = GetStatusString(status);
  return std::string(name == nullptr ? "unknown error" : name) + " (cuBLAS status " +
         std::to_string(status) + ")";
}

const CublasLt& TheCublasLt(const CudaRuntime& cuda) {
  static const CublasLt lt = LoadCublasLt(OpenCublasLt(cuda));
  return lt;
}

}  // namespace heteroplace::exec
