#pragma once

#include <nanobind/nanobind.h>

namespace heteroplace {

/*! \brief Adds the scheduling and simulation functions to the extension module. */
void BindSchedule(nanobind::module_& module);

/*! \brief Adds the functions of steady-state throughput. */
void BindThroughput(nanobind::module_& module);

/*! \brief Adds the executor to the extension module. */
void BindExec(nanobind::module_& module);

}  // namespace heteroplace
