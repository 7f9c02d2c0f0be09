// Instructions of a program as a worker does them: with all pointers resolved.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "exec/devices/tvm_abi.h"
#include "exec/engine/sync.h"
#include "exec/program/program.h"
#include "exec/team/team.h"
#include "exec/workers/branch_steps.h"
#include "exec/workers/lane_list.h"

namespace heteroplace::exec {

class Worker;

/*! \brief Guarded calls whose branches are done side by side. */
struct BoundGroup {
  BoundGroup(Worker* leader, size_t place, std::vector<Lane> all)
      : owner(leader), number(place), lanes(std::move(all)), list(lanes.size()) {}

  /*! \brief Of the queue in which they are, and its place among the groups there. */
  Worker* owner;
  size_t number;
  std::vector<Lane> lanes;
  LaneList list;
};

/*! \brief A wait: for a counter, and for an event where the other queue is asynchronous. */
struct BoundWait {
  Progress* progress;
  /*! \brief Request k waits for k * `length` + `count`. */
  int64_t count;
  int64_t length;
  /*! \brief The other queue, and the place of the event among its events in a slot; -1: none. */
  int32_t queue;
  int32_t event;
  /*! \brief Whether the device of the other queue writes how far it is; else that event tells. */
  bool has_word;
  /*! \brief The counter of the other queue, of a core, as this queue's stream can wait for it; 0:
   * the thread waits. */
  uint64_t counter;
};

/*! \brief An instruction with all of it that is the same in every request. */
struct BoundInstruction {
  Opcode opcode;
  bool is_awaited;
  /*! \brief Whether others have joined it, who leave when it is told. */
  bool has_joins = false;
  /*! \brief Whether the thread of a stream waits itself, as it reads what is waited for. */
  bool waits_on_host = false;
  /*! \brief Whether it copies from or to memory of the host that a request changes. */
  bool is_of_host = false;
  /*! \brief Whether a group does it. */
  bool is_grouped = false;
  /*! \brief Whether a message waits for it. */
  bool is_sent = false;
  /*! \brief Size of the team of a call or a join, and this worker's place in it. */
  TeamRole role;
  /*! \brief Place of its event among the queue's events in a slot; -1: none. */
  int32_t event = -1;
  /*! \brief Whether the device is to write how far it is, as cores wait for that. */
  bool writes_word = false;
  /*! \brief Place among the queue's recorded launches in a slot of those that begin here, or -1;
   * and whether it is a later one of them. */
  int32_t recorded = -1;
  bool is_in_recorded = false;
  std::vector<BoundWait> waits;
  /*! \brief Call: the kernel, and its arguments among the queue's in a slot. */
  KernelFunction kernel;
  size_t first_argument = 0;
  int num_arguments = 0;
  /*! \brief Guarded: place among those of the queue; -1: it is not. */
  int32_t branch = -1;
  /*! \brief Join: the team, and its leader's counter when the call is over. */
  Team* team = nullptr;
  Progress* leader = nullptr;
  int64_t leader_count = 0;
  int64_t leader_length = 0;
  /*! \brief A group, or join of one. */
  BoundGroup* group = nullptr;
  /*! \brief Copy: the tensors. */
  int32_t src = -1;
  int32_t dst = -1;
  int64_t bytes = 0;
};

/*! \brief A count of another queue after which a part of a decision is there. */
struct BoundThere {
  Progress* progress;
  /*! \brief As those of waits. */
  int64_t count;
  int64_t length;
  /*! \brief Whether it is an asynchronous queue, and its device tells how far it is. */
  bool is_async;
  bool has_word;
};

/*! \brief A guarded instruction with all of it that is the same in every request. */
struct BoundBranch {
  When when;
  int32_t branch;
  int32_t loads;
  int64_t num_cells;
  size_t flag;
  const BranchStep* step;
  std::vector<KernelFunction> kernels;         // [num_calls]
  std::vector<std::vector<BoundThere>> there;  // [num_doubts]
};

}  // namespace heteroplace::exec
