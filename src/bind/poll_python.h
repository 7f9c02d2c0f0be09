#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <cstdint>
#include <optional>

namespace heteroplace::bind {

/*! \brief A function that is told of progress by some numbers; None: nobody asks. */
template <typename... Numbers>
using Progress = std::optional<nanobind::typed<nanobind::callable, nanobind::object(Numbers...)>>;

/*!
 * \brief Asks Python for Ctrl-C and reports progress by some numbers; true, of the progress
 * function too, ends the search.
 *
 * Called with or without the interpreter's lock. An error other than the interrupt is passed on, of
 * the progress function too.
 */
template <typename... Numbers>
bool PollPython(const Progress<Numbers...>& progress, Numbers... numbers) {
  nanobind::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) {
    // An interrupt ends the search, which still returns its best; any other error is passed on.
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) nanobind::raise_python_error();
    PyErr_Clear();
    return true;
  }
  if (!progress) return false;
  try {
    return (*progress)(numbers...).is(nanobind::bool_(true));
  } catch (nanobind::python_error& error) {
    // Ctrl-C may also land inside the function.
    if (!error.matches(PyExc_KeyboardInterrupt)) throw;
    return true;
  }
}

}  // namespace heteroplace::bind
