// What an executor is made from, out of Python's values, and what a program consists of.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bind/gil.h"
#include "exec/engine/image.h"
#include "exec/program/program.h"

namespace heteroplace::bind {

using BlobArray =
    nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

/*! \brief Keeps an array alive as long as a worker may read it, whichever thread drops it. */
inline std::shared_ptr<const void> Kept(const BlobArray& blob) {
  return {new BlobArray(blob), [](const void* array) {
            // At the end of the interpreter nothing is freed any more.
            if (!IsFinalizing()) {
              const WithGil locked;
              delete static_cast<const BlobArray*>(array);
            }
          }};
}

inline exec::ExecutorSource SourceOf(const std::string& libtvm_path,
                                     const std::string& library_path,
                                     const std::string& program_text,
                                     const std::optional<BlobArray>& blob, int max_in_flight,
                                     std::optional<bool> helping, bool cuda_graphs,
                                     bool cuda_words) {
  exec::ExecutorSource source;
  source.libtvm_path = libtvm_path;
  source.library_path = library_path;
  source.program_text = program_text;
  source.max_in_flight = max_in_flight;
  source.helping = helping;
  source.has_cuda_graphs = cuda_graphs;
  source.has_cuda_words = cuda_words;
  if (blob.has_value()) {
    source.blob = {blob->data(), static_cast<int64_t>(blob->size()), Kept(*blob)};
  }
  return source;
}

/*! \brief (queue, index, step, kernel or "") of every instruction, in the order of the times. */
inline std::vector<std::tuple<int32_t, int32_t, int64_t, std::string>> DescribeInstructions(
    const exec::Program& program) {
  std::vector<std::tuple<int32_t, int32_t, int64_t, std::string>> rows;
  for (size_t q = 0; q < program.queues.size(); ++q) {
    for (size_t i = 0; i < program.queues[q].instructions.size(); ++i) {
      const exec::Instruction& at = program.queues[q].instructions[i];
      rows.emplace_back(
          static_cast<int32_t>(q), static_cast<int32_t>(i), at.step,
          at.IsCall() ? program.kernels[static_cast<size_t>(at.kernel)] : std::string());
    }
  }
  return rows;
}

inline std::vector<std::string> DescribeQueues(const exec::Program& program) {
  std::vector<std::string> names;
  for (const exec::Queue& queue : program.queues) names.push_back(queue.name);
  return names;
}

}  // namespace heteroplace::bind
