#pragma once

#include <nanobind/nanobind.h>

namespace heteroplace::bind {

/*! \brief Each adds what one folder offers to the extension module. */
void BindModel(nanobind::module_& module);
void BindGraph(nanobind::module_& module);
void BindSimulate(nanobind::module_& module);
void BindList(nanobind::module_& module);
void BindBounds(nanobind::module_& module);
void BindSearch(nanobind::module_& module);
void BindNet(nanobind::module_& module);
void BindExec(nanobind::module_& module);
void BindFile(nanobind::module_& module);

/*! \brief The same for a part, whose folder `bind` includes this file. */
void BindHosts(nanobind::module_& module);
void BindKernels(nanobind::module_& module);
void BindQuantise(nanobind::module_& module);
void BindThroughput(nanobind::module_& module);

}  // namespace heteroplace::bind
