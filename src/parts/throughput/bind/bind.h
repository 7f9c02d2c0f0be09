#pragma once

#include <nanobind/nanobind.h>

namespace heteroplace::bind {

/*! \brief Each adds what one folder of the part offers to the extension module. */
void BindBatched(nanobind::module_& module);
void BindCuts(nanobind::module_& module);
void BindSteadyState(nanobind::module_& module);

}  // namespace heteroplace::bind
