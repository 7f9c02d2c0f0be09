#pragma once

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*! \brief How full m-TOPO fills a memory. */
enum class TopoCap {
  kMemory,   // to its limit
  kUniform,  // to the mean load plus the largest task
};

/*!
 * \brief m-TOPO (Jeon et al., "Baechi", SoCC 2020, section 3, DOI 10.1145/3419111.3421302): fills
 * one memory after the other in breadth-first order; a task that does not fit closes the memory.
 * Tasks then run in that order.
 */
model::NativePlan MTopo(const model::Problem& problem, TopoCap cap);

}  // namespace heteroplace::list
