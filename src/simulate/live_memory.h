#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "model/problem.h"
#include "simulate/simulator.h"

namespace heteroplace::simulate {

/*!
 * \brief Bytes that are live in each memory while a plan runs, as the memory plan of a compiled
 * program needs them: the rule by lifetime of model/memory_use/live_memory.py.
 *
 * Weights, and for each device its largest workspace, are live always; model inputs in the host
 * memory too, and state where it is updated. A tensor in a memory is live from the step that brings
 * it there to the last step that reads it there, both included, in plan order; and further as long
 * as that reader is not done when a later step that brings something to that memory starts, so that
 * whoever takes its bytes need not wait. Outputs stay in the host memory, or where they are made if
 * there is no host. Bytes are looked at whenever a step brings some.
 *
 * Steps are told in plan order; then FindPeaks() walks over them once. O(values * log values).
 */
class LiveMemory {
 public:
  LiveMemory(const model::Problem& problem, int num_items, size_t num_steps);

  /*! \brief Charges a batch: its workspace, and the weights unless the device has them. */
  void AddBatch(int task, int device, int num_items, bool has_weights);
  /*! \brief Charges bytes that are in a memory always. */
  void AddHeld(int memory, int64_t bytes) { base_bytes_[memory] += bytes; }
  /*!
   * \brief Charges an item of a tensor in a memory.
   * \param first Step that brings it.  \param last Last step that brings or reads it there.
   * \param end_ns When all steps that bring or read it are done.
   */
  void AddTensor(int tensor, int memory, int first, int last, int64_t end_ns);
  /*! \brief Charges bytes that are no tensor's in the same way. */
  void AddBytes(int64_t bytes, int memory, int first, int last, int64_t end_ns);
  /*! \brief Charges a tensor to the end instead. */
  void AddKept(int tensor, int memory, int first) {
    Begins(problem_.tensor_bytes[tensor], memory, first);
  }
  /*! \brief Whether a tensor that is made in a memory, or copied there, is live to the end. */
  bool IsKept(int tensor, int memory, bool is_copied) const;
  /*! \brief Fills the peaks of `times` from its starts. */
  void FindPeaks(Times& times);

 private:
  /*! \brief Bytes that are free when all steps up to `last` have begun and `end_ns` has come. */
  struct Release {
    int last;
    int memory;
    int64_t end_ns;
    int64_t bytes;
  };

  /*! \brief Bytes that begin with a step. */
  struct Begin {
    int step;
    int memory;
    int64_t bytes;
    int64_t freed;  // before that
  };

  /*! \brief Notes bytes that a step brings to a memory. */
  void Begins(int64_t bytes, int memory, int first);
  /*!
   * \brief Bytes that are free when a step brings something to its memory, [num_steps]; those of
   * `elsewhere_` are noted there.
   *
   * A release counts with the first step behind its last reader that brings something to the memory
   * and starts when all that touch the value are done, as all such steps from there on do.
   */
  std::vector<int64_t> Free(const std::vector<int64_t>& start_ns);
  /*! \brief The first entry of `elsewhere_`, which is sorted, of a step and a memory. */
  Begin& AtElsewhere(int step, int memory);
  /*! \brief Counts what steps bring against the peak of a memory. */
  static void Count(const Begin& begin, std::vector<int64_t>& live, Times& times);

  const model::Problem& problem_;
  std::vector<int64_t> base_bytes_;  // [num_memories], live always
  std::vector<int64_t> workspace_;   // [num_devices], largest so far
  std::vector<int64_t> brought_;     // [num_steps], bytes that begin with the step
  std::vector<int> memory_;          // [num_steps], where they begin; -1: none do
  std::vector<Begin> elsewhere_;     // what a step brings to other memories than its first one
  std::vector<Release> releases_;
};

}  // namespace heteroplace::simulate
