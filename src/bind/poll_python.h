#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

namespace heteroplace {

/*!
 * \brief Asks Python for Ctrl-C and reports progress; true ends the search.
 *
 * Called with or without the interpreter's lock. An error other than the interrupt is passed on.
 */
inline bool PollPython(const std::optional<nanobind::callable>& progress, int64_t evaluations,
                       int64_t best_ns) {
  nanobind::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    // An interrupt ends the search, which still returns its best; any other error is passed on.
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) nanobind::raise_python_error();
    PyErr_Clear();
    return true;
  }
  if (progress) (*progress)(evaluations, best_ns);
  return false;
}

}  // namespace heteroplace
