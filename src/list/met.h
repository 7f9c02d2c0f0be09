#pragma once

#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*!
 * \brief MET (minimum execution time, Braun et al. 2001, section 2, DOI 10.1006/jpdc.2000.1714):
 * each task on the device that runs it fastest, in order of upward rank, into the first gap.
 *
 * Unlike the paper: a device without room is passed over for the next fastest; a group counts as
 * one task. Ties: earlier finish, then the lower device id.
 */
model::NativePlan Met(const model::Problem& problem);

}  // namespace heteroplace::list
