// A cuDNN that computes on the host: handles, descriptors and algorithms.
//
// As in the fake cuBLASLt nothing may be made during a run or a capture, and the code of an
// algorithm comes to a device at its first use. See cudnn_convolution.cc for what computes.
#include "cudnn.h"

#include <cstring>

using namespace fake;

namespace {

constexpr int kDnnNotInitialized = 1001;
constexpr int kDnnCudartFailed = 5003;
constexpr size_t kTooMuch = size_t{1} << 40;

thread_local std::string last_dnn_error;

int ResultSizeOf(const DnnProblem& problem, int axis) {
  const DnnConvolution& all = *problem.convolution;
  const int reach = (problem.w->sizes[2 + axis] - 1) * all.dilation[axis] + 1;
  const int room = problem.x->sizes[2 + axis] + 2 * all.padding[axis] - reach;
  return room < 0 ? -1 : room / all.strides[axis] + 1;
}

/*! \brief Whether all is set, and the shapes belong together. */
bool FitsDnn(const DnnProblem& problem) {
  const DnnConvolution& all = *problem.convolution;
  const int *x = problem.x->sizes, *w = problem.w->sizes, *y = problem.y->sizes;
  return all.is_set && problem.x->count() > 0 && problem.w->count() > 0 && all.groups > 0 &&
         x[1] == w[1] * all.groups && w[0] % all.groups == 0 && y[0] == x[0] && y[1] == w[0] &&
         y[2] == ResultSizeOf(problem, 0) && y[3] == ResultSizeOf(problem, 1);
}

/*! \brief All that describes a convolution; false after a report. */
bool FindAllDnn(DnnProblem* problem, void* handle, void* x, void* w, void* convolution, void* y,
                const char* function) {
  problem->handle = FindObject<DnnHandle>(handle, function);
  problem->x = FindObject<DnnTensor>(x, function);
  problem->w = FindObject<DnnFilter>(w, function);
  problem->convolution = FindObject<DnnConvolution>(convolution, function);
  problem->y = FindObject<DnnTensor>(y, function);
  return problem->handle && problem->x && problem->w && problem->convolution && problem->y;
}

}  // namespace

DnnState& fake::TheDnn() {
  static DnnState* state = new DnnState;
  return *state;
}

int fake::BrokenDnn(const std::string& text, int status) {
  last_dnn_error = text;
  return Broken(text, status);
}

int fake::BeginDnn(const char* function, unsigned kind) {
  const int error = Begin(function, kind);
  if (error == 0) return 0;
  last_dnn_error = std::string(function) + " of the fake fails";
  return error >= kDnnNotInitialized && error < 6000 ? error : kDnnCudartFailed;
}

/*! \brief Winograd needs windows of 3 x 3 without steps; FFT more memory than there is. */
int fake::CheckDnnAlgorithm(int number, const DnnProblem& problem, size_t* bytes) {
  if (!FitsDnn(problem)) return BrokenDnn("shapes of a convolution do not fit");
  const DnnConvolution& all = *problem.convolution;
  const int* w = problem.w->sizes;
  const bool is_plain = all.strides[0] * all.strides[1] * all.dilation[0] * all.dilation[1] == 1;
  switch (number) {
    case 0:
    case 3:
      *bytes = 0;
      return 0;
    case 1:
      *bytes = 4096;
      return 0;
    case 4:
      *bytes = kTooMuch;
      return 0;
    case 6:
      *bytes = 1 << 14;
      return w[2] == 3 && w[3] == 3 && is_plain && all.groups == 1 ? 0 : kCudnnUnsupported + 2;
  }
  return kCudnnUnsupported;
}

FAKE_EXPORT size_t cudnnGetVersion() { return TheDnn().version; }

FAKE_EXPORT const char* cudnnGetErrorString(int status) {
  switch (status) {
    case 0:
      return "CUDNN_STATUS_SUCCESS";
    case kDnnNotInitialized:
      return "CUDNN_STATUS_NOT_INITIALIZED";
    case kCudnnBadParam:
      return "CUDNN_STATUS_BAD_PARAM";
    case kCudnnUnsupported:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case kCudnnUnsupported + 2:
      return "CUDNN_STATUS_NOT_SUPPORTED_SHAPE";
    case 5000:
      return "CUDNN_STATUS_EXECUTION_FAILED";
    case kDnnCudartFailed:
      return "CUDNN_STATUS_EXECUTION_FAILED_CUDART";
  }
  return "CUDNN_STATUS_OF_THE_FAKE";
}

FAKE_EXPORT void cudnnGetLastErrorString(char* message, size_t bytes) {
  std::strncpy(message, last_dnn_error.c_str(), bytes);
  last_dnn_error.clear();
}

#define BEGIN_DNN(kind) \
  if (const int begin_error = BeginDnn(__func__, kind); begin_error != 0) return begin_error

FAKE_EXPORT int cudnnCreate(void** handle) {
  BEGIN_DNN(kMakes);
  return MakeObject(handle, DnnHandle(CurrentDevice()));
}

FAKE_EXPORT int cudnnDestroy(void* handle) {
  BEGIN_DNN(kMakes | kReleases);
  auto found = FindObject<DnnHandle>(handle, __func__);
  if (found != nullptr && found->device != CurrentDevice()) {
    Broken("cudnnDestroy: a handle of another device than the current one", 0);
  }
  return DestroyObject<DnnHandle>(handle, __func__, kCudnnBadParam);
}

FAKE_EXPORT int cudnnSetStream(void* object, void* stream) {
  BEGIN_DNN(kPlain);
  auto handle = FindObject<DnnHandle>(object, __func__);
  auto found = FindStream(stream, __func__);
  if (handle == nullptr || found == nullptr) return kCudnnBadParam;
  if (found->device != handle->device) return BrokenDnn("cudnnSetStream: of another device", 2007);
  handle->stream = stream;
  handle->has_stream = true;
  return 0;
}

FAKE_EXPORT int cudnnCreateTensorDescriptor(void** tensor) {
  BEGIN_DNN(kMakes);
  return MakeObject(tensor, DnnTensor{});
}

FAKE_EXPORT int cudnnDestroyTensorDescriptor(void* tensor) {
  BEGIN_DNN(kMakes | kReleases);
  return DestroyObject<DnnTensor>(tensor, __func__, kCudnnBadParam);
}

FAKE_EXPORT int cudnnCreateFilterDescriptor(void** filter) {
  BEGIN_DNN(kMakes);
  return MakeObject(filter, DnnFilter{});
}

FAKE_EXPORT int cudnnDestroyFilterDescriptor(void* filter) {
  BEGIN_DNN(kMakes | kReleases);
  return DestroyObject<DnnFilter>(filter, __func__, kCudnnBadParam);
}

FAKE_EXPORT int cudnnCreateConvolutionDescriptor(void** convolution) {
  BEGIN_DNN(kMakes);
  return MakeObject(convolution, DnnConvolution{});
}

FAKE_EXPORT int cudnnDestroyConvolutionDescriptor(void* convolution) {
  BEGIN_DNN(kMakes | kReleases);
  return DestroyObject<DnnConvolution>(convolution, __func__, kCudnnBadParam);
}

FAKE_EXPORT int cudnnCreateActivationDescriptor(void** activation) {
  BEGIN_DNN(kMakes);
  return MakeObject(activation, DnnActivation{});
}

FAKE_EXPORT int cudnnDestroyActivationDescriptor(void* activation) {
  BEGIN_DNN(kMakes | kReleases);
  return DestroyObject<DnnActivation>(activation, __func__, kCudnnBadParam);
}

/*! \brief Sets the sizes of a tensor or of filters, of float32 in NCHW. */
static int SetSizes(DnnTensor* tensor, int format, int type, int n, int c, int h, int w) {
  if (tensor == nullptr || n < 1 || c < 1 || h < 1 || w < 1) return kCudnnBadParam;
  if (format != 0 || type != 0) return kCudnnUnsupported;
  const int sizes[4] = {n, c, h, w};
  std::memcpy(tensor->sizes, sizes, sizeof(sizes));
  return 0;
}

FAKE_EXPORT int cudnnSetTensor4dDescriptor(void* tensor, int format, int type, int n, int c, int h,
                                           int w) {
  BEGIN_DNN(kMakes);
  return SetSizes(FindObject<DnnTensor>(tensor, __func__).get(), format, type, n, c, h, w);
}

FAKE_EXPORT int cudnnSetFilter4dDescriptor(void* filter, int type, int format, int k, int c, int h,
                                           int w) {
  BEGIN_DNN(kMakes);
  return SetSizes(FindObject<DnnFilter>(filter, __func__).get(), format, type, k, c, h, w);
}

FAKE_EXPORT int cudnnSetConvolution2dDescriptor(void* object, int pad_h, int pad_w, int stride_h,
                                                int stride_w, int dilation_h, int dilation_w,
                                                int mode, int compute_type) {
  BEGIN_DNN(kMakes);
  auto all = FindObject<DnnConvolution>(object, __func__);
  const bool is_valid =
      pad_h >= 0 && pad_w >= 0 && stride_h > 0 && stride_w > 0 && dilation_h > 0 && dilation_w > 0;
  if (all == nullptr || !is_valid) return kCudnnBadParam;
  if (mode != 1 || compute_type != 0) return kCudnnUnsupported;
  DnnConvolution set = *all;
  set.is_set = true;
  const int pairs[3][2] = {{pad_h, pad_w}, {stride_h, stride_w}, {dilation_h, dilation_w}};
  std::memcpy(set.padding, pairs[0], sizeof(pairs[0]));
  std::memcpy(set.strides, pairs[1], sizeof(pairs[1]));
  std::memcpy(set.dilation, pairs[2], sizeof(pairs[2]));
  *all = set;
  return 0;
}

FAKE_EXPORT int cudnnSetConvolutionGroupCount(void* object, int count) {
  BEGIN_DNN(kMakes);
  auto all = FindObject<DnnConvolution>(object, __func__);
  if (all == nullptr || count < 1) return kCudnnBadParam;
  all->groups = count;
  return 0;
}

FAKE_EXPORT int cudnnSetConvolutionMathType(void* object, int math) {
  BEGIN_DNN(kMakes);
  auto all = FindObject<DnnConvolution>(object, __func__);
  if (all == nullptr || math < 0 || math > 3) return kCudnnBadParam;
  all->math = math;
  return 0;
}

FAKE_EXPORT int cudnnSetActivationDescriptor(void* object, int mode, int nan, double) {
  BEGIN_DNN(kMakes);
  auto activation = FindObject<DnnActivation>(object, __func__);
  if (activation == nullptr) return kCudnnBadParam;
  if ((mode != 1 && mode != 5) || (nan != 0 && nan != 1)) return kCudnnUnsupported;
  activation->mode = mode;
  activation->keeps_nan = nan == 1;
  activation->is_set = true;
  return 0;
}

/*! \brief Offers one twice, one that is not deterministic, one too large, and one in a bad state.
 */
FAKE_EXPORT int cudnnGetConvolutionForwardAlgorithm_v7(void* handle, void* x, void* w,
                                                       void* convolution, void* y, int asked,
                                                       int* count, DnnAlgorithm* found) {
  BEGIN_DNN(kMakes);
  DnnProblem problem;
  *count = 0;
  if (!FindAllDnn(&problem, handle, x, w, convolution, y, __func__)) return kCudnnBadParam;
  if (!TheDnn().has_algorithms) return kCudnnUnsupported + 2;
  const DnnAlgorithm offered[] = {{0, 0, 1.0f, 0, 1, 3, {}},    {1, 0, 2.0f, 4096, 1, 3, {}},
                                  {0, 0, 3.0f, 0, 1, 0, {}},    {3, 0, 3.0f, 0, 0, 3, {}},
                                  {4, 0, 4.0f, 0, 1, 3, {}},    {6, 0, 5.0f, 0, 1, 3, {}},
                                  {7, 3000, -1.0f, 0, 1, 3, {}}};
  for (const DnnAlgorithm& each : offered) {
    if (*count < asked) found[(*count)++] = each;
  }
  return 0;
}

FAKE_EXPORT int cudnnGetConvolutionForwardWorkspaceSize(void* handle, void* x, void* w,
                                                        void* convolution, void* y, int algorithm,
                                                        size_t* bytes) {
  BEGIN_DNN(kMakes);
  DnnProblem problem;
  if (!FindAllDnn(&problem, handle, x, w, convolution, y, __func__)) return kCudnnBadParam;
  return CheckDnnAlgorithm(algorithm, problem, bytes);
}

FAKE_EXPORT int cudnnConvolutionForward(void* handle, const float* alpha, void* x_shape,
                                        const float* x, void* w_shape, const float* w,
                                        void* convolution, int algorithm, void* workspace,
                                        size_t workspace_bytes, const float* beta, void* y_shape,
                                        float* y) {
  BEGIN_DNN(kPlain);
  DnnProblem problem;
  if (!FindAllDnn(&problem, handle, x_shape, w_shape, convolution, y_shape, __func__)) {
    return kCudnnBadParam;
  }
  if (*alpha != 1 || *beta != 0) return BrokenDnn("cudnnConvolutionForward: scaled");
  return IssueConvolution(problem, {__func__, algorithm, x, w, workspace, workspace_bytes, 0,
                                    nullptr, nullptr, false, y});
}

FAKE_EXPORT int cudnnConvolutionBiasActivationForward(
    void* handle, const float* alpha, void* x_shape, const float* x, void* w_shape, const float* w,
    void* convolution, int algorithm, void* workspace, size_t workspace_bytes, const float* beta,
    void* z_shape, const float* z, void* bias_shape, const float* bias, void* activation,
    void* y_shape, float* y) {
  BEGIN_DNN(kPlain);
  DnnProblem problem;
  auto sum = FindObject<DnnTensor>(z_shape, __func__);
  auto channels = FindObject<DnnTensor>(bias_shape, __func__);
  auto act = FindObject<DnnActivation>(activation, __func__);
  if (!FindAllDnn(&problem, handle, x_shape, w_shape, convolution, y_shape, __func__) || !sum ||
      !channels || !act) {
    return kCudnnBadParam;
  }
  const auto broken = [](const char* text) {
    return BrokenDnn(std::string("cudnnConvolutionBiasActivationForward: ") + text);
  };
  if (!act->is_set) return broken("an activation that is not set");
  if (act->keeps_nan || algorithm == TheDnn().refused_when_fused) return kCudnnUnsupported;
  if (act->mode == 5 && algorithm != 1) return broken("the identity with another algorithm than 1");
  if (*alpha != 1) return broken("scaled");
  if (sum->count() != problem.y->count()) return broken("z is not as y");
  if (channels->count() != problem.y->sizes[1] || channels->sizes[1] != problem.y->sizes[1]) {
    return broken("a bias that is not one number for each channel");
  }
  if (bias == nullptr || z == nullptr) return broken("a null pointer");
  return IssueConvolution(problem, {__func__, algorithm, x, w, workspace, workspace_bytes, *beta, z,
                                    bias, act->mode == 1, y});
}

FAKE_EXPORT int cudnnAddTensor(void* object, const float* alpha, void* a_shape, const float* a,
                               const float* beta, void* y_shape, float* y) {
  BEGIN_DNN(kPlain);
  auto handle = FindObject<DnnHandle>(object, __func__);
  auto shape = FindObject<DnnTensor>(a_shape, __func__);
  auto whole = FindObject<DnnTensor>(y_shape, __func__);
  if (!handle || !shape || !whole) return kCudnnBadParam;
  if (*alpha != 1 || *beta != 1) return BrokenDnn("cudnnAddTensor: scaled");
  const bool is_bias = shape->count() == whole->sizes[1] && shape->sizes[1] == whole->sizes[1];
  if (!is_bias && shape->count() != whole->count()) return BrokenDnn("cudnnAddTensor: shapes");
  return IssueElementwise(*handle, __func__, shape.get(), a, false, *whole, y);
}

FAKE_EXPORT int cudnnActivationForward(void* object, void* activation, const float* alpha,
                                       void* x_shape, const float* x, const float* beta,
                                       void* y_shape, float* y) {
  BEGIN_DNN(kPlain);
  auto handle = FindObject<DnnHandle>(object, __func__);
  auto act = FindObject<DnnActivation>(activation, __func__);
  auto shape = FindObject<DnnTensor>(x_shape, __func__);
  auto whole = FindObject<DnnTensor>(y_shape, __func__);
  if (!handle || !act || !shape || !whole) return kCudnnBadParam;
  if (*alpha != 1 || *beta != 0 || x != y || !act->is_set || act->mode != 1 ||
      !act->keeps_nan) {
    return BrokenDnn("cudnnActivationForward: not a relu in place that keeps NaN");
  }
  return IssueElementwise(*handle, __func__, nullptr, nullptr, true, *whole, y);
}

/*! \brief version | has_algorithms | refused_when_fused: for tests. */
FAKE_EXPORT void fake_cudnn_set(const char* name, int64_t value) {
  std::lock_guard lock(TheDnn().mutex);
  const std::string what = name;
  if (what == "version") TheDnn().version = static_cast<size_t>(value);
  if (what == "has_algorithms") TheDnn().has_algorithms = value != 0;
  if (what == "refused_when_fused") TheDnn().refused_when_fused = static_cast<int>(value);
}
