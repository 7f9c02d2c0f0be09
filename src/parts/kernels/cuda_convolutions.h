// Convolutions on a GPU by cuDNN.
//
// With a bias and a relu all is one call of the library, with a bias alone where the algorithm is
// IMPLICIT_PRECOMP_GEMM: no other has the identity for an activation. Else bias, sum and relu are
// calls of their own, behind that of the convolution.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/devices/cuda/cuda_library_kernels.h"
#include "parts/kernels/convolution.h"
#include "parts/kernels/cudnn_api.h"

namespace heteroplace::exec {

using CudnnHandle = LibraryHandle<Cudnn>;

/*! \brief The descriptors of a convolution for the library. */
class ConvolutionDescription {
 public:
  /*! \throws Error kExecution. */
  ConvolutionDescription(const Cudnn& cudnn, const Convolution& convolution);
  ConvolutionDescription(const ConvolutionDescription&) = delete;
  ConvolutionDescription& operator=(const ConvolutionDescription&) = delete;

  /*! \brief Of the data. */
  void* x() const { return x_.get(); }
  /*! \brief Of the filters. */
  void* w() const { return w_.get(); }
  /*! \brief Of the sum and of the result. */
  void* y() const { return y_.get(); }
  void* bias() const { return bias_.get(); }
  void* convolution() const { return convolution_.get(); }
  void* activation() const { return activation_.get(); }

 private:
  LibraryObject MakeTensor(int64_t n, int64_t c, int64_t h, int64_t w) const;
  LibraryObject MakeFilters(const Convolution& all) const;
  LibraryObject MakeConvolution(const Convolution& all) const;
  LibraryObject MakeActivation(const Convolution& all) const;

  const Cudnn& cudnn_;
  LibraryObject x_;
  LibraryObject w_;
  LibraryObject y_;
  LibraryObject bias_;
  LibraryObject convolution_;
  LibraryObject activation_;
};

/*! \brief Convolutions of a program on one device. */
class LoadedConvolutions : public LoadedKernels {
 public:
  /*! \throws Error kExecution where there is no library. */
  LoadedConvolutions(const CudaRuntime& cuda, int device);

  void Add(const LibraryKernel& kernel) override;
  void Launch(const KernelCall& call, WorkspacePool* workspace, CudaStream stream) const override;

 private:
  int device_;
  CudnnHandle handle_;
  /*! \brief That the handle has; set by the thread that issues. */
  mutable CudaStream stream_ = nullptr;
  std::unordered_map<const LibraryKernel*, std::unique_ptr<ConvolutionDescription>> descriptions_;
};

/*! \brief As FindAlgorithms. */
std::vector<std::string> FindConvolutionAlgorithms(const CudaRuntime& cuda, int device,
                                                   const Convolution& convolution,
                                                   int64_t max_workspace_bytes, int max_count);

}  // namespace heteroplace::exec
