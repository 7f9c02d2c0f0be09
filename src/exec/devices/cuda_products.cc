#include "exec/devices/cuda_products.h"

#include <algorithm>
#include <string>

namespace heteroplace::exec {

namespace {

/*! \brief All that kernels take begins at multiples of this (kTensorAlignmentBytes of programs). */
constexpr uint32_t kOperandAlignmentBytes = 64;

int ComputeTypeOf(ProductPrecision precision) {
  switch (precision) {
    case ProductPrecision::kFloat32:
      return kComputeFloat32;
    case ProductPrecision::kTf32:
      return kComputeFastTf32;
    case ProductPrecision::kHalf:
      return kComputeFastHalf;
  }
  return kComputeFloat32;
}

uint32_t EpilogueOf(const Product& product) {
  int epilogue = product.bias == kNoOperand ? 0 : kEpilogueBias;
  if (product.activation == ProductActivation::kRelu) epilogue |= kEpilogueRelu;
  if (product.activation == ProductActivation::kGelu) epilogue |= kEpilogueGelu;
  return static_cast<uint32_t>(epilogue == 0 ? kEpilogueNone : epilogue);
}

std::string OnDevice(int device) { return " on " + DeviceName({kDLCUDA, device}); }

/*! \brief What a call's argument points to; null for an argument that the product does not have. */
void* DataOf(const KernelCall& call, int32_t operand) {
  if (operand == kNoOperand) return nullptr;
  const auto* tensor = static_cast<const DLTensor*>(call.arguments[operand].v_handle);
  return static_cast<char*>(tensor->data) + tensor->byte_offset;
}

}  // namespace

CublasLtHandle::CublasLtHandle(const CudaRuntime& cuda, int device)
    : cuda_(cuda), lt_(TheCublasLt(cuda)), device_(device) {
  const DeviceScope scope(cuda_, device_);
  scope.Check();
  lt_.Check(lt_.Create(&handle_), "cublasLtCreate", OnDevice(device_));
}

CublasLtHandle::~CublasLtHandle() {
  const DeviceScope scope(cuda_, device_);
  lt_.Destroy(handle_);  // what giving back answers nobody could mend
}

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

ProductDescription::Object ProductDescription::MakeOperation() const {
  void* made = nullptr;
  lt_.Check(lt_.MatmulDescCreate(&made, ComputeTypeOf(product_.precision), kCudaFloat32),
            "cublasLtMatmulDescCreate");
  Object operation(made, lt_.MatmulDescDestroy);
  const auto set = [&](int attribute, const auto& value) {
    lt_.Check(lt_.MatmulDescSetAttribute(made, attribute, &value, sizeof(value)),
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

ProductDescription::Object ProductDescription::MakeLayout(int64_t rows, int64_t columns,
                                                          bool is_batched) const {
  void* made = nullptr;
  lt_.Check(lt_.MatrixLayoutCreate(&made, kCudaFloat32, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), rows),
            "cublasLtMatrixLayoutCreate");
  Object layout(made, lt_.MatrixLayoutDestroy);
  if (product_.batch == 1) return layout;
  const auto count = static_cast<int32_t>(product_.batch);
  const int64_t stride = is_batched ? rows * columns : 0;
  lt_.Check(lt_.MatrixLayoutSetAttribute(made, kLayoutBatchCount, &count, sizeof(count)),
            "cublasLtMatrixLayoutSetAttribute");
  lt_.Check(lt_.MatrixLayoutSetAttribute(made, kLayoutBatchStride, &stride, sizeof(stride)),
            "cublasLtMatrixLayoutSetAttribute");
  return layout;
}

void ProductDescription::SetBias(const void* bias) {
  if (bias == bias_) return;
  lt_.Check(lt_.MatmulDescSetAttribute(operation_.get(), kDescBiasPointer, &bias, sizeof(bias)),
            "cublasLtMatmulDescSetAttribute");
  bias_ = bias;
}

LoadedProducts::LoadedProducts(const CudaRuntime& cuda, int device,
                               const std::vector<const Product*>& products)
    : device_(device), handle_(cuda, device) {
  const DeviceScope scope(cuda, device);
  scope.Check();
  for (const Product* product : products) {
    if (descriptions_.count(product) == 0) Add(*product);
  }
}

void LoadedProducts::Add(const Product& product) {
  const CublasLt& lt = handle_.lt();
  const auto version = static_cast<int64_t>(lt.GetVersion());
  if (version != product.version) {
    const std::string of_program = std::to_string(product.version / 10000) + "." +
                                   std::to_string(product.version / 100 % 100) + "." +
                                   std::to_string(product.version % 100);
    throw Error(ErrorKind::kExecution,
                "the program's products were chosen for " + CublasLtName(product.version) +
                    ", this machine has " + CublasLtName(version) +
                    "; place the model again here, or run `pip install nvidia-cublas-cu12==" +
                    of_program + ".*`");
  }
  auto description = std::make_unique<ProductDescription>(lt, product);
  CublasLtHeuristic found{};
  const int status =
      lt.AlgoCheck(handle_.get(), description->operation(), description->a(), description->b(),
                   description->d(), description->d(), product.algorithm.data(), &found);
  const std::string what = "the algorithm of the " + product.Describe() + OnDevice(device_);
  lt.Check(status, what, " (it was chosen for another GPU: place the model again here)");
  if (found.workspace_bytes > static_cast<size_t>(product.workspace_bytes)) {
    throw Error(ErrorKind::kExecution, what + " needs " + std::to_string(found.workspace_bytes) +
                                           " bytes of scratch memory, the program has " +
                                           std::to_string(product.workspace_bytes) +
                                           "; place the model again here");
  }
  descriptions_.emplace(&product, std::move(description));
}

void LoadedProducts::Launch(const KernelCall& call, WorkspacePool* workspace,
                            CudaStream stream) const {
  const Product& product = *call.function.product;
  const CublasLt& lt = handle_.lt();
  ProductDescription& description = *descriptions_.at(&product);
  const float alpha = 1.0f, beta = product.sum == kNoOperand ? 0.0f : 1.0f;
  if (product.bias != kNoOperand) description.SetBias(DataOf(call, product.bias));
  void* result = DataOf(call, call.num_arguments - 1);
  const void* sum = product.sum == kNoOperand ? result : DataOf(call, product.sum);
  // The first block of a stack begins where the device's memory does, at a multiple of the 256
  // bytes that the library asks for; it is given back at once, in the order of the stream.
  const auto bytes = static_cast<uint64_t>(product.workspace_bytes);
  void* scratch = bytes == 0 ? nullptr : workspace->Allocate(bytes);
  const int status = lt.Matmul(
      handle_.get(), description.operation(), &alpha, DataOf(call, product.right), description.a(),
      DataOf(call, product.left), description.b(), &beta, sum, description.d(), result,
      description.d(), product.algorithm.data(), scratch, bytes, stream);
  if (scratch != nullptr) workspace->Free(scratch);
  if (status != 0) lt.Check(status, "cublasLtMatmul of a ", product.Describe(), OnDevice(device_));
}

int64_t CublasLtVersion(const TvmAbi& abi) {
  return static_cast<int64_t>(TheCublasLt(RuntimeOf(abi)).GetVersion());
}

std::vector<Product> FindAlgorithms(const TvmAbi& abi, int device, const Product& product,
                                    int64_t max_workspace_bytes, int max_count) {
  const CudaRuntime& cuda = RuntimeOf(abi);
  const DeviceScope scope(cuda, device);
  scope.Check();
  const CublasLtHandle handle(cuda, device);
  const CublasLt& lt = handle.lt();
  const ProductDescription description(lt, product);
  void* made = nullptr;
  lt.Check(lt.PreferenceCreate(&made), "cublasLtMatmulPreferenceCreate");
  const std::unique_ptr<void, int (*)(void*)> preference(made, lt.PreferenceDestroy);
  const auto prefer = [&](int attribute, const auto& value) {
    lt.Check(lt.PreferenceSetAttribute(made, attribute, &value, sizeof(value)),
             "cublasLtMatmulPreferenceSetAttribute");
  };
  prefer(kPreferWorkspaceBytes, static_cast<uint64_t>(max_workspace_bytes));
  for (int matrix = 0; matrix < 4; ++matrix) {
    prefer(kPreferAlignmentOfA + matrix, kOperandAlignmentBytes);
  }
  std::vector<CublasLtHeuristic> offered(static_cast<size_t>(max_count));
  int count = 0;
  const int status = lt.AlgoGetHeuristic(handle.get(), description.operation(), description.a(),
                                         description.b(), description.d(), description.d(), made,
                                         max_count, offered.data(), &count);
  if (status == kStatusNotSupported) return {};
  lt.Check(status, "cublasLtMatmulAlgoGetHeuristic for a ", product.Describe(), OnDevice(device));
  std::vector<Product> found;
  for (const CublasLtHeuristic& each : offered) {
    if (count-- <= 0) break;
    if (each.state != 0) continue;
    found.push_back(product);
    found.back().version = static_cast<int64_t>(lt.GetVersion());
    found.back().workspace_bytes = static_cast<int64_t>(each.workspace_bytes);
    std::copy_n(each.algorithm, found.back().algorithm.size(), found.back().algorithm.begin());
  }
  return found;
}

}  // namespace heteroplace::exec
