// A cuBLASLt that computes on the host: handles, descriptions, algorithms and products.
//
// Nothing of it may be made during a run or a capture, and the code of an algorithm comes to a
// device at its first product, which must be in neither. See cublaslt_product.cc for the products.
#include "cublaslt.h"

#include <cstring>

using namespace fake;

namespace {

constexpr uint64_t kMagic = 0xCB1A5;
constexpr int kNotInitialized = 1;
constexpr int kLtInvalidValue = 7;
constexpr int kInternalError = 14;
constexpr int kNotSupported = 15;

/*! \brief What a product is, as far as its algorithms hang on it. */
uint64_t DigestOf(const LtDescription& description, const LtLayout& a, const LtLayout& b,
                  const LtLayout& d) {
  uint64_t digest = 1469598103934665603u;
  const auto mix = [&digest](uint64_t value) { digest = (digest ^ value) * 1099511628211u; };
  for (int value : {description.compute, description.transpose_a, description.transpose_b}) {
    mix(static_cast<uint64_t>(value));
  }
  mix(description.epilogue);
  for (const LtLayout* layout : {&a, &b, &d}) {
    mix(layout->rows);
    mix(layout->columns);
    mix(static_cast<uint64_t>(layout->leading));
    mix(static_cast<uint64_t>(layout->batch));
    mix(static_cast<uint64_t>(layout->stride));
  }
  return digest;
}

/*! \brief Whether the shapes belong together. */
bool Fits(const LtDescription& description, const LtLayout& a, const LtLayout& b,
          const LtLayout& d) {
  const uint64_t rows = description.transpose_a ? a.columns : a.rows;
  const uint64_t depth = description.transpose_a ? a.rows : a.columns;
  const uint64_t b_depth = description.transpose_b ? b.columns : b.rows;
  const uint64_t columns = description.transpose_b ? b.rows : b.columns;
  return rows == d.rows && columns == d.columns && depth == b_depth && a.batch == d.batch &&
         b.batch == d.batch && a.leading >= static_cast<int64_t>(a.rows) &&
         b.leading >= static_cast<int64_t>(b.rows) && d.leading >= static_cast<int64_t>(d.rows);
}

/*! \brief All that describes a product; false after a report. */
bool FindAll(LtProblem* problem, void* handle, void* description, void* a, void* b, void* c,
             void* d, const char* function) {
  problem->handle = FindObject<LtHandle>(handle, function);
  problem->description = FindObject<LtDescription>(description, function);
  problem->a = FindObject<LtLayout>(a, function);
  problem->b = FindObject<LtLayout>(b, function);
  problem->c = FindObject<LtLayout>(c, function);
  problem->d = FindObject<LtLayout>(d, function);
  return problem->handle && problem->description && problem->a && problem->b && problem->c &&
         problem->d;
}

/*! \brief Reads an attribute of a known size. */
template <typename Value>
int Take(Value* value, const void* data, size_t bytes, const char* function) {
  if (bytes != sizeof(Value)) {
    return Broken(std::string(function) + ": an attribute of another size", kLtInvalidValue);
  }
  std::memcpy(value, data, bytes);
  return 0;
}

LtAlgorithm MakeAlgorithm(uint64_t index, uint64_t digest) {
  static constexpr uint64_t kAlignments[] = {4, 64, 256};
  static constexpr uint64_t kWorkspaces[] = {0, 4096, 1 << 20};
  return {{kMagic, index, digest, kAlignments[index], kWorkspaces[index], 0, 0, ~index}};
}

}  // namespace

LtState& fake::TheLt() {
  static LtState* state = new LtState;
  return *state;
}

int fake::BeginLt(const char* function, unsigned kind) {
  const int error = Begin(function, kind);
  return error == 0 || (error > 0 && error < 17) ? error : kInternalError;
}

int fake::CheckAlgorithm(const LtAlgorithm& algorithm, const LtProblem& problem) {
  if (algorithm.data[0] != kMagic || algorithm.data[1] > 2) return kLtInvalidValue;
  if (!Fits(*problem.description, *problem.a, *problem.b, *problem.d)) return kLtInvalidValue;
  const uint64_t digest = DigestOf(*problem.description, *problem.a, *problem.b, *problem.d);
  return algorithm.data[2] == digest ? 0 : kNotSupported;
}

FAKE_EXPORT size_t cublasLtGetVersion() { return TheLt().version; }

FAKE_EXPORT const char* cublasLtGetStatusString(int status) {
  switch (status) {
    case 0:
      return "CUBLAS_STATUS_SUCCESS";
    case kNotInitialized:
      return "CUBLAS_STATUS_NOT_INITIALIZED";
    case 3:
      return "CUBLAS_STATUS_ALLOC_FAILED";
    case kLtInvalidValue:
      return "CUBLAS_STATUS_INVALID_VALUE";
    case 13:
      return "CUBLAS_STATUS_EXECUTION_FAILED";
    case kInternalError:
      return "CUBLAS_STATUS_INTERNAL_ERROR";
    case kNotSupported:
      return "CUBLAS_STATUS_NOT_SUPPORTED";
  }
  return "CUBLAS_STATUS_OF_THE_FAKE";
}

#define BEGIN_LT(kind) \
  if (const int begin_error = BeginLt(__func__, kind); begin_error != 0) return begin_error

FAKE_EXPORT int cublasLtCreate(void** handle) {
  BEGIN_LT(kMakes);
  return MakeObject(handle, LtHandle(CurrentDevice()));
}

FAKE_EXPORT int cublasLtDestroy(void* handle) {
  BEGIN_LT(kMakes | kReleases);
  auto found = FindObject<LtHandle>(handle, __func__);
  if (found != nullptr && found->device != CurrentDevice()) {
    Broken("cublasLtDestroy: a handle of another device than the current one", 0);
  }
  return DestroyObject<LtHandle>(handle, __func__, kLtInvalidValue);
}

FAKE_EXPORT int cublasLtMatmulDescCreate(void** description, int compute, int scale) {
  BEGIN_LT(kMakes);
  if (scale != 0 || (compute != 68 && compute != 74 && compute != 77)) return kNotSupported;
  LtDescription made;
  made.compute = compute;
  return MakeObject(description, made);
}

FAKE_EXPORT int cublasLtMatmulDescDestroy(void* description) {
  BEGIN_LT(kMakes | kReleases);
  return DestroyObject<LtDescription>(description, __func__, kLtInvalidValue);
}

FAKE_EXPORT int cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* data,
                                               size_t bytes) {
  BEGIN_LT(kPlain);
  auto description = FindObject<LtDescription>(handle, __func__);
  if (description == nullptr) return kLtInvalidValue;
  if (attribute == 3) return Take(&description->transpose_a, data, bytes, __func__);
  if (attribute == 4) return Take(&description->transpose_b, data, bytes, __func__);
  if (attribute == 7) return Take(&description->epilogue, data, bytes, __func__);
  if (attribute == 8) return Take(&description->bias, data, bytes, __func__);
  return Broken("cublasLtMatmulDescSetAttribute: unknown attribute", kLtInvalidValue);
}

FAKE_EXPORT int cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns,
                                           int64_t leading) {
  BEGIN_LT(kMakes);
  if (type != 0) return kNotSupported;
  LtLayout made;
  made.rows = rows;
  made.columns = columns;
  made.leading = leading;
  return MakeObject(layout, made);
}

FAKE_EXPORT int cublasLtMatrixLayoutDestroy(void* layout) {
  BEGIN_LT(kMakes | kReleases);
  return DestroyObject<LtLayout>(layout, __func__, kLtInvalidValue);
}

FAKE_EXPORT int cublasLtMatrixLayoutSetAttribute(void* handle, int attribute, const void* data,
                                                 size_t bytes) {
  BEGIN_LT(kMakes);
  auto layout = FindObject<LtLayout>(handle, __func__);
  if (layout == nullptr) return kLtInvalidValue;
  if (attribute == 5) return Take(&layout->batch, data, bytes, __func__);
  if (attribute == 6) return Take(&layout->stride, data, bytes, __func__);
  return Broken("cublasLtMatrixLayoutSetAttribute: unknown attribute", kLtInvalidValue);
}

FAKE_EXPORT int cublasLtMatmulPreferenceCreate(void** preference) {
  BEGIN_LT(kMakes);
  return MakeObject(preference, LtPreference{});
}

FAKE_EXPORT int cublasLtMatmulPreferenceDestroy(void* preference) {
  BEGIN_LT(kMakes | kReleases);
  return DestroyObject<LtPreference>(preference, __func__, kLtInvalidValue);
}

FAKE_EXPORT int cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* data,
                                                     size_t bytes) {
  BEGIN_LT(kMakes);
  auto preference = FindObject<LtPreference>(handle, __func__);
  if (preference == nullptr) return kLtInvalidValue;
  if (attribute == 1) return Take(&preference->workspace, data, bytes, __func__);
  if (attribute >= 5 && attribute <= 8) {
    return Take(&preference->alignments[attribute - 5], data, bytes, __func__);
  }
  return Broken("cublasLtMatmulPreferenceSetAttribute: unknown attribute", kLtInvalidValue);
}

/*! \brief Offers the slow algorithm, one that cannot be had, and what memory and alignment allow.
 */
FAKE_EXPORT int cublasLtMatmulAlgoGetHeuristic(void* handle, void* description, void* a, void* b,
                                               void* c, void* d, void* wish, int asked,
                                               LtHeuristic* found, int* count) {
  BEGIN_LT(kMakes);
  LtProblem problem;
  auto preference = FindObject<LtPreference>(wish, __func__);
  *count = 0;
  if (!FindAll(&problem, handle, description, a, b, c, d, __func__) || preference == nullptr) {
    return kLtInvalidValue;
  }
  if (!Fits(*problem.description, *problem.a, *problem.b, *problem.d)) return kLtInvalidValue;
  if (!TheLt().has_algorithms) return kNotSupported;
  const uint64_t digest = DigestOf(*problem.description, *problem.a, *problem.b, *problem.d);
  for (uint64_t index = 0; index < 3 && *count < asked; ++index) {
    const LtAlgorithm algorithm = MakeAlgorithm(index, digest);
    bool is_allowed = algorithm.data[4] <= preference->workspace;
    for (uint32_t alignment : preference->alignments) {
      is_allowed = is_allowed && algorithm.data[3] <= alignment;
    }
    if (!is_allowed) continue;
    found[(*count)++] = {algorithm, algorithm.data[4], 0, 1.0f, {}};
    if (index == 0 && *count < asked) found[(*count)++] = {{}, 0, kNotSupported, 0.0f, {}};
  }
  return 0;
}

FAKE_EXPORT int cublasLtMatmulAlgoCheck(void* handle, void* description, void* a, void* b, void* c,
                                        void* d, const LtAlgorithm* algorithm, LtHeuristic* found) {
  BEGIN_LT(kMakes);
  LtProblem problem;
  if (!FindAll(&problem, handle, description, a, b, c, d, __func__)) return kLtInvalidValue;
  const int status = CheckAlgorithm(*algorithm, problem);
  *found = {*algorithm, algorithm->data[4], status, 1.0f, {}};
  return status;
}

FAKE_EXPORT int cublasLtMatmul(void* handle, void* description, const float* alpha, const void* a,
                               void* a_layout, const void* b, void* b_layout, const float* beta,
                               const void* c, void* c_layout, void* d, void* d_layout,
                               const LtAlgorithm* algorithm, void* workspace,
                               size_t workspace_bytes, void* stream) {
  BEGIN_LT(kPlain);
  LtProblem problem;
  if (!FindAll(&problem, handle, description, a_layout, b_layout, c_layout, d_layout, __func__)) {
    return kLtInvalidValue;
  }
  if (const int status = CheckAlgorithm(*algorithm, problem); status != 0) return status;
  const LtCall call{*alpha, *beta, a, b, c, d, workspace, workspace_bytes, *algorithm};
  return IssueProduct(problem, call, stream);
}

/*! \brief version | has_algorithms: for tests. */
FAKE_EXPORT void fake_cublaslt_set(const char* name, int64_t value) {
  std::lock_guard lock(TheLt().mutex);
  const std::string what = name;
  if (what == "version") TheLt().version = static_cast<size_t>(value);
  if (what == "has_algorithms") TheLt().has_algorithms = value != 0;
}
