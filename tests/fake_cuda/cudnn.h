// What the files of the fake cuDNN share.
#pragma once

#include "library_objects.h"

namespace fake {

inline constexpr int kCudnnBadParam = 2000;
inline constexpr int kCudnnUnsupported = 3000;

struct DnnHandle : LibraryObject {
  explicit DnnHandle(int at) : device(at) {}
  int device;
  void* stream = nullptr;
  bool has_stream = false;
};

/*! \brief Of a tensor or of filters; `sizes` are 0 until they are set. */
struct DnnTensor : LibraryObject {
  int sizes[4] = {};
  int64_t count() const { return int64_t{sizes[0]} * sizes[1] * sizes[2] * sizes[3]; }
};
struct DnnFilter : DnnTensor {};

struct DnnConvolution : LibraryObject {
  bool is_set = false;
  int padding[2] = {};
  int strides[2] = {};
  int dilation[2] = {};
  int groups = 1;
  int math = 0;
};

struct DnnActivation : LibraryObject {
  bool is_set = false;
  int mode = 0;
  bool keeps_nan = false;
};

struct DnnAlgorithm {
  int number;
  int status;
  float time;
  size_t memory;
  int determinism;
  int math;
  int reserved[3];
};

struct DnnState {
  std::mutex mutex;
  size_t version = 91002;
  bool has_algorithms = true;
  /*! \brief An algorithm that the call with bias and activation refuses; -1: none. */
  int refused_when_fused = -1;
};

DnnState& TheDnn();

/*! \brief What a convolution consists of, alive. */
struct DnnProblem {
  std::shared_ptr<DnnHandle> handle;
  std::shared_ptr<DnnTensor> x, y;
  std::shared_ptr<DnnFilter> w;
  std::shared_ptr<DnnConvolution> convolution;
};

/*! \brief Memory of a call; null: it has none of this kind. */
struct DnnCall {
  const char* function;
  int algorithm;
  const float* x;
  const float* w;
  void* workspace;
  size_t workspace_bytes;
  float beta;
  const float* z;
  const float* bias;
  bool is_relu;
  float* y;
};

/*! \brief As Begin, with a status of cuDNN. */
int BeginDnn(const char* function, unsigned kind);
/*! \brief Says that a rule was broken, here and to who asks for the last error. */
int BrokenDnn(const std::string& text, int status = kCudnnBadParam);

/*! \brief Status and scratch memory of an algorithm for a convolution. */
int CheckDnnAlgorithm(int number, const DnnProblem& problem, size_t* bytes);

/*! \brief Checks memory and stream, and puts the convolution into the stream. */
int IssueConvolution(const DnnProblem& problem, const DnnCall& call);

/*! \brief Puts y = act(y + a) into the handle's stream: a is as y, or one number per channel. */
int IssueElementwise(const DnnHandle& handle, const char* function, const DnnTensor* a_shape,
                     const float* a, bool is_relu, const DnnTensor& y_shape, float* y);

}  // namespace fake
