#pragma once

#include <nanobind/nanobind.h>

namespace heteroplace::bind {

/*! \brief Each adds a half of the part to the extension module. */
void BindTransports(nanobind::module_& module);
void BindRanks(nanobind::module_& module);

}  // namespace heteroplace::bind
