#include "parts/kernels/cublaslt_api.h"

namespace heteroplace::exec {

namespace {

constexpr LibraryPlace kCublasLtPlace = {
    "cuBLASLt",
    {{{"libcublasLt.so.12", "cublas", "nvidia-cublas-cu12", 12},
      {"libcublasLt.so.13", "cu13", "nvidia-cublas", 13}}},
    "cublas",
    "cublasLtCreate"};

CublasLt LoadCublasLt(const CudaRuntime& cuda) {
  void* library = OpenLibrary(cuda, kCublasLtPlace);
  CublasLt lt{};
  lt.place = &kCublasLtPlace;
  const auto find = [library](const char* name, auto* out) {
    FindFunction(library, kCublasLtPlace, name, out);
  };
  find("cublasLtGetVersion", &lt.GetVersion);
  find("cublasLtGetStatusString", &lt.GetErrorString);
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

const CublasLt& TheCublasLt(const CudaRuntime& cuda) {
  static const CublasLt lt = LoadCublasLt(cuda);
  return lt;
}

}  // namespace heteroplace::exec
