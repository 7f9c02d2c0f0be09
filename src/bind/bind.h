#pragma once

#include <nanobind/nanobind.h>

namespace heteroplace::bind {

/*! \brief Adds the simulator to the extension module. */
void BindSimulate(nanobind::module_& module);

/*! \brief Adds the problem and the scheduling functions to the extension module. */
void BindSchedule(nanobind::module_& module);

/*! \brief Adds the lower bounds to the extension module. */
void BindBounds(nanobind::module_& module);

/*! \brief Adds the list schedulers of the literature. */
void BindBaselines(nanobind::module_& module);

/*! \brief Adds the graph algorithms to the extension module. */
void BindGraph(nanobind::module_& module);

/*! \brief Adds the list schedulers of several items. */
void BindBatches(nanobind::module_& module);

/*! \brief Adds the search over mappings and what it is built from. */
void BindMappingSearch(nanobind::module_& module);

/*! \brief Adds the functions of steady-state throughput. */
void BindThroughput(nanobind::module_& module);

/*! \brief Adds the executor to the extension module. */
void BindExec(nanobind::module_& module);

}  // namespace heteroplace::bind
