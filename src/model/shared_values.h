#pragma once

#include <cstdint>
#include <vector>

#include "model/csr.h"

namespace heteroplace::model {

/*!
 * \brief What items, steps and tasks share, and routed buffers, as model/graph.py says it. Solvers
 * never see it: only the simulator does. Default: nothing is shared.
 */
struct SharedValues {
  std::vector<uint8_t> is_shared;     // [num_tensors], one value for all items; or empty
  std::vector<uint8_t> adds;          // [num_tasks], its shared outputs are added to; or empty
  std::vector<int> state_of;          // [num_tensors], model input that it replaces, -1; or empty
  Csr weights;                        // [num_tasks], positions in weight_bytes; or no rows
  std::vector<int64_t> weight_bytes;  // of weights that tasks share
  std::vector<int> buffer_of;         // [num_tensors], in buffer_bytes, -1: none; or empty
  std::vector<int64_t> buffer_bytes;  // of routed buffers, once in a memory for all their tensors

  /*! \brief Whether the tensor has one value for all items in a memory. */
  bool IsShared(int tensor) const { return !is_shared.empty() && is_shared[tensor] != 0; }
  /*! \brief Whether a run of the task adds to the tensor, which it makes. */
  bool Adds(int task, int tensor) const {
    return !adds.empty() && adds[task] != 0 && IsShared(tensor);
  }
  /*! \brief The routed buffer in which the tensor lies; -1: none. */
  int BufferOf(int tensor) const { return buffer_of.empty() ? -1 : buffer_of[tensor]; }
  /*! \brief The model input that the tensor replaces; -1: none. */
  int StateOf(int tensor) const { return state_of.empty() ? -1 : state_of[tensor]; }
  /*! \brief Whether the tensor is replaced from run to run. O(1). */
  bool IsState(int tensor) const { return !is_state.empty() && is_state[tensor] != 0; }
  /*! \brief Fills what follows from the rest. */
  void Finish() {
    is_state.assign(state_of.size(), 0);
    for (int state : state_of) {
      if (state >= 0) is_state[state] = 1;
    }
  }

  // Derived by Finish().
  std::vector<uint8_t> is_state;  // [num_tensors]; or empty
};

}  // namespace heteroplace::model
