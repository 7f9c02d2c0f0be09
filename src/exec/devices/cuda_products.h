// Products of matrices on a GPU by cuBLASLt: all is made when a program is loaded, and a run only
// calls the library's one function that computes, on our stream and in our scratch memory.
//
// The library's matrices are column major. A row major matrix is its transpose there, so what is
// asked for is result^T = right^T left^T: its A is our right, its B our left, and its rows are our
// columns, along which it adds the bias.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "exec/devices/cublaslt_api.h"
#include "exec/devices/device.h"
#include "exec/devices/product.h"
#include "exec/devices/workspace.h"

namespace heteroplace::exec {

/*! \brief The library's handle on one device; gone with the object. */
class CublasLtHandle {
 public:
  /*! \throws Error kExecution. */
  CublasLtHandle(const CudaRuntime& cuda, int device);
  ~CublasLtHandle();
  CublasLtHandle(const CublasLtHandle&) = delete;
  CublasLtHandle& operator=(const CublasLtHandle&) = delete;

  const CublasLt& lt() const { return lt_; }
  void* get() const { return handle_; }

 private:
  const CudaRuntime& cuda_;
  const CublasLt& lt_;
  int device_;
  void* handle_ = nullptr;
};

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
  using Object = std::unique_ptr<void, int (*)(void*)>;

  Object MakeOperation() const;
  Object MakeLayout(int64_t rows, int64_t columns, bool is_batched) const;

  const CublasLt& lt_;
  const Product& product_;
  Object operation_;
  Object a_;
  Object b_;
  Object d_;
  const void* bias_ = nullptr;
};

/*! \brief Products of a program on one device. */
class LoadedProducts {
 public:
  /*!
   * \brief Describes them to the library, and lets it check their algorithms.
   * \param products must outlive this object.
   * \throws Error kExecution where there is no library, it has another version than the algorithms
   * are of, or does not take one on this device.
   */
  LoadedProducts(const CudaRuntime& cuda, int device, const std::vector<const Product*>& products);
  LoadedProducts(const LoadedProducts&) = delete;
  LoadedProducts& operator=(const LoadedProducts&) = delete;

  /*!
   * \brief Issues a product; by the one thread that issues all work of the device.
   * \param workspace of the stream. \throws Error kExecution.
   */
  void Launch(const KernelCall& call, WorkspacePool* workspace, CudaStream stream) const;

 private:
  void Add(const Product& product);

  int device_;
  CublasLtHandle handle_;
  std::unordered_map<const Product*, std::unique_ptr<ProductDescription>> descriptions_;
};

/*! \brief The version of the library, as 120903 for 12.9.3. \throws Error kExecution: none. */
int64_t CublasLtVersion(const TvmAbi& abi);

/*!
 * \brief The algorithms that the library offers for a product on a device, likely ones first.
 * \param product its version and algorithm are not looked at.
 * \param max_workspace_bytes that an algorithm may need.
 * \param max_count of algorithms.
 * \return the product with each; none: the library cannot compute it.
 * \throws Error kExecution where there is no library or device.
 */
std::vector<Product> FindAlgorithms(const TvmAbi& abi, int device, const Product& product,
                                    int64_t max_workspace_bytes, int max_count);

}  // namespace heteroplace::exec
