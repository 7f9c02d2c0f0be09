#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "model/memory_use.h"
#include "model/problem.h"
#include "model/steps.h"
#include "simulate/live_memory.h"

namespace heteroplace::simulate {

/*!
 * \brief Weights of tasks that loads bring to where the tasks run, from where they are kept.
 *
 * They are live there from the first load to the last run of their task, in plan order, and always
 * where they are kept. Without loads nothing is looked up.
 */
class LoadedWeights {
 public:
  LoadedWeights(const model::Problem& problem, const model::ExplicitSteps& steps);

  /*! \brief Charges the weights where they are kept. */
  void Hold(model::MemoryUse& use, LiveMemory& live) const;
  /*! \brief Whether a load, of any step, brings the weights of a task to a memory. */
  bool Has(int task, int memory) const {
    return !there_.empty() && there_.contains({task, memory});
  }
  /*!
   * \brief When the weights of a task are in a memory; 0: they are there always.
   *
   * Throws Error(kPlan) if only a step behind `step` brings them.
   */
  int64_t ArrivalNs(int task, int memory, int step) const;
  /*! \brief Notes that a step reads the weights of its task. */
  void Read(int task, int memory, int step, int64_t finish_ns);
  /*! \brief Notes what a step brings: tasks and memories, one after the other. */
  void Bring(std::span<const int> pairs, int step, int64_t finish_ns, model::MemoryUse& use);
  /*! \brief Hands the times that they are there to the live memory. */
  void Close(LiveMemory& live) const;

 private:
  struct Span {
    int64_t arrival_ns = -1;  // -1: not there yet
    int64_t end_ns = 0;       // when all steps that bring or read them are done
    int first = -1;           // the step that brings them
    int last = -1;            // the last step that brings or reads them
  };

  const model::Problem& problem_;
  const model::ExplicitSteps& steps_;
  std::map<std::pair<int, int>, Span> there_;  // by task and memory
};

}  // namespace heteroplace::simulate
