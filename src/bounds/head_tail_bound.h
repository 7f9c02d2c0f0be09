#pragma once

#include <cstddef>
#include <vector>

#include "bounds/module_trees.h"
#include "decompose/module.h"
#include "model/problem.h"

namespace heteroplace::bounds {

/*!
 * \brief Earliest starts and shortest rests of the inner tasks of a module, within a scope.
 *
 * Longest paths over (task, device), each task on the device that is best for its reader, transfers
 * included; nothing waits for a unit or a link.
 */
class HeadTailBound {
 public:
  /*! \brief A time of what cannot be. */
  static constexpr double kFar = 1e300;

  /*! \param entry, exit Devices of the cuts before and at the end; -1: there is none. */
  HeadTailBound(const model::Problem& problem, const decompose::Module& module, const Scope& scope,
                int entry, int exit);

  /*! \brief Earliest start on a device after the cut, in ns. */
  double start(int task, int device) const { return start_[Index(task, device)]; }
  /*! \brief Shortest time from the finish there to the finish of the exit, or the end. */
  double rest(int task, int device) const { return rest_[Index(task, device)]; }

 private:
  size_t Index(int task, int device) const {
    return static_cast<size_t>(task) * module_.num_devices + static_cast<size_t>(device);
  }
  double Transfer(int tensor, int src, int dst) const;
  double Arrival(int tensor, int memory, const Scope& scope, int entry) const;
  double Start(int task, int device, const Scope& scope, int entry) const;
  double Rest(int task, int device, int exit) const;

  const model::Problem& problem_;
  const decompose::Module& module_;
  int num_inner_;
  std::vector<double> start_;  // [num_tasks][num_devices]
  std::vector<double> rest_;   // same, after the finish
};

}  // namespace heteroplace::bounds
