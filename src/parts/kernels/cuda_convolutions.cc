#include "parts/kernels/cuda_convolutions.h"

#include <algorithm>

#include "parts/kernels/library_call.h"

namespace heteroplace::exec {

namespace {

/*! \brief In float32 no tensor cores, which would round; in half they are given rounded numbers. */
int MathTypeOf(LibraryPrecision precision) {
  switch (precision) {
    case LibraryPrecision::kFloat32:
      return kCudnnFmaMath;
    case LibraryPrecision::kTf32:
      return kCudnnTensorOpMath;
    case LibraryPrecision::kHalf:
      return kCudnnTensorOpMathAllowConversion;
  }
  return kCudnnFmaMath;
}

bool IsRelu(const Convolution& all) { return all.activation == KernelActivation::kRelu; }

/*! \brief Whether the library has one call for all of it. */
bool IsOneCall(const Convolution& all) {
  return all.bias != kNoOperand && (IsRelu(all) || all.algorithm == kCudnnImplicitPrecompGemm);
}

bool IsNotSupported(int status) {
  return status / kCudnnCategory * kCudnnCategory == kCudnnNotSupported;
}

/*! \brief A call of a convolution: what its functions are given. */
struct ConvolutionCall {
  const Cudnn& cudnn;
  void* handle;
  const Convolution& all;
  const ConvolutionDescription& description;
  const KernelCall& call;
  int device;
  void* result;

  void Check(int status, const char* function) const {
    if (status != 0) {
      cudnn.Check(status, function, " of a ", all.Describe(), OnDevice(device));
    }
  }

  void IssueOne(const ScratchMemory& scratch) const {
    const float alpha = 1.0f, beta = all.sum == kNoOperand ? 0.0f : 1.0f;
    const void* sum = all.sum == kNoOperand ? result : DataOf(call, all.sum);
    Check(cudnn.ConvolutionBiasActivationForward(
              handle, &alpha, description.x(), DataOf(call, all.data), description.w(),
              DataOf(call, all.filter), description.convolution(), all.algorithm, scratch.data(),
              scratch.bytes(), &beta, description.y(), sum, description.bias(),
              DataOf(call, all.bias), description.activation(), description.y(), result),
          "cudnnConvolutionBiasActivationForward");
  }

  void IssueParts(const ScratchMemory& scratch) const {
    const float alpha = 1.0f, none = 0.0f;
    Check(cudnn.ConvolutionForward(handle, &alpha, description.x(), DataOf(call, all.data),
                                   description.w(), DataOf(call, all.filter),
                                   description.convolution(), all.algorithm, scratch.data(),
                                   scratch.bytes(), &none, description.y(), result),
          "cudnnConvolutionForward");
    const auto add = [&](int32_t operand, void* descriptor) {
      if (operand == kNoOperand) return;
      Check(cudnn.AddTensor(handle, &alpha, descriptor, DataOf(call, operand), &alpha,
                            description.y(), result),
            "cudnnAddTensor");
    };
    add(all.bias, description.bias());
    add(all.sum, description.y());
    if (!IsRelu(all)) return;
    Check(cudnn.ActivationForward(handle, description.activation(), &alpha, description.y(), result,
                                  &none, description.y(), result),
          "cudnnActivationForward");
  }
};

}  // namespace

ConvolutionDescription::ConvolutionDescription(const Cudnn& cudnn, const Convolution& convolution)
    : cudnn_(cudnn),
      x_(MakeTensor(convolution.batch, convolution.channels, convolution.size[0],
                    convolution.size[1])),
      w_(MakeFilters(convolution)),
      y_(MakeTensor(convolution.batch, convolution.filters, convolution.ResultSize(0),
                    convolution.ResultSize(1))),
      bias_(MakeTensor(1, convolution.filters, 1, 1)),
      convolution_(MakeConvolution(convolution)),
      activation_(MakeActivation(convolution)) {}

LibraryObject ConvolutionDescription::MakeTensor(int64_t n, int64_t c, int64_t h, int64_t w) const {
  LibraryObject tensor = MakeObject(cudnn_, "cudnnCreateTensorDescriptor",
                                    cudnn_.CreateTensorDescriptor, cudnn_.DestroyTensorDescriptor);
  cudnn_.Check(
      cudnn_.SetTensor4dDescriptor(tensor.get(), kCudnnNchw, kCudnnFloat32, static_cast<int>(n),
                                   static_cast<int>(c), static_cast<int>(h), static_cast<int>(w)),
      "cudnnSetTensor4dDescriptor");
  return tensor;
}

LibraryObject ConvolutionDescription::MakeFilters(const Convolution& all) const {
  LibraryObject filters = MakeObject(cudnn_, "cudnnCreateFilterDescriptor",
                                     cudnn_.CreateFilterDescriptor, cudnn_.DestroyFilterDescriptor);
  cudnn_.Check(cudnn_.SetFilter4dDescriptor(
                   filters.get(), kCudnnFloat32, kCudnnNchw, static_cast<int>(all.filters),
                   static_cast<int>(all.channels / all.groups), static_cast<int>(all.window[0]),
                   static_cast<int>(all.window[1])),
               "cudnnSetFilter4dDescriptor");
  return filters;
}

LibraryObject ConvolutionDescription::MakeConvolution(const Convolution& all) const {
  LibraryObject convolution =
      MakeObject(cudnn_, "cudnnCreateConvolutionDescriptor", cudnn_.CreateConvolutionDescriptor,
                 cudnn_.DestroyConvolutionDescriptor);
  const auto at = [](const std::array<int64_t, 2>& pair, size_t axis) {
    return static_cast<int>(pair[axis]);
  };
  cudnn_.Check(
      cudnn_.SetConvolution2dDescriptor(convolution.get(), at(all.padding, 0), at(all.padding, 1),
                                        at(all.strides, 0), at(all.strides, 1), at(all.dilation, 0),
                                        at(all.dilation, 1), kCudnnCrossCorrelation, kCudnnFloat32),
      "cudnnSetConvolution2dDescriptor");
  cudnn_.Check(cudnn_.SetConvolutionGroupCount(convolution.get(), static_cast<int>(all.groups)),
               "cudnnSetConvolutionGroupCount");
  cudnn_.Check(cudnn_.SetConvolutionMathType(convolution.get(), MathTypeOf(all.precision)),
               "cudnnSetConvolutionMathType");
  return convolution;
}

LibraryObject ConvolutionDescription::MakeActivation(const Convolution& all) const {
  LibraryObject activation =
      MakeObject(cudnn_, "cudnnCreateActivationDescriptor", cudnn_.CreateActivationDescriptor,
                 cudnn_.DestroyActivationDescriptor);
  // cuDNN's fused call supports no other way with NaN than to drop it.
  const int nan = IsOneCall(all) ? kCudnnNotPropagateNan : kCudnnPropagateNan;
  const int mode = IsRelu(all) ? kCudnnRelu : kCudnnIdentity;
  cudnn_.Check(cudnn_.SetActivationDescriptor(activation.get(), mode, nan, 0.0),
               "cudnnSetActivationDescriptor");
  return activation;
}

LoadedConvolutions::LoadedConvolutions(const CudaRuntime& cuda, int device)
    : device_(device), handle_(cuda, TheCudnn(cuda), device) {}

std::unique_ptr<LoadedKernels> Convolution::MakeLoaded(const CudaRuntime& cuda, int device) const {
  return std::make_unique<LoadedConvolutions>(cuda, device);
}

void LoadedConvolutions::Add(const LibraryKernel& kernel) {
  const auto& all = static_cast<const Convolution&>(kernel);
  const Cudnn& cudnn = handle_.library();
  cudnn.CheckVersion(all.version);
  auto description = std::make_unique<ConvolutionDescription>(cudnn, all);
  size_t bytes = 0;
  const int status =
      cudnn.GetWorkspaceSize(handle_.get(), description->x(), description->w(),
                             description->convolution(), description->y(), all.algorithm, &bytes);
  cudnn.Check(status, AlgorithmOnDevice(all, device_), kChosenElsewhere);
  CheckScratch(all, bytes, device_);
  descriptions_.emplace(&kernel, std::move(description));
}

void LoadedConvolutions::Launch(const KernelCall& call, WorkspacePool* workspace,
                                CudaStream stream) const {
  const auto& all = static_cast<const Convolution&>(*call.function.library_kernel);
  const Cudnn& cudnn = handle_.library();
  if (stream != stream_) {
    cudnn.Check(cudnn.SetStream(handle_.get(), stream), "cudnnSetStream", OnDevice(device_));
    stream_ = stream;
  }
  const ScratchMemory scratch(workspace, all.workspace_bytes);
  const ConvolutionCall issued = {cudnn,
                                  handle_.get(),
                                  all,
                                  *descriptions_.at(&all),
                                  call,
                                  device_,
                                  DataOf(call, call.num_arguments - 1)};
  IsOneCall(all) ? issued.IssueOne(scratch) : issued.IssueParts(scratch);
}

std::vector<std::string> FindConvolutionAlgorithms(const CudaRuntime& cuda, int device,
                                                   const Convolution& convolution,
                                                   int64_t max_workspace_bytes, int max_count) {
  const CudnnHandle handle(cuda, TheCudnn(cuda), device);
  const Cudnn& cudnn = handle.library();
  const ConvolutionDescription description(cudnn, convolution);
  std::vector<CudnnAlgorithm> offered(static_cast<size_t>(max_count));
  int count = 0;
  const int status =
      cudnn.GetAlgorithms(handle.get(), description.x(), description.w(), description.convolution(),
                          description.y(), max_count, &count, offered.data());
  if (IsNotSupported(status)) return {};
  cudnn.Check(status, "cudnnGetConvolutionForwardAlgorithm_v7 for a ", convolution.Describe(),
              OnDevice(device));
  std::vector<int> seen;  // one algorithm is offered for each kind of numbers that it can multiply
  std::vector<std::string> found;
  for (const CudnnAlgorithm& each : offered) {
    if (count-- <= 0) break;
    const bool is_known = std::ranges::find(seen, each.number) != seen.end();
    if (is_known || each.status != 0 || each.is_deterministic != kCudnnDeterministic) continue;
    seen.push_back(each.number);
    // Asked again: it must hold for what the description says it multiplies in.
    size_t bytes = 0;
    const int answer =
        cudnn.GetWorkspaceSize(handle.get(), description.x(), description.w(),
                               description.convolution(), description.y(), each.number, &bytes);
    if (IsNotSupported(answer) || bytes > static_cast<size_t>(max_workspace_bytes)) continue;
    cudnn.Check(answer, "cudnnGetConvolutionForwardWorkspaceSize for a ", convolution.Describe(),
                OnDevice(device));
    Convolution chosen = convolution;
    chosen.version = static_cast<int64_t>(cudnn.GetVersion());
    chosen.workspace_bytes = static_cast<int64_t>(bytes);
    chosen.algorithm = each.number;
    found.push_back(chosen.ToText());
  }
  return found;
}

}  // namespace heteroplace::exec
