// Guarded instructions of a program as workers take them, and their arguments in a slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "exec/devices/tvm_abi.h"
#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief An argument that is rows of a routed buffer: where it begins is known in the run. */
struct RowArgument {
  /*! \brief Position among the arguments of the call. */
  size_t argument;
  int32_t tensor;
  int64_t row_bytes;
};

/*! \brief What a guarded call does at one capacity. */
struct CapacityStep {
  int64_t capacity;
  int32_t kernel;
  std::vector<int32_t> tensors;  // [num_arguments]
  std::vector<RowArgument> rows;
  /*! \brief Among those of the queue: its number, and where its arguments begin in a slot. */
  size_t number;
  size_t first_argument;
  size_t first_view;
};

/*! \brief A branch of a router, as a guard reads it. */
struct GuardedBranch {
  const Router* router;
  int32_t branch;
};

/*! \brief A guarded instruction. */
struct BranchStep {
  GuardedBranch guard;
  When when;
  /*! \brief Place of its branch among those of all decisions. */
  size_t flag;
  /*! \brief Calls by capacity; the ones of the branch's capacities, -1: nothing is done there. */
  std::vector<CapacityStep> calls;
  std::vector<int32_t> call_of;  // [num_capacities]
  /*! \brief Copy: whether it is of rows, and of how many bytes each. */
  bool copies_rows;
  int64_t copied_row_bytes;
  /*! \brief Arguments are there so many times: an asynchronous queue reads those of all rounds when
   * its work runs. */
  size_t num_rounds;
  /*! \brief Loads of nested routers, which it writes: 0 where the branch is not active. */
  std::vector<int32_t> nested_loads;
  /*! \brief Of a prediction: its branch and those around it, of which one that is known not to be
   * active takes it back. */
  std::vector<GuardedBranch> doubts;
};

/*! \brief The guarded instructions of each queue, in order. [num_queues] */
std::vector<std::vector<BranchStep>> MakeBranchSteps(const Program& program);

/*! \brief The arguments of one queue's guarded calls in one slot. Of one thread at a time. */
class BranchArguments {
 public:
  /*! \param tensors of the slot, where they stay. [num_tensors] */
  BranchArguments(const std::vector<BranchStep>& steps, std::vector<DLTensor>* tensors);

  /*!
   * \brief The arguments of a call, of which rows begin at `first_row` of their buffers.
   * \param round below the step's `num_rounds`: calls of one number have one memory.
   */
  TVMValue* At(const CapacityStep& call, size_t round, int64_t first_row);

 private:
  const std::vector<DLTensor>& tensors_;
  std::vector<TVMValue> arguments_;
  std::vector<DLTensor> views_;
};

}  // namespace heteroplace::exec
