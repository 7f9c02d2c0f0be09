#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "list/engine/list_parts.h"
#include "list/engine/list_scheduler.h"
#include "model/problem.h"

namespace heteroplace::list {

/*! \brief What a task on a device is compared by; the least is chosen. */
struct ChoiceKey {
  int64_t violation = 0;
  bool is_away = false;   // a task of the critical path off its device
  double value = 0;       // ns, of the choice
  int64_t finish_ns = 0;  // with the way of outputs to the host; of kAvailable 0
  size_t num_units = 0;
  int device = -1;

  bool operator<(const ChoiceKey& other) const {
    return std::tie(violation, is_away, value, finish_ns, num_units, device) <
           std::tie(other.violation, other.is_away, other.value, other.finish_ns, other.num_units,
                    other.device);
  }
};

/*! \brief Finds the keys of candidates by one choice. */
class ChoiceKeys {
 public:
  /*! \param devices [num_tasks], where each task may go. */
  ChoiceKeys(const model::Problem& problem, const ListScheduler& scheduler, Choice choice,
             std::span<const uint8_t> preferred, const model::Csr& devices);

  /*! \brief Key of what the scheduler tried last for the task. */
  ChoiceKey Of(int task, const Candidate& trial) const;
  /*!
   * \brief When the task has to end on a device for its key to be below another: later is too late.
   * \param other The key of the task on another device.
   */
  int64_t LatestFinish(int task, int device, const ChoiceKey& other) const;

 private:
  double Value(int task, const Candidate& trial, int64_t finish_ns) const;
  /*! \brief Of kLookahead: what follows the task at least if it is on a device, in ns. */
  double Optimistic(int task, int device) const;

  const model::Problem& problem_;
  const ListScheduler& scheduler_;
  Choice choice_;
  std::vector<double> optimistic_;    // [num_tasks][num_memories]; of kLookahead
  std::vector<uint8_t> is_critical_;  // [num_tasks]; of kPath
  int path_device_ = -1;              // of kPath
};

}  // namespace heteroplace::list
