#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>

#include "bind/gil.h"
#include "support/error.h"
#include "support/jobs.h"

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
  const WithGil locked;
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

/*!
 * \brief What ends a long call of the core: the error kSolverLimit after some seconds, or Ctrl-C,
 * of which the main thread alone hears. Called without the interpreter's lock.
 */
inline std::function<void()> WatchFor(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto begin = Clock::now();
  const bool hears_signals = IsMainThread();
  return [=, asked = begin]() mutable {
    const auto now = Clock::now();
    const auto since = [now](Clock::time_point then) {
      return std::chrono::duration<double>(now - then).count();
    };
    if (since(begin) >= seconds) {
      throw Error(ErrorKind::kSolverLimit, "the time was up before all tasks were placed");
    }
    if (!hears_signals || since(asked) < kHookSeconds) return;
    asked = now;
    const WithGil locked;
    if (PyErr_CheckSignals() != 0) nanobind::raise_python_error();
  };
}

}  // namespace heteroplace::bind
