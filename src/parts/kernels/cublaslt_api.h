// The functions of cuBLASLt that are called.
//
// Declared here as NVIDIA documents them (cuBLAS 12, "Using the cuBLASLt API"); all handles are
// opaque, and every function returns 0 for success.
#pragma once

#include <cstddef>
#include <cstdint>

#include "parts/kernels/library_api.h"

namespace heteroplace::exec {

/*! \brief What cublasLtMatmulAlgoGetHeuristic says of one algorithm. */
struct CublasLtHeuristic {
  uint64_t algorithm[8];
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};
static_assert(sizeof(CublasLtHeuristic) == 96, "as the library lays them out in a row");

struct CublasLt : NvidiaLibrary {
  int (*Create)(void** handle);
  int (*Destroy)(void* handle);
  int (*MatmulDescCreate)(void** description, int compute_type, int scale_type);
  int (*MatmulDescDestroy)(void* description);
  int (*MatmulDescSetAttribute)(void* description, int attribute, const void* value, size_t bytes);
  int (*MatrixLayoutCreate)(void** layout, int type, uint64_t rows, uint64_t columns,
                            int64_t leading);
  int (*MatrixLayoutDestroy)(void* layout);
  int (*MatrixLayoutSetAttribute)(void* layout, int attribute, const void* value, size_t bytes);
  int (*PreferenceCreate)(void** preference);
  int (*PreferenceDestroy)(void* preference);
  int (*PreferenceSetAttribute)(void* preference, int attribute, const void* value, size_t bytes);
  int (*AlgoGetHeuristic)(void* handle, void* description, void* a, void* b, void* c, void* d,
                          void* preference, int asked, CublasLtHeuristic* found, int* count);
  int (*AlgoCheck)(void* handle, void* description, void* a, void* b, void* c, void* d,
                   const uint64_t* algorithm, CublasLtHeuristic* found);
  int (*Matmul)(void* handle, void* description, const void* alpha, const void* a, void* a_layout,
                const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                void* d, void* d_layout, const uint64_t* algorithm, void* workspace,
                size_t workspace_bytes, CudaStream stream);
};

// Numbers of cublasLt.h, cublas_api.h and library_types.h.
inline constexpr int kCudaFloat32 = 0;
inline constexpr int kComputeFloat32 = 68;
inline constexpr int kComputeFastHalf = 74;
inline constexpr int kComputeFastTf32 = 77;
inline constexpr int kDescTransposeA = 3;
inline constexpr int kDescTransposeB = 4;
inline constexpr int kDescEpilogue = 7;
inline constexpr int kDescBiasPointer = 8;
inline constexpr int kLayoutBatchCount = 5;
inline constexpr int kLayoutBatchStride = 6;
inline constexpr int kPreferWorkspaceBytes = 1;
inline constexpr int kPreferAlignmentOfA = 5;  // then of B, C and D
inline constexpr int kEpilogueNone = 1;
inline constexpr int kEpilogueRelu = 2;
inline constexpr int kEpilogueBias = 4;
inline constexpr int kEpilogueGelu = 32;
inline constexpr int kStatusNotSupported = 15;

/*! \brief The library. \throws Error kExecution where there is none, with how to get it. */
const CublasLt& TheCublasLt(const CudaRuntime& cuda);

}  // namespace heteroplace::exec
