// A product of the fake cuBLASLt: what it may touch, and its numbers.
#include <cmath>
#include <cstring>

#include "cublaslt.h"

using namespace fake;

namespace {

constexpr int kStatusInvalid = 7;

/*! \brief Bytes from the first to the last number of a batch of matrices. */
size_t SpanOf(const LtLayout& layout) {
  const auto one =
      static_cast<int64_t>(layout.columns - 1) * layout.leading + static_cast<int64_t>(layout.rows);
  return static_cast<size_t>(one + (layout.batch - 1) * layout.stride) * sizeof(float);
}

/*! \brief What a number is to a product in tf32 or half: its first ten bits. */
float Rounded(float value, int compute) {
  return compute == 68 ? value : RoundedToTenBits(value, compute == 74);
}

float Activated(float value, uint32_t epilogue) {
  if ((epilogue & 2) != 0) value = std::fmax(value, 0.0f);
  if ((epilogue & 32) != 0) {
    const double x = value;
    value = static_cast<float>(0.5 * x *
                               (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x))));
  }
  return value;
}

/*! \brief Copies of what a product was called with: it runs later. */
struct LateProduct {
  LtDescription description;
  LtLayout a, b, c, d;
  LtCall call;
  int device;

  /*! \brief Why it may not touch what it touches; empty: it may. */
  std::string WhyNot() const {
    std::string why = WhyNotUsable(call.a, SpanOf(a), device, "A");
    if (why.empty()) why = WhyNotUsable(call.b, SpanOf(b), device, "B");
    if (why.empty()) why = WhyNotUsable(call.c, SpanOf(c), device, "C");
    if (why.empty()) why = WhyNotUsable(call.d, SpanOf(d), device, "D");
    if (why.empty() && (description.epilogue & 4) != 0) {
      why = WhyNotUsable(description.bias, d.rows * sizeof(float), device, "the bias");
    }
    if (why.empty() && call.workspace_bytes != 0) {
      why = WhyNotUsable(call.workspace, call.workspace_bytes, device, "the scratch memory");
    }
    if (!why.empty()) return why;
    return WhyOverlapping();
  }

  std::string WhyOverlapping() const {
    const std::pair<const void*, size_t> parts[] = {{call.a, SpanOf(a)}, {call.b, SpanOf(b)}};
    for (const auto& [data, bytes] : parts) {
      if (!AreApart(data, bytes, call.d, SpanOf(d))) return "D overlaps what is multiplied";
      if (!AreApart(data, bytes, call.workspace, call.workspace_bytes)) {
        return "the scratch memory overlaps what is multiplied";
      }
    }
    if (call.c != call.d && !AreApart(call.c, SpanOf(c), call.d, SpanOf(d))) {
      return "D overlaps C in part";
    }
    if (!AreApart(call.d, SpanOf(d), call.workspace, call.workspace_bytes)) {
      return "the scratch memory overlaps D";
    }
    return "";
  }

  void Run() const {
    const std::string why = WhyNot();
    if (!why.empty()) {
      Broken("cublasLtMatmul: " + why, 0);
      SetFault(device, 700);
      return;
    }
    if (const int code = TakeExecutionFault("cublasLtMatmul"); code != 0)
      return SetFault(device, code);
    if (call.algorithm.data[1] == 0) std::this_thread::sleep_for(kSlowBy);
    // Whoever has something there loses it.
    if (call.workspace_bytes != 0) std::memset(call.workspace, 0xAB, call.workspace_bytes);
    for (int32_t batch = 0; batch < d.batch; ++batch) RunOne(batch);
  }

  void RunOne(int32_t batch) const {
    const float* left = static_cast<const float*>(call.a) + batch * a.stride;
    const float* right = static_cast<const float*>(call.b) + batch * b.stride;
    const float* before = static_cast<const float*>(call.c) + batch * c.stride;
    float* result = static_cast<float*>(call.d) + batch * d.stride;
    const auto* bias = static_cast<const float*>(description.bias);
    const auto depth = static_cast<int64_t>(description.transpose_a ? a.rows : a.columns);
    for (int64_t j = 0; j < static_cast<int64_t>(d.columns); ++j) {
      for (int64_t i = 0; i < static_cast<int64_t>(d.rows); ++i) {
        double sum = 0;
        for (int64_t l = 0; l < depth; ++l) {
          const float x = left[description.transpose_a ? l + i * a.leading : i + l * a.leading];
          const float y = right[description.transpose_b ? j + l * b.leading : l + j * b.leading];
          sum += double{Rounded(x, description.compute)} * Rounded(y, description.compute);
        }
        auto value = static_cast<float>(call.alpha * sum);
        if (call.beta != 0) value += call.beta * before[i + j * c.leading];
        if ((description.epilogue & 4) != 0) value += bias[i];
        result[i + j * d.leading] = Activated(value, description.epilogue);
      }
    }
  }
};

}  // namespace

int fake::IssueProduct(const LtProblem& problem, const LtCall& call, void* handle) {
  auto stream = FindStream(handle, "cublasLtMatmul");
  if (stream == nullptr) return kStatusInvalid;
  const auto broken = [](const std::string& text) {
    return Broken("cublasLtMatmul: " + text, kStatusInvalid);
  };
  if (stream->device != CurrentDevice()) return broken("the stream is not of the current device");
  if (problem.handle->device != stream->device) return broken("a handle of another device");
  if (call.workspace_bytes < call.algorithm.data[4]) return broken("too little scratch memory");
  if (reinterpret_cast<uintptr_t>(call.workspace) % kScratchAlignment != 0) {
    return broken("scratch memory that begins at no multiple of 256");
  }
  const bool has_bias = (problem.description->epilogue & 4) != 0;
  for (const void* data : {call.a, call.b, call.c, static_cast<const void*>(call.d)}) {
    if (reinterpret_cast<uintptr_t>(data) % call.algorithm.data[3] != 0) {
      return broken("a matrix is not aligned as the algorithm needs it");
    }
  }
  if (has_bias && problem.description->bias == nullptr) return broken("no bias");
  const LateProduct work{*problem.description, *problem.a, *problem.b,    *problem.c,
                         *problem.d,           call,       stream->device};
  if (const std::string why = work.WhyNot(); !why.empty()) return broken(why);
  LoadCode(*stream, "cublasLtMatmul", call.algorithm.data[1]);
  Issue(stream.get(), {[work] { work.Run(); }});
  return 0;
}
