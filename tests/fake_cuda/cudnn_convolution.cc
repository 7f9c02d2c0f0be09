// What the fake cuDNN computes: what it may touch, and its numbers.
#include <cmath>
#include <cstring>
#include <tuple>

#include "cudnn.h"

using namespace fake;

namespace {

constexpr uintptr_t kDnnAlignment = 16;

float DnnRounded(float value, int math) {
  return math == 3 ? value : RoundedToTenBits(value, math == 2);
}

float ReluOf(float value) { return std::isnan(value) ? value : std::fmax(value, 0.0f); }

/*! \brief Copies of what a convolution was called with: it runs later. */
struct LateConvolution {
  DnnTensor x, y;
  DnnFilter w;
  DnnConvolution all;
  DnnCall call;
  int device;

  static size_t BytesOf(const DnnTensor& tensor) {
    return static_cast<size_t>(tensor.count()) * sizeof(float);
  }

  /*! \brief Why it may not touch what it touches; empty: it may. */
  std::string WhyNot() const {
    const size_t bias_bytes = static_cast<size_t>(y.sizes[1]) * sizeof(float);
    const std::tuple<const void*, size_t, const char*> parts[] = {
        {call.x, BytesOf(x), "x"},
        {call.w, BytesOf(w), "w"},
        {call.bias, call.bias == nullptr ? 0 : bias_bytes, "the bias"},
        {call.z, call.z == nullptr ? 0 : BytesOf(y), "z"},
        {call.workspace, call.workspace_bytes, "the scratch memory"}};
    std::string why = WhyNotUsable(call.y, BytesOf(y), device, "y");
    for (const auto& [data, bytes, name] : parts) {
      if (bytes == 0 || !why.empty()) continue;
      why = WhyNotUsable(data, bytes, device, name);
      if (why.empty() && data != call.z && !AreApart(data, bytes, call.y, BytesOf(y))) {
        why = std::string("y overlaps ") + name;
      }
      if (why.empty() && data != call.workspace &&
          !AreApart(data, bytes, call.workspace, call.workspace_bytes)) {
        why = std::string("the scratch memory overlaps ") + name;
      }
    }
    if (why.empty() && call.z != nullptr && call.z != call.y &&
        !AreApart(call.z, BytesOf(y), call.y, BytesOf(y))) {
      why = "y overlaps z in part";
    }
    return why;
  }

  void Run() const {
    const std::string why = WhyNot();
    if (!why.empty()) {
      Broken(std::string(call.function) + ": " + why, 0);
      SetFault(device, 700);
      return;
    }
    if (const int code = TakeExecutionFault(call.function); code != 0) {
      return SetFault(device, code);
    }
    if (call.algorithm == 0) std::this_thread::sleep_for(kSlowBy);
    // Whoever has something there loses it.
    if (call.workspace_bytes != 0) std::memset(call.workspace, 0xAB, call.workspace_bytes);
    int64_t at = 0;
    for (int n = 0; n < y.sizes[0]; ++n) {
      for (int k = 0; k < y.sizes[1]; ++k) {
        for (int i = 0; i < y.sizes[2]; ++i) {
          for (int j = 0; j < y.sizes[3]; ++j) Store(at++, k, SumAt(n, k, i, j));
        }
      }
    }
  }

  void Store(int64_t at, int channel, double sum) const {
    auto value = static_cast<float>(sum);
    if (call.z != nullptr && call.beta != 0) value += call.beta * call.z[at];
    if (call.bias != nullptr) value += call.bias[channel];
    call.y[at] = call.is_relu ? ReluOf(value) : value;
  }

  double SumAt(int n, int k, int i, int j) const {
    const int group = k / (w.sizes[0] / all.groups);
    double sum = 0;
    for (int c = 0; c < w.sizes[1]; ++c) {
      for (int r = 0; r < w.sizes[2]; ++r) {
        const int row = i * all.strides[0] - all.padding[0] + r * all.dilation[0];
        if (row < 0 || row >= x.sizes[2]) continue;
        for (int s = 0; s < w.sizes[3]; ++s) {
          const int column = j * all.strides[1] - all.padding[1] + s * all.dilation[1];
          if (column < 0 || column >= x.sizes[3]) continue;
          const int64_t plane = int64_t{n} * x.sizes[1] + group * w.sizes[1] + c;
          const float value = call.x[(plane * x.sizes[2] + row) * x.sizes[3] + column];
          const int64_t filter = int64_t{k} * w.sizes[1] + c;
          const float weight = call.w[(filter * w.sizes[2] + r) * w.sizes[3] + s];
          sum += double{DnnRounded(value, all.math)} * DnnRounded(weight, all.math);
        }
      }
    }
    return sum;
  }
};

/*! \brief The stream of a handle; null after a report. */
std::shared_ptr<Stream> StreamOf(const DnnHandle& handle, const char* function) {
  const std::string name = function;
  if (!handle.has_stream) {
    BrokenDnn(name + ": no stream was set");
    return nullptr;
  }
  auto stream = FindStream(handle.stream, function);
  if (stream != nullptr && stream->device != CurrentDevice()) {
    BrokenDnn(name + ": the stream is not of the current device");
    return nullptr;
  }
  return stream;
}

bool IsMisaligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kDnnAlignment; }

}  // namespace

int fake::IssueConvolution(const DnnProblem& problem, const DnnCall& call) {
  auto stream = StreamOf(*problem.handle, call.function);
  if (stream == nullptr) return kCudnnBadParam;
  const auto broken = [&](const std::string& text) {
    return BrokenDnn(std::string(call.function) + ": " + text);
  };
  size_t needed = 0;
  if (const int status = CheckDnnAlgorithm(call.algorithm, problem, &needed); status != 0) {
    return status;
  }
  if (call.workspace_bytes < needed) return broken("too little scratch memory");
  if (reinterpret_cast<uintptr_t>(call.workspace) % kScratchAlignment != 0) {
    return broken("scratch memory that begins at no multiple of 256");
  }
  for (const void* data : {static_cast<const void*>(call.x), static_cast<const void*>(call.w),
                           static_cast<const void*>(call.z), static_cast<const void*>(call.bias),
                           static_cast<const void*>(call.y)}) {
    if (IsMisaligned(data)) return broken("a pointer that is not aligned");
  }
  const LateConvolution work{*problem.x,           *problem.y, *problem.w,
                             *problem.convolution, call,       stream->device};
  if (const std::string why = work.WhyNot(); !why.empty()) return broken(why);
  LoadCode(*stream, call.function, static_cast<uint64_t>(call.algorithm));
  Issue(stream.get(), {[work] { work.Run(); }});
  return 0;
}

int fake::IssueElementwise(const DnnHandle& handle, const char* function, const DnnTensor* a_shape,
                           const float* a, bool is_relu, const DnnTensor& y_shape, float* y) {
  auto stream = StreamOf(handle, function);
  if (stream == nullptr) return kCudnnBadParam;
  const auto bytes = static_cast<size_t>(y_shape.count()) * sizeof(float);
  const int64_t a_count = a_shape == nullptr ? 0 : a_shape->count();
  const auto why_not = [=, device = stream->device]() -> std::string {
    std::string why = WhyNotUsable(y, bytes, device, "y");
    if (why.empty() && a_count != 0) {
      why = WhyNotUsable(a, static_cast<size_t>(a_count) * sizeof(float), device, "a");
    }
    return why;
  };
  if (const std::string why = why_not(); !why.empty()) {
    return BrokenDnn(std::string(function) + ": " + why);
  }
  if (IsMisaligned(a) || IsMisaligned(y)) {
    return BrokenDnn(std::string(function) + ": a pointer that is not aligned");
  }
  LoadCode(*stream, function, 0);
  const DnnTensor whole = y_shape;
  Issue(stream.get(), {[=, device = stream->device] {
          if (const std::string why = why_not(); !why.empty()) {
            Broken(std::string(function) + ": " + why, 0);
            return SetFault(device, 700);
          }
          if (const int code = TakeExecutionFault(function); code != 0) {
            return SetFault(device, code);
          }
          const int64_t plane = int64_t{whole.sizes[2]} * whole.sizes[3];
          for (int64_t at = 0; at < whole.count(); ++at) {
            if (a_count == whole.count()) y[at] += a[at];
            if (a_count != 0 && a_count != whole.count()) y[at] += a[at / plane % whole.sizes[1]];
            if (is_relu) y[at] = ReluOf(y[at]);
          }
        }});
  return 0;
}
