#include "parts/kernels/cuda_products.h"

#include <algorithm>
#include <string>

#include "parts/kernels/library_call.h"

namespace heteroplace::exec {

namespace {

/*! \brief All that kernels take begins at multiples of this (kTensorAlignmentBytes of programs). */
constexpr uint32_t kOperandAlignmentBytes = 64;

int ComputeTypeOf(LibraryPrecision precision) {
  switch (precision) {
    case LibraryPrecision::kFloat32:
      return kComputeFloat32;
    case LibraryPrecision::kTf32:
      return kComputeFastTf32;
    case LibraryPrecision::kHalf:
      return kComputeFastHalf;
  }
  return kComputeFloat32;
}

uint32_t EpilogueOf(const Product& product) {
  int epilogue = product.bias == kNoOperand ? 0 : kEpilogueBias;
  if (product.activation == KernelActivation::kRelu) epilogue |= kEpilogueRelu;
  if (product.activation == KernelActivation::kGelu) epilogue |= kEpilogueGelu;
  return static_cast<uint32_t>(epilogue == 0 ? kEpilogueNone : epilogue);
}

}  // namespace

ProductDescription::ProductDescription(const CublasLt& lt, const Product& product)
    : lt_(lt),
      product_(product),
      operation_(MakeOperation()),
      a_(product.is_right_transposed
             ? MakeLayout(product.depth, product.columns, product.is_right_batched)
             : MakeLayout(product.columns, product.depth, product.is_right_batched)),
      b_(product.is_left_transposed
             ? MakeLayout(product.rows, product.depth, product.is_left_batched)
             : MakeLayout(product.depth, product.rows, product.is_left_batched)),
      d_(MakeLayout(product.columns, product.rows, /*is_batched=*/true)) {}

LibraryObject ProductDescription::MakeOperation() const {
  LibraryObject operation =
      MakeObject(lt_, "cublasLtMatmulDescCreate", lt_.MatmulDescCreate, lt_.MatmulDescDestroy,
                 ComputeTypeOf(product_.precision), kCudaFloat32);
  const auto set = [&](int attribute, const auto& value) {
    lt_.Check(lt_.MatmulDescSetAttribute(operation.get(), attribute, &value, sizeof(value)),
              "cublasLtMatmulDescSetAttribute");
  };
  set(kDescTransposeA, int32_t{product_.is_right_transposed});
  set(kDescTransposeB, int32_t{product_.is_left_transposed});
  set(kDescEpilogue, EpilogueOf(product_));
  if (product_.bias != kNoOperand) {
    // The library reads its alignment off the address, before it is known where the bias will be.
    set(kDescBiasPointer, uint64_t{kOperandAlignmentBytes});
  }
  return operation;
}

LibraryObject ProductDescription::MakeLayout(int64_t rows, int64_t columns, bool is_batched) const {
  LibraryObject layout =
      MakeObject(lt_, "cublasLtMatrixLayoutCreate", lt_.MatrixLayoutCreate, lt_.MatrixLayoutDestroy,
                 kCudaFloat32, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
  if (product_.batch == 1) return layout;
  const auto count = static_cast<int32_t>(product_.batch);
  const int64_t stride = is_batched ? rows * columns : 0;
  lt_.Check(lt_.MatrixLayoutSetAttribute(layout.get(), kLayoutBatchCount, &count, sizeof(count)),
            "cublasLtMatrixLayoutSetAttribute");
  lt_.Check(lt_.MatrixLayoutSetAttribute(layout.get(), kLayoutBatchStride, &stride, sizeof(stride)),
            "cublasLtMatrixLayoutSetAttribute");
  return layout;
}

void ProductDescription::SetBias(const void* bias) {
  if (bias == bias_) return;
  lt_.Check(lt_.MatmulDescSetAttribute(operation_.get(), kDescBiasPointer, &bias, sizeof(bias)),
            "cublasLtMatmulDescSetAttribute");
  bias_ = bias;
}

LoadedProducts::LoadedProducts(const CudaRuntime& cuda, int device)
    : device_(device), handle_(cuda, TheCublasLt(cuda), device) {}

std::unique_ptr<LoadedKernels> Product::MakeLoaded(const CudaRuntime& cuda, int device) const {
  return std::make_unique<LoadedProducts>(cuda, device);
}

void LoadedProducts::Add(const LibraryKernel& kernel) {
  const auto& product = static_cast<const Product&>(kernel);
  const CublasLt& lt = handle_.library();
  lt.CheckVersion(product.version);
  auto description = std::make_unique<ProductDescription>(lt, product);
  CublasLtHeuristic found{};
  const int status =
      lt.AlgoCheck(handle_.get(), description->operation(), description->a(), description->b(),
                   description->d(), description->d(), product.algorithm.data(), &found);
  lt.Check(status, AlgorithmOnDevice(product, device_), kChosenElsewhere);
  CheckScratch(product, found.workspace_bytes, device_);
  descriptions_.emplace(&product, std::move(description));
}

void LoadedProducts::Launch(const KernelCall& call, WorkspacePool* workspace,
                            CudaStream stream) const {
  const auto& product = static_cast<const Product&>(*call.function.library_kernel);
  const CublasLt& lt = handle_.library();
  ProductDescription& description = *descriptions_.at(call.function.library_kernel);
  const float alpha = 1.0f, beta = product.sum == kNoOperand ? 0.0f : 1.0f;
  if (product.bias != kNoOperand) description.SetBias(DataOf(call, product.bias));
  void* result = DataOf(call, call.num_arguments - 1);
  const void* sum = product.sum == kNoOperand ? result : DataOf(call, product.sum);
  const ScratchMemory scratch(workspace, product.workspace_bytes);
  const int status = lt.Matmul(
      handle_.get(), description.operation(), &alpha, DataOf(call, product.right), description.a(),
      DataOf(call, product.left), description.b(), &beta, sum, description.d(), result,
      description.d(), product.algorithm.data(), scratch.data(), scratch.bytes(), stream);
  if (status != 0) lt.Check(status, "cublasLtMatmul of a ", product.Describe(), OnDevice(device_));
}

std::vector<std::string> FindProductAlgorithms(const CudaRuntime& cuda, int device,
                                               const Product& product, int64_t max_workspace_bytes,
                                               int max_count) {
  const CublasLtHandle handle(cuda, TheCublasLt(cuda), device);
  const CublasLt& lt = handle.library();
  const ProductDescription description(lt, product);
  const LibraryObject preference =
      MakeObject(lt, "cublasLtMatmulPreferenceCreate", lt.PreferenceCreate, lt.PreferenceDestroy);
  const auto prefer = [&](int attribute, const auto& value) {
    lt.Check(lt.PreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)),
             "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(kPreferWorkspaceBytes, static_cast<uint64_t>(max_workspace_bytes));
  for (int matrix = 0; matrix < 4; ++matrix) {
    prefer(kPreferAlignmentOfA + matrix, kOperandAlignmentBytes);
  }
  std::vector<CublasLtHeuristic> offered(static_cast<size_t>(max_count));
  int count = 0;
  const int status = lt.AlgoGetHeuristic(handle.get(), description.operation(), description.a(),
                                         description.b(), description.d(), description.d(),
                                         preference.get(), max_count, offered.data(), &count);
  if (status == kStatusNotSupported) return {};
  lt.Check(status, "cublasLtMatmulAlgoGetHeuristic for a ", product.Describe(), OnDevice(device));
  std::vector<std::string> found;
  for (const CublasLtHeuristic& each : offered) {
    if (count-- <= 0) break;
    if (each.state != 0) continue;
    Product chosen = product;
    chosen.version = static_cast<int64_t>(lt.GetVersion());
    chosen.workspace_bytes = static_cast<int64_t>(each.workspace_bytes);
    std::copy_n(each.algorithm, chosen.algorithm.size(), chosen.algorithm.begin());
    found.push_back(chosen.ToText());
  }
  return found;
}

}  // namespace heteroplace::exec
