// The weights of a compiled file: checked through a small buffer, then mapped where they lie.
#pragma once

#include "exec/file/parts.h"

namespace heteroplace::exec {

/*!
 * \brief Checks the digest of every chunk of the weights, on some threads.
 *
 * They are read through the system's cache of files and not mapped, so that the process holds
 * no more of them than a buffer per thread.
 * \throws Error kArtifact: the first chunk that differs.
 */
void CheckWeights(const OpenFile& file, const FileParts& parts);

/*! \brief Weights as read-only memory, of which pages are read when they are first used. */
class WeightsMap {
 public:
  /*! \throws Error kExecution: the system cannot map them. */
  WeightsMap(const OpenFile& file, const FilePart& weights);
  ~WeightsMap();
  WeightsMap(const WeightsMap&) = delete;
  WeightsMap& operator=(const WeightsMap&) = delete;

  const void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
};

}  // namespace heteroplace::exec
