#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "list/engine/list_scheduler.h"
#include "list/engine/watch.h"
#include "model/native_plan.h"
#include "model/problem.h"

namespace heteroplace::list {

/*! \brief Which task is placed next. */
enum class Priority {
  kTopological,  // in order of ids
  kRank,         // highest upward rank (HEFT)
  kPath,         // of the ready tasks the one of highest upward + downward rank (CPoP)
  kLookahead,    // of the ready tasks the one of highest mean optimistic cost (PEFT)
  kMinMin,       // of a batch of ready tasks the one whose best choice is least
  kMaxMin,       // of a batch of ready tasks the one whose best choice is greatest
  kSufferage,    // of the ready tasks the one that loses most by its second best choice: all, where
                 // that lacks more memory or is not there
};

/*! \brief What the device of a task is chosen by: the least of it. */
enum class Choice {
  kFinish,     // when the task is done
  kStart,      // when it begins
  kRun,        // how long it runs
  kLatency,    // when all that is placed is done
  kLookahead,  // finish + optimistic cost of what follows (PEFT)
  kPath,       // finish; tasks of the critical path only where the path runs fastest (CPoP)
  kAvailable,  // when all that was placed on the device is done
};

/*! \brief The parts that a list scheduler is made of. */
struct ListParts {
  Priority priority = Priority::kRank;
  Choice choice = Choice::kFinish;
  Insertion insertion = Insertion::kGaps;
};

/*! \brief Parts by their names; throws kPlan, which lists them, if one is unknown. */
ListParts FindParts(const std::string& priority, const std::string& choice,
                    const std::string& insertion);

/*!
 * \brief A list scheduler of the given parts, on devices that share units and links that share
 * channels.
 *
 * The named ones are combinations: HEFT (rank, finish, gaps) and CPoP (path, path, gaps) of
 * Topcuoglu et al. 2002 (sections 4.2 and 4.3, DOI 10.1109/71.993206), PEFT (lookahead, lookahead,
 * gaps) of Arabnejad and Barbosa 2014 (10.1109/TPDS.2013.57), MET (rank, run, gaps), MCT and OLB
 * (topological; finish, available; end), MinMin and MaxMin (finish, end) of Braun et al. 2001
 * (section 2, 10.1006/jpdc.2000.1714), Sufferage (finish, end) of Maheswaran et al. 1999
 * (10.1006/jpdc.1999.1581), Greedy (topological, latency, gaps) of DiviML (section V).
 *
 * Unlike the papers: a transfer reserves the channels of its route and is shared by all readers in
 * its memory; a device is a candidate only while its memory has room; an output that must go to the
 * host adds that transfer to the finish it is judged by; the run of a group is the sum of its
 * tasks; devices of one memory need no transfer between them. Critical paths may begin and end at
 * several tasks, and a task of one that cannot be on its device goes where it finishes first.
 * Batches are those tasks whose producers were placed when the batch before was done. Ties: earlier
 * finish (but of OLB, which does not look at it), fewer units, the lower device id; of tasks the
 * lower id.
 *
 * \param preferred [num_devices], 0 keeps a device for the tasks that no preferred one can run.
 * \return A plan; violation > 0 where no device had room or could be reached.
 * Complexity: O((num_tasks * num_devices + reads * num_devices) * log); MinMin, MaxMin and
 * Sufferage try all ready tasks on all devices for each task placed.
 */
model::NativePlan PlanByParts(const model::Problem& problem, ListParts parts,
                              std::span<const uint8_t> preferred, const Watch& watch);

}  // namespace heteroplace::list
