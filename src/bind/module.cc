// The extension module `heteroplace._core`. Only `heteroplace.native` imports it.
#include <nanobind/nanobind.h>

#include <cstring>

#include "bind/bind.h"
#include "support/error.h"

namespace nb = nanobind;

namespace {

/*! \brief Name of the exception class in heteroplace.errors for each kind. */
const char* PythonName(heteroplace::ErrorKind kind) {
  using heteroplace::ErrorKind;
  switch (kind) {
    case ErrorKind::kGraph:
      return "GraphError";
    case ErrorKind::kCluster:
      return "ClusterError";
    case ErrorKind::kPlan:
      return "PlanError";
    case ErrorKind::kInfeasible:
      return "InfeasibleError";
    case ErrorKind::kSolverLimit:
      return "SolverLimitError";
    case ErrorKind::kMissingCost:
      return "MissingCostError";
    case ErrorKind::kArtifact:
      return "ArtifactError";
    case ErrorKind::kExecution:
      return "ExecutionError";
  }
  return "HeteroPlaceError";
}

/*! \brief The exception of Python for an error, with the error that it names as its cause. */
nb::object PythonError(const heteroplace::Error& error) {
  nb::object type = nb::module_::import_("heteroplace.errors").attr(PythonName(error.kind()));
  // A text of the system or of a path may be no UTF-8.
  nb::object raised = type(nb::steal(PyUnicode_DecodeUTF8(
      error.what(), static_cast<Py_ssize_t>(std::strlen(error.what())), "backslashreplace")));
  try {
    std::rethrow_if_nested(error);
  } catch (const heteroplace::Error& cause) {
    PyException_SetCause(raised.ptr(), PythonError(cause).release().ptr());
  }
  return raised;
}

}  // namespace

NB_MODULE(_core, module) {
  module.doc() = "C++ core of heteroplace: scheduling, simulation, execution.";
  nb::register_exception_translator([](const std::exception_ptr& pending, void*) {
    try {
      std::rethrow_exception(pending);
    } catch (const heteroplace::Error& error) {
      const nb::object raised = PythonError(error);
      PyErr_SetObject(raised.type().ptr(), raised.ptr());
    }
  });
  heteroplace::bind::BindModel(module);
  heteroplace::bind::BindGraph(module);
  heteroplace::bind::BindSimulate(module);
  heteroplace::bind::BindList(module);
  heteroplace::bind::BindBounds(module);
  heteroplace::bind::BindSearch(module);
  heteroplace::bind::BindNet(module);
  heteroplace::bind::BindExec(module);
  heteroplace::bind::BindFile(module);
  heteroplace::bind::BindHosts(module);
  heteroplace::bind::BindKernels(module);
  heteroplace::bind::BindQuantise(module);
  heteroplace::bind::BindThroughput(module);
}
