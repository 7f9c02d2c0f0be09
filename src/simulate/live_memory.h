#pragma once

#include <cstdint>
#include <vector>

#include "model/problem.h"
#include "simulate/simulator.h"

namespace heteroplace::simulate {

/*!
 * \brief Bytes that are live in each memory while a plan runs.
 *
 * Weights are live always, a workspace while its run runs, an item of a tensor from the start of
 * the step that brings it to a memory until the finish of the last step that reads it there. Model
 * inputs in the host memory are live always; outputs stay in the host memory, or where they are
 * made if there is no host. Intervals are half open: what starts when something else ends does not
 * meet it, and what takes no time counts nothing.
 *
 * Steps are told in plan order; then Peaks() sorts their starts and finishes once.
 */
class LiveMemory {
 public:
  LiveMemory(const model::Problem& problem, int num_items, size_t num_steps);

  /*! \brief Charges weights for the whole run. */
  void AddWeights(int task, int device);
  /*! \brief Charges bytes from the start of a step, in the memory where it writes. */
  void Begin(int step, int64_t bytes) { begin_bytes_[step] += bytes; }
  /*! \brief Frees bytes at the finish of a step, in the memory where it writes. */
  void EndWritten(int step, int64_t bytes) { end_written_bytes_[step] += bytes; }
  /*! \brief Frees bytes at the finish of a step, in the memory where it reads. */
  void EndRead(int step, int64_t bytes) { end_read_bytes_[step] += bytes; }
  /*! \brief Whether a tensor that a run or a copy brings to a memory is live to the end. */
  bool IsKept(int tensor, int memory, model::StepKind maker) const;
  /*! \brief Fills the peaks of `times` from its starts and finishes. */
  void FindPeaks(const model::Steps& steps, Times& times) const;

 private:
  const model::Problem& problem_;
  std::vector<int64_t> base_bytes_;         // [num_memories], live always
  std::vector<int64_t> begin_bytes_;        // [num_steps]
  std::vector<int64_t> end_written_bytes_;  // [num_steps]
  std::vector<int64_t> end_read_bytes_;     // [num_steps]
};

}  // namespace heteroplace::simulate
