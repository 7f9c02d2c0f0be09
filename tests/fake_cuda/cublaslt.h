// What the files of the fake cuBLASLt share.
#pragma once

#include "library_objects.h"

namespace fake {

struct LtHandle : LibraryObject {
  explicit LtHandle(int at) : device(at) {}
  int device;
};

struct LtDescription : LibraryObject {
  int compute = 0;
  int32_t transpose_a = 0;
  int32_t transpose_b = 0;
  uint32_t epilogue = 1;
  const void* bias = nullptr;
};

struct LtLayout : LibraryObject {
  uint64_t rows = 0;
  uint64_t columns = 0;
  int64_t leading = 0;
  int32_t batch = 1;
  int64_t stride = 0;
};

struct LtPreference : LibraryObject {
  uint64_t workspace = 0;
  uint32_t alignments[4] = {256, 256, 256, 256};
};

/*! \brief Mark, number, digest of the product, alignment, scratch memory. */
struct LtAlgorithm {
  uint64_t data[8];
};

struct LtHeuristic {
  LtAlgorithm algorithm;
  size_t workspace;
  int state;
  float waves;
  int reserved[4];
};

struct LtState {
  std::mutex mutex;
  size_t version = 120903;
  bool has_algorithms = true;
};

LtState& TheLt();

/*! \brief What a product consists of, alive. */
struct LtProblem {
  std::shared_ptr<LtHandle> handle;
  std::shared_ptr<LtDescription> description;
  std::shared_ptr<LtLayout> a, b, c, d;
};

struct LtCall {
  float alpha, beta;
  const void *a, *b, *c;
  void* d;
  void* workspace;
  size_t workspace_bytes;
  LtAlgorithm algorithm;
};

/*! \brief As Begin, with a status of cuBLAS. */
int BeginLt(const char* function, unsigned kind);

/*! \brief Status of an algorithm for a product. */
int CheckAlgorithm(const LtAlgorithm& algorithm, const LtProblem& problem);

/*! \brief Checks memory and stream, and puts the product into the stream. */
int IssueProduct(const LtProblem& problem, const LtCall& call, void* stream);

}  // namespace fake
