// One order of all instructions of a program, for threads that issue the work of several queues.
#pragma once

#include <cstdint>
#include <vector>

#include "exec/program/program.h"

namespace heteroplace::exec {

/*! \brief An instruction by its queue and its place there. */
struct InstructionId {
  int32_t queue;
  int32_t index;
};

/*!
 * \brief Every instruction after its predecessor in the queue and after all that it waits for; of
 * those that may come next, the one of the earliest step of the plan.
 *
 * Threads that each follow this order never wait for each other in a circle, whichever queues each
 * of them has: the first instruction that is not yet issued can always be. O(n log n).
 * \param program without a deadlock (`CheckSynchronisation`).
 */
std::vector<InstructionId> IssueOrder(const Program& program);

}  // namespace heteroplace::exec
