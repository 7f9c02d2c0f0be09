// Products of matrices on a GPU by cuBLASLt: all is made when a program is loaded, and a run only
// calls the library's one function that computes, on our stream and in our scratch memory.
//
// The library's matrices are column major. A row major matrix is its transpose there, so what is
// asked for is result^T = right^T left^T: its A is our right, its B our left, and its rows are our
// columns, along which it adds the bias.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "exec/devices/cuda/cuda_library_kernels.h"
#include "parts/kernels/cublaslt_api.h"
#include "parts/kernels/product.h"

namespace heteroplace::exec {

using CublasLtHandle = LibraryHandle<CublasLt>;

/*! \brief The descriptions of a product for the library. Used by one thread. */
class ProductDescription {
 public:
  /*! \throws Error kExecution. */
  ProductDescription(const CublasLt& lt, const Product& product);
  ProductDescription(const ProductDescription&) = delete;
  ProductDescription& operator=(const ProductDescription&) = delete;

  /*! \brief Says where the bias is; only where it is elsewhere than before. */
  void SetBias(const void* bias);

  void* operation() const { return operation_.get(); }
  void* a() const { return a_.get(); }
  void* b() const { return b_.get(); }
  /*! \brief Of the sum and of the result. */
  void* d() const { return d_.get(); }

 private:
  LibraryObject MakeOperation() const;
  LibraryObject MakeLayout(int64_t rows, int64_t columns, bool is_batched) const;

  const CublasLt& lt_;
  const Product& product_;
  LibraryObject operation_;
  LibraryObject a_;
  LibraryObject b_;
  LibraryObject d_;
  const void* bias_ = nullptr;
};

/*! \brief Products of a program on one device. */
class LoadedProducts : public LoadedKernels {
 public:
  /*! \throws Error kExecution where there is no library. */
  LoadedProducts(const CudaRuntime& cuda, int device);

  void Add(const LibraryKernel& kernel) override;
  void Launch(const KernelCall& call, WorkspacePool* workspace, CudaStream stream) const override;

 private:
  int device_;
  CublasLtHandle handle_;
  std::unordered_map<const LibraryKernel*, std::unique_ptr<ProductDescription>> descriptions_;
};

/*!
 * \brief The algorithms that the library offers for a product on a device, likely ones first.
 * \param product its version and algorithm are not looked at.
 * \param max_workspace_bytes that an algorithm may need.
 * \param max_count of algorithms.
 * \return names of the product with each; none: the library cannot compute it.
 * \throws Error kExecution where there is no library or device.
 */
std::vector<std::string> FindProductAlgorithms(const CudaRuntime& cuda, int device,
                                               const Product& product, int64_t max_workspace_bytes,
                                               int max_count);

}  // namespace heteroplace::exec
