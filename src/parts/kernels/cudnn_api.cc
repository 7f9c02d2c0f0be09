#include "parts/kernels/cudnn_api.h"

namespace heteroplace::exec {

namespace {

constexpr LibraryPlace kCudnnPlace = {"cuDNN",
                                      {{{"libcudnn.so.9", "cudnn", "nvidia-cudnn-cu12", 9},
                                        {"libcudnn.so.9", "cudnn", "nvidia-cudnn-cu13", 9}}},
                                      "cudnn",
                                      "cudnnCreate"};

Cudnn LoadCudnn(const CudaRuntime& cuda) {
  void* library = OpenLibrary(cuda, kCudnnPlace);
  Cudnn cudnn{};
  cudnn.place = &kCudnnPlace;
  const auto find = [library](const char* name, auto* out) {
    FindFunction(library, kCudnnPlace, name, out);
  };
  find("cudnnGetVersion", &cudnn.GetVersion);
  find("cudnnGetErrorString", &cudnn.GetErrorString);
  find("cudnnGetLastErrorString", &cudnn.GetLastErrorString);
  find("cudnnCreate", &cudnn.Create);
  find("cudnnDestroy", &cudnn.Destroy);
  find("cudnnSetStream", &cudnn.SetStream);
  find("cudnnCreateTensorDescriptor", &cudnn.CreateTensorDescriptor);
  find("cudnnSetTensor4dDescriptor", &cudnn.SetTensor4dDescriptor);
  find("cudnnDestroyTensorDescriptor", &cudnn.DestroyTensorDescriptor);
  find("cudnnCreateFilterDescriptor", &cudnn.CreateFilterDescriptor);
  find("cudnnSetFilter4dDescriptor", &cudnn.SetFilter4dDescriptor);
  find("cudnnDestroyFilterDescriptor", &cudnn.DestroyFilterDescriptor);
  find("cudnnCreateConvolutionDescriptor", &cudnn.CreateConvolutionDescriptor);
  find("cudnnSetConvolution2dDescriptor", &cudnn.SetConvolution2dDescriptor);
  find("cudnnSetConvolutionGroupCount", &cudnn.SetConvolutionGroupCount);
  find("cudnnSetConvolutionMathType", &cudnn.SetConvolutionMathType);
  find("cudnnDestroyConvolutionDescriptor", &cudnn.DestroyConvolutionDescriptor);
  find("cudnnCreateActivationDescriptor", &cudnn.CreateActivationDescriptor);
  find("cudnnSetActivationDescriptor", &cudnn.SetActivationDescriptor);
  find("cudnnDestroyActivationDescriptor", &cudnn.DestroyActivationDescriptor);
  find("cudnnGetConvolutionForwardAlgorithm_v7", &cudnn.GetAlgorithms);
  find("cudnnGetConvolutionForwardWorkspaceSize", &cudnn.GetWorkspaceSize);
  find("cudnnConvolutionForward", &cudnn.ConvolutionForward);
  find("cudnnConvolutionBiasActivationForward", &cudnn.ConvolutionBiasActivationForward);
  find("cudnnAddTensor", &cudnn.AddTensor);
  find("cudnnActivationForward", &cudnn.ActivationForward);
  return cudnn;
}

}  // namespace

const Cudnn& TheCudnn(const CudaRuntime& cuda) {
  static const Cudnn cudnn = LoadCudnn(cuda);
  return cudnn;
}

}  // namespace heteroplace::exec
