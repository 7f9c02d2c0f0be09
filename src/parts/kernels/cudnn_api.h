// The functions of cuDNN that are called.
//
// Declared here as cudnn_graph.h, cudnn_ops.h and cudnn_cnn.h of cuDNN 9 do; all handles and
// descriptors are opaque, and every function returns 0 for success.
#pragma once

#include <cstddef>

#include "parts/kernels/library_api.h"

namespace heteroplace::exec {

/*! \brief What cudnnGetConvolutionForwardAlgorithm_v7 says of one algorithm. */
struct CudnnAlgorithm {
  int number;
  int status;
  float milliseconds;
  size_t workspace_bytes;
  int is_deterministic;
  int math_type;
  int reserved[3];
};
static_assert(sizeof(CudnnAlgorithm) == 48, "as the library lays them out in a row");

struct Cudnn : NvidiaLibrary {
  int (*Create)(void** handle);
  int (*Destroy)(void* handle);
  int (*SetStream)(void* handle, CudaStream stream);
  int (*CreateTensorDescriptor)(void** tensor);
  int (*SetTensor4dDescriptor)(void* tensor, int format, int type, int n, int c, int h, int w);
  int (*DestroyTensorDescriptor)(void* tensor);
  int (*CreateFilterDescriptor)(void** filter);
  int (*SetFilter4dDescriptor)(void* filter, int type, int format, int k, int c, int h, int w);
  int (*DestroyFilterDescriptor)(void* filter);
  int (*CreateConvolutionDescriptor)(void** convolution);
  int (*SetConvolution2dDescriptor)(void* convolution, int pad_h, int pad_w, int stride_h,
                                    int stride_w, int dilation_h, int dilation_w, int mode,
                                    int compute_type);
  int (*SetConvolutionGroupCount)(void* convolution, int count);
  int (*SetConvolutionMathType)(void* convolution, int math_type);
  int (*DestroyConvolutionDescriptor)(void* convolution);
  int (*CreateActivationDescriptor)(void** activation);
  int (*SetActivationDescriptor)(void* activation, int mode, int nan, double coefficient);
  int (*DestroyActivationDescriptor)(void* activation);
  int (*GetAlgorithms)(void* handle, void* x, void* w, void* convolution, void* y, int asked,
                       int* count, CudnnAlgorithm* found);
  int (*GetWorkspaceSize)(void* handle, void* x, void* w, void* convolution, void* y, int algorithm,
                          size_t* bytes);
  int (*ConvolutionForward)(void* handle, const void* alpha, void* x_descriptor, const void* x,
                            void* w_descriptor, const void* w, void* convolution, int algorithm,
                            void* workspace, size_t workspace_bytes, const void* beta,
                            void* y_descriptor, void* y);
  int (*ConvolutionBiasActivationForward)(void* handle, const void* alpha, void* x_descriptor,
                                          const void* x, void* w_descriptor, const void* w,
                                          void* convolution, int algorithm, void* workspace,
                                          size_t workspace_bytes, const void* beta,
                                          void* z_descriptor, const void* z, void* bias_descriptor,
                                          const void* bias, void* activation, void* y_descriptor,
                                          void* y);
  int (*AddTensor)(void* handle, const void* alpha, void* a_descriptor, const void* a,
                   const void* beta, void* c_descriptor, void* c);
  int (*ActivationForward)(void* handle, void* activation, const void* alpha, void* x_descriptor,
                           const void* x, const void* beta, void* y_descriptor, void* y);
};

// Numbers of the same headers.
inline constexpr int kCudnnFloat32 = 0;
inline constexpr int kCudnnNchw = 0;
inline constexpr int kCudnnCrossCorrelation = 1;
inline constexpr int kCudnnTensorOpMath = 1;
inline constexpr int kCudnnTensorOpMathAllowConversion = 2;
inline constexpr int kCudnnFmaMath = 3;
inline constexpr int kCudnnRelu = 1;
inline constexpr int kCudnnIdentity = 5;
inline constexpr int kCudnnNotPropagateNan = 0;
inline constexpr int kCudnnPropagateNan = 1;
inline constexpr int kCudnnDeterministic = 1;
inline constexpr int kCudnnImplicitPrecompGemm = 1;
/*! \brief Statuses from 3000 to 3999 say what is not supported. */
inline constexpr int kCudnnNotSupported = 3000;
inline constexpr int kCudnnCategory = 1000;

/*! \brief The library. \throws Error kExecution where there is none, with how to get it. */
const Cudnn& TheCudnn(const CudaRuntime& cuda);

}  // namespace heteroplace::exec
