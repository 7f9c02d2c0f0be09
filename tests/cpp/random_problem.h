// Random problems, placements and orders for the tests.
#pragma once

#include <functional>
#include <vector>

#include "decompose/module.h"
#include "model/problem.h"
#include "support/random.h"

namespace heteroplace::test {

/*! \brief What a random problem is like. */
struct Shape {
  int min_tasks = 1;
  int max_tasks = 12;
  int max_devices = 4;
  int max_memories = 3;
  int reach = 8;            // a task reads from so many tasks before it
  int max_run_ns = 9;       // few values: many ties, and changes that have no effect
  int output_percent = 10;  // of the tensors
  bool is_path = false;     // blocks between tasks that all others come before or after
  bool has_groups = true;
  bool has_workspace = true;
  bool has_empty_tensors = true;  // which are copied in no time where links have no latency
  bool may_lack_routes = false;
};

/*!
 * \brief A random graph on a random cluster: devices that share units and memories, routes over
 * several links with channels, a bus, units (copies occupy processors) or nothing, with or without
 * host. Memory is plenty.
 */
model::Problem MakeProblem(const Shape& shape, Random& random);

/*! \brief An allowed device for each task, one for each group. */
std::vector<int> RandomDevices(const model::Problem& problem, Random& random);

/*! \brief A random topological order. */
std::vector<int> RandomOrder(const model::Problem& problem, Random& random);

/*! \brief A placement and an order of one module of a problem, by local ids. */
struct InitialModule {
  std::vector<int> device;  // [num_tasks], allowed devices, one for each group
  std::vector<int> order;   // [num_tasks], topological
  int entry = 0;            // memory of the cut before the module
};

/*! \brief A random placement and order of the module at a position of the modules. */
InitialModule RandomInitialModule(const model::Problem& problem, const decompose::Modules& modules,
                                  int index, Random& random);

/*! \brief Position in the modules of the module with the most tasks. */
int LargestModule(const decompose::Modules& modules);

/*! \brief Sets the memories to what a placement needs, and up to `percent` more. */
void Tighten(model::Problem& problem, const std::vector<int>& device, int percent, Random& random);

/*! \brief Calls `visit` for all placements of a small problem. */
void ForAllDevices(const model::Problem& problem,
                   const std::function<void(const std::vector<int>&)>& visit);

/*! \brief All topological orders of a small problem. */
std::vector<std::vector<int>> AllOrders(const model::Problem& problem);

}  // namespace heteroplace::test
